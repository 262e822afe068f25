"""A forked process does not wait for a thread that it has not."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HELD = """
import os, signal, threading
from celery import Celery, signals
from celery_reliable import internals
from celery_reliable.internals import forking

app = Celery("unit", broker="memory://")
held = threading.Event()

def hold():
    with {lock}:
        held.set()
        threading.Event().wait()

{prepare}
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(5)
    {read}
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("lock", "read"),
    [
        ('vars(Celery)["amqp"].lock', "app.amqp"),
        ("app.clock.mutex", "app.clock.forward()"),
        ("app.amqp._event_dispatcher.mutex", "app.amqp._event_dispatcher.mutex.acquire()"),
        ("signals.after_task_publish.lock", "signals.after_task_publish.connect(lambda **_: None, weak=False)"),
    ],
)
def test_a_child_has_free_locks(lock: str, read: str) -> None:
    """Each is held by a thread of the parent at the fork."""
    assert _exit_code(lock, read, prepare="internals.free_locks_in_children()") == 0


def test_a_child_does_not_look_for_the_locks_itself() -> None:
    """It would copy the memory of all classes, some megabytes for each child."""
    looked = "assert forking._locked.cache_info()[:2] == (1, 1)"  # by the parent, and taken from it
    assert _exit_code("app.clock.mutex", looked, prepare="internals.free_locks_in_children()") == 0


def _exit_code(lock: str, read: str, *, prepare: str) -> int:
    script = _HELD.format(lock=lock, read=read, prepare=prepare)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    return int(run.stdout)
