"""The parts of a drain that need no worker: its clock, its line at start, and the bodies it may interrupt."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import billiard
import pytest
from celery import Celery

from celery_reliable.errors import Draining
from celery_reliable.testing.processes import children, process_table, send
from celery_reliable.worker import flags
from celery_reliable.worker.bodies import Bodies
from celery_reliable.worker.drain import budget, leaving
from celery_reliable.worker.drain.course import Course
from celery_reliable.worker.drain.guarding import LAST_SIGNAL
from celery_reliable.worker.drain.watchdog import Watchdog
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """A clock that stands until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


class TestCourse:
    """What is due when."""

    def test_begins_once(self, clock: Clock) -> None:
        """A second signal moves no deadline."""
        course = Course(10.0, clock=clock)
        assert course.begin() is True
        clock.now += 9.0
        assert course.begin() is False
        clock.now += 1.0
        assert course.is_past(0.0) is True

    def test_counts_from_the_signal_when_that_was_heard_late(self, clock: Clock) -> None:
        """C code kept the interpreter for four of ten seconds: six are left."""
        course = Course(10.0, clock=clock)
        assert course.until(1.0) == 11.0
        clock.now += 4.0
        course.begin(at=100.0)
        assert (course.until(1.0), course.is_past(0.0)) == (7.0, False)
        clock.now += 6.0
        assert course.is_past(0.0) is True

    def test_nothing_is_due_before_it_begins(self, clock: Clock) -> None:
        """A worker that runs for days."""
        course = Course(0.0, clock=clock)
        clock.now += 1e6
        assert (course.is_past(0.0), course.must_leave) == (False, False)

    def test_process_leaves_soon_after_the_timeout(self, clock: Clock) -> None:
        """Within the two seconds that are promised."""
        course = Course(10.0, clock=clock)
        course.begin()
        clock.now += 11.1
        assert course.must_leave is False
        clock.now += 0.2
        assert course.must_leave is True

    def test_process_leaves_when_celery_s_shutdown_hangs(self, clock: Clock) -> None:
        """Long before a long timeout is over."""
        course = Course(3600.0, clock=clock)
        course.begin()
        course.finish()
        clock.now += 4.9
        course.finish()
        assert course.must_leave is False
        clock.now += 0.2
        assert course.must_leave is True


def nothing() -> None:
    """Be a task."""


class TestBudget:
    """The line at start."""

    @pytest.mark.parametrize(("timeout", "grace"), [(30.0, 32), (0.0, 2), (7.5, 10)])
    def test_grace_period_covers_timeout_and_exit(self, timeout: float, grace: int) -> None:
        """In whole seconds, as supervisors count."""
        assert budget.grace_period(timeout) == grace

    def test_longest_time_limit_is_found_among_all_tasks(self) -> None:
        """The project's default counts for tasks that have none of their own."""
        app = Celery(set_as_current=False)
        app.conf.task_time_limit = 40
        app.task(name="long", time_limit=50, shared=False)(nothing)
        app.task(name="short", shared=False)(nothing)
        assert budget.longest_time_limit(app) == 50

    def test_a_task_without_a_limit_has_no_longest(self) -> None:
        """It may run for ever."""
        app = Celery(set_as_current=False)
        app.task(name="limited", time_limit=50, shared=False)(nothing)
        app.task(name="endless", shared=False)(nothing)
        assert budget.longest_time_limit(app) is None


class Runner:
    """A thread with a body in it, which goes on until it is interrupted or let go."""

    def __init__(self, bodies: Bodies, token: str) -> None:
        """Start it, and wait for the body."""
        self.bodies, self.token = bodies, token
        self.let_go, self.after = threading.Event(), threading.Event()
        self.interrupted = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until(lambda: token in bodies, 5.0, "the body")

    def _run(self) -> None:
        try:
            with self.bodies.inside(self.token):
                while not self.let_go.wait(0.01):
                    pass
        except Draining:
            self.interrupted = True
        self.after.set()


