"""The app of the drain tests: ``celery -A tests.integration.apps.draining worker``.

Its tasks note what they see in the stage's ledger, and end only when the test or the drain lets them.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from celery import Celery, signals
from celery.exceptions import Reject

from celery_reliable import Draining, ReliableTask
from tests.integration.apps.stage import Stage

STUCK = 60.0  # seconds: longer than any test


def make_app(stage: Stage) -> Celery:
    """Return the app, in the worker as in the test."""
    app = Celery("draining", broker=stage.broker, backend=stage.backend, set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({"reliable_lease_ttl": 3.0, "reliable_store_url": stage.store, "task_default_queue": "drained"})
    app.conf.update({"reliable_event_hooks": (stage.hook,), **stage.conf})
    app.stage = stage  # for the tasks
    for body in (gated, watching, saving, sleeping, stubborn, stuck_in_c, holding_the_gil, taking_the_gil, rejecting):
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False)(body)
    app.task(base=ReliableTask, bind=True, name="limited", shared=False, rate_limit="1/h")(limited)
    keyed = {"base": ReliableTask, "idempotency_key": "keyed:{label}"}
    app.task(**keyed, bind=True, name="keyed", shared=False)(gated)
    app.task(bind=True, name="plain", shared=False)(plain)
    return app


def stage_of(task: Any) -> Stage:
    """Return the stage, also in a spawned child, whose app is a copy without it."""
    found: Stage = getattr(task.app, "stage", None) or Stage.from_environment()
    return found


def note(task: Any, label: str, step: str, **facts: Any) -> None:
    """Write what a run has come to."""
    run = {"attempt": task.attempt, "fence": task.fence} if isinstance(task, ReliableTask) else {}
    stage_of(task).note(label, step=step, task_id=task.request.id, **run, **facts)


@signals.worker_process_shutdown.connect(weak=False)
def _note_child_end(pid: int, **_: Any) -> None:
    Stage.from_environment().note("child_end", child=pid)


def gated(self: Any, label: str) -> str:
    """Wait for the test, drain or not."""
    note(self, label, "start")
    stage_of(self).pass_gate(label)
    note(self, label, "end", draining=self.draining)
    return label


def watching(self: Any, label: str) -> None:
    """Look at the flag, and stop by itself."""
    note(self, label, "start", saved=self.checkpoint.load())
    while not stage_of(self).is_open(label):
        if self.draining:
            self.checkpoint.save("seen")
            note(self, label, "seen")
            self.stop_if_draining()
        time.sleep(0.02)
    note(self, label, "end")


def saving(self: Any, label: str) -> None:
    """Sleep in short naps until interrupted, and save a checkpoint then."""
    note(self, label, "start", saved=self.checkpoint.load())
    try:
        while not stage_of(self).is_open(label):
            time.sleep(0.02)
    except Draining:
        self.checkpoint.save("interrupted")
        note(self, label, "interrupted")
        raise
    note(self, label, "end")


def sleeping(self: Any, label: str) -> None:
    """Sleep in one long call, the first time."""
    note(self, label, "start")
    if not stage_of(self).is_open(label):
        time.sleep(STUCK)
    note(self, label, "end")


def stubborn(self: Any, label: str) -> None:
    """Swallow every interruption, the first time."""
    note(self, label, "start")
    until = time.monotonic() + STUCK
    while not stage_of(self).is_open(label) and time.monotonic() < until:
        try:
            time.sleep(0.02)
        except BaseException:  # noqa: BLE001  # what a careless body does
            note(self, label, "swallowed")
    note(self, label, "end")


def stuck_in_c(self: Any, label: str) -> None:
    """Wait in C for ever, without the interpreter's lock, the first time."""
    _stick(self, label, ctypes.CDLL(None))


def holding_the_gil(self: Any, label: str) -> None:
    """Wait in C for ever, holding the interpreter's lock, the first time."""
    _stick(self, label, ctypes.PyDLL(None))


def taking_the_gil(self: Any, label: str) -> None:
    """Hold the interpreter's lock for ever once the worker drains."""
    note(self, label, "start")
    while not self.draining:
        time.sleep(0.02)
    _stick_for_ever(ctypes.PyDLL(None))


def _stick(task: Any, label: str, library: Any) -> None:
    note(task, label, "start")
    if not stage_of(task).is_open(label):
        _stick_for_ever(library)
    note(task, label, "end")


def _stick_for_ever(library: Any) -> None:
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # a deadlock: no signal ends it, and it costs no processor


def limited(self: Any, label: str) -> None:
    """Wait for the rate limit."""
    note(self, label, "end")


def rejecting(self: Any, label: str) -> None:
    """Ask Celery's way to be run again soon."""
    note(self, label, "start")
    stage_of(self).pass_gate(label)
    note(self, label, "rejected")
    raise Reject("again", requeue=True)


def plain(self: Any, label: str) -> None:
    """Be no task of ours."""
    note(self, label, "start")
    stage_of(self).pass_gate(label)
    note(self, label, "end")


if "CR_STAGE" in os.environ:
    app = make_app(Stage.from_environment())