class TestBodies:
    """What may be interrupted, and when."""

    def test_a_body_in_another_thread_is_interrupted_once(self) -> None:
        """A second order finds it on its way out already."""
        runner = Runner(bodies := Bodies(), "a")
        assert bodies.interrupt_thread("a") is True
        assert bodies.interrupt_thread("a") is False
        assert runner.after.wait(5.0)
        runner.thread.join(5.0)
        assert (runner.interrupted, bool(bodies)) == (True, False)

    def test_only_the_named_body_is_interrupted(self) -> None:
        """Its neighbour goes on."""
        bodies = Bodies()
        one, other = Runner(bodies, "one"), Runner(bodies, "other")
        bodies.interrupt_thread("one")
        assert one.after.wait(5.0)
        assert "other" in bodies
        other.let_go.set()
        other.thread.join(5.0)
        assert (one.interrupted, other.interrupted) == (True, False)

    def test_a_body_that_is_over_is_not_interrupted(self) -> None:
        """What writes its outcome is left alone."""
        bodies = Bodies()
        with bodies.inside("a"):
            assert "a" in bodies
        assert bodies.interrupt_thread("a") is False

    def test_an_interruption_that_meets_the_end_of_a_body_hits_nothing(self) -> None:
        """It was ordered while the body ended: what comes after, its outcome above all, goes on."""
        bodies, after = Bodies(), threading.Event()
        inside, let_go = threading.Event(), threading.Event()

        def run() -> None:
            with bodies.inside("a"):
                inside.set()
                let_go.wait(5.0)
            after.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert inside.wait(5.0)
        ident = thread.ident
        assert ident is not None
        with bodies._lock:  # as an interrupter that was a moment earlier
            bodies._interrupted.add("a")
            let_go.set()
            wait_until(lambda: "a" not in bodies, 5.0, "the body's end, which waits for us")
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Draining))
        assert after.wait(5.0)
        thread.join(5.0)
        assert not bodies

    @pytest.fixture
    def interrupting(self) -> Iterator[None]:
        """A worker whose timeout is over."""
        made = flags.Flags()
        made.set_interrupting()
        yield
        made.close()

    @pytest.mark.usefixtures("interrupting")
    def test_a_body_does_not_begin_after_the_timeout(self) -> None:
        """It would not be interrupted any more."""
        with pytest.raises(Draining), Bodies().inside("a"):
            pytest.fail("the body began")


LISTEN = """
import os, signal, sys, time
from celery_reliable.worker.drain.watchdog import Watchdog

def hear():
    print("heard", flush=True)

watchdog = Watchdog(signals=(signal.SIGTERM,), on_signal=hear, look=lambda: None)
signal.signal(signal.SIGTERM, lambda *_: None)
watchdog.start()
ready, say = os.pipe()
gone, held = os.pipe()
child = os.fork()
if not child:
    os.close(held)
    os.write(say, b"!")
    os.read(gone, 1)
    os._exit(0)
os.read(ready, 1)
if sys.argv[1] == "child":
    os.kill(child, signal.SIGTERM)
    time.sleep(0.3)  # the byte is written by the child: nothing here tells that it was not
    print("silence", flush=True)
os.kill(child, signal.SIGKILL)
if sys.argv[1] == "self":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
os._exit(0)
"""


STOP = """
import _thread, signal, time
from celery_reliable.worker.drain.watchdog import Watchdog

heard = []
watchdog = Watchdog(signals=(signal.SIGTERM,), on_signal=lambda: heard.append("heard"), look=lambda: heard.append("looked"))
watchdog.start()
while not _thread._count():
    time.sleep(0.01)
watchdog.stop()
watchdog.stop()
while _thread._count():
    time.sleep(0.01)
print(heard, signal.set_wakeup_fd(-1))
"""


HOLD = """
import ctypes, os, signal, sys, time
from celery_reliable.worker.drain.watchdog import Watchdog

patience, signals, keeps = float(sys.argv[1]), [int(one) for one in sys.argv[2].split()], float(sys.argv[3])
heard = []
watchdog = Watchdog(
    signals=(signal.SIGTERM,), on_signal=lambda: heard.append((watchdog.told_at(), time.monotonic())), look=lambda: None
)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)
parent = os.getpid()
watchdog.start()
watchdog.guard(patience=patience)
if not os.fork():
    time.sleep(0.5)
    for number in signals:
        os.kill(parent, number)
    os._exit(0)

library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
until = time.time() + keeps
library.pthread_mutex_lock(mutex)
library.pthread_mutex_timedlock(mutex, (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9)))
if signal.SIGTERM in signals:
    while not heard:
        time.sleep(0.01)
    told, now = heard[0]
    print(round(now - told, 1))
print("went on", flush=True)
watchdog.stop()
"""


FORKED = """
import os, signal, sys, time
from celery_reliable.worker.drain.watchdog import Watchdog

watchdog = Watchdog(signals=(signal.SIGTERM,), on_signal=lambda: None, look=lambda: None)
watchdog.start()
watchdog.guard(patience=60.0)
heir = os.fork()
if heir:
    print(os.getpid(), heir, flush=True)
time.sleep(60)
"""


TWICE = """
import os, signal, socket, time
from celery_reliable.worker.drain.watchdog import Watchdog

socket.setdefaulttimeout(0.1)
watchdog = Watchdog(signals=(signal.SIGTERM,), on_signal=lambda: time.sleep(0.5), look=lambda: None)
signal.signal(signal.SIGTERM, lambda *_: None)
watchdog.start()
watchdog.guard(patience=2.0)
time.sleep(0.3)
for pause in (3.0, 0.5):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(pause)
print("went on", flush=True)
watchdog.stop()
"""


class TestGuardian:
    """What ends a process in which C keeps the interpreter, and says when the signal came."""

    def run(self, *, patience: float, signals: tuple[int, ...], keeps: float) -> subprocess.CompletedProcess[str]:
        """Run a process that keeps its interpreter for so long, and gets signals meanwhile."""
        command = [sys.executable, "-c", HOLD, str(patience), " ".join(map(str, map(int, signals))), str(keeps)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_a_process_that_cannot_hear_is_ended(self) -> None:
        """By a signal that C answers with the stacks and an exit."""
        run = self.run(patience=0.5, signals=(signal.SIGTERM,), keeps=30.0)
        assert (run.returncode, run.stdout) == (LAST_SIGNAL, "")
        assert "Current thread" in run.stderr

    def test_a_process_that_hears_late_learns_when_the_signal_came(self) -> None:
        """It was kept for 1.5 s, and told after 0.5: it goes on, a second late."""
        run = self.run(patience=20.0, signals=(signal.SIGUSR1, signal.SIGTERM), keeps=1.5)
        late, *rest = run.stdout.splitlines()
        assert (rest, run.returncode) == (["went on"], 0), run.stderr
        assert 0.5 < float(late) < 5.0

    def test_it_ends_with_its_process_although_a_forked_child_has_the_bell(self) -> None:
        """So nothing of the bell tells of the end."""
        command = [sys.executable, "-W", "ignore", "-c", FORKED]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            pid, heir = map(int, process.stdout.readline().split())
            (guardian,) = {*children(pid)} - {heir}
            process.kill()
            process.wait()
            wait_until(
                lambda: guardian not in {entry.pid for entry in process_table()}, 10.0, "the guardian to be gone"
            )
            assert heir in {entry.pid for entry in process_table()}
            send(heir, signal.SIGKILL)

    def test_a_process_that_hears_is_left_alone(self) -> None:
        """Longer than the guardian's patience, and at a second signal, which nobody waits for.

        Though the program lets no socket wait for long.
        """
        run = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60, check=False)
        assert (run.returncode, run.stdout) == (0, "went on\n"), run.stderr

    def test_another_signal_ends_nothing(self) -> None:
        """Whoever keeps its interpreter for long and was not told to stop goes on."""
        run = self.run(patience=0.2, signals=(signal.SIGUSR1,), keeps=2.0)
        assert (run.returncode, run.stdout) == (0, "went on\n"), run.stderr


class TestWatchdog:
    """What hears a signal although the main thread may not."""

    def test_a_watchdog_that_is_stopped_hears_nothing(self) -> None:
        """Its end is no order to stop: that would begin a drain, and end a process that goes on without the worker."""
        command = [sys.executable, "-c", STOP]
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (run.stdout, run.stderr) == ("[] -1\n", "")

    def test_a_signal_right_after_another_one_is_heard(self) -> None:
        """It comes when the first was seen and not taken out yet: only what was seen may be taken out."""
        heard = threading.Event()
        watchdog = Watchdog(signals=(signal.SIGTERM,), on_signal=heard.set, look=lambda: None)
        ears, bell = watchdog._ears, watchdog._bell

        def receive(most: int, flags: int) -> bytes:
            found = ears.recv(most, flags)
            if found == bytes([signal.SIGUSR1]) and flags & socket.MSG_PEEK:
                bell.send(bytes([signal.SIGTERM]))
            return found

        watchdog._ears = SimpleNamespace(recv=receive)  # type: ignore[assignment]  # a stand-in
        watching = threading.Thread(target=watchdog._watch)
        watching.start()
        bell.send(bytes([signal.SIGUSR1]))
        try:
            assert heard.wait(10.0)
        finally:
            watchdog.stop()
            watching.join(10.0)

    @pytest.mark.parametrize(("target", "first"), [("self", "heard"), ("child", "silence")])
    def test_hears_its_own_process_and_no_child(self, target: str, first: str) -> None:
        """A forked child has the same descriptors."""
        command = [sys.executable, "-c", LISTEN, target]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == first
            process.kill()


def test_no_child_is_started_in_the_place_of_one_that_was_killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Pool._repopulate_pool`` (billiard 4.3), where the pool is the first to see that a child has ended.

    A child that nobody ends would wait for ever, its pipe in its sibling's hands.
    """
    monkeypatch.setattr(leaving, "_reap", lambda _: None)
    pool = billiard.Pool(2, threads=False)
    first = {process.pid for process in pool._pool}
    try:
        assert leaving._kill_all(SimpleNamespace(_pool=pool))
        wait_until(lambda: all(process.exitcode is not None for process in pool._pool), 5.0, "their end")
        pool.maintain_pool()
        assert not {process.pid for process in pool._pool} - first
    finally:
        for process in pool._pool:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
