"""The tasks of the integration tests. Each notes in the stage's ledger what it did."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from celery import Celery, current_task, signals

from celery_reliable import Permanent, ReliableTask, Transient
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.runtime import forget_runtime, runtime_of
from tests.integration.apps.stage import Stage

# Workers of these tests do not look for neighbours: it takes a second at each start.
QUICK = ("--without-mingle", "--without-gossip")

LEASE = 3.0  # the least

# A broker that gives the messages of a silent worker to another one after two seconds.
RESTORING: dict[str, Any] = {"broker_transport_options": {"visibility_timeout": 2, "unacked_restore_interval": 1}}

CONF: dict[str, Any] = {
    "reliable_lease_ttl": LEASE,
    "reliable_retry_backoff": 0.1,
    "broker_transport_options": {"unacked_restore_interval": 1},
}


def make_app(stage: Stage, *, task_cls: bool = False, **conf: Any) -> Celery:
    """Return an app with all tasks below, in the worker as in the test.

    ``task_cls``: the app makes every task reliable; else each task names its base. ``conf`` is for this process alone.
    """
    kinds = {"task_cls": "celery_reliable:ReliableTask"} if task_cls else {}
    app = Celery("jobs", broker=stage.broker, backend=stage.backend, set_as_current=False, **kinds)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({**CONF, "reliable_store_url": stage.store, "reliable_event_hooks": (stage.hook,)})
    app.conf.update({**stage.conf, **conf})
    app.stage = stage  # for the tasks
    base = {} if task_cls else {"base": ReliableTask}
    for body, options in TASKS:
        app.task(**base, **{"bind": True, "name": body.__name__, "shared": False, **options})(body)
    app.register_task(Tally())
    return app


@contextlib.contextmanager
def client(stage: Stage, *, make: Callable[..., Celery] = make_app, **conf: Any) -> Iterator[Celery]:
    """An app to submit with, closed at the end."""
    app = make(stage, **conf)
    try:
        yield app
    finally:
        forget_runtime(app)
        # A result that is collected later would look for a server that is gone (Celery 5.7, `AsyncResult.__del__`).
        if hasattr(app.backend, "result_consumer"):
            app.backend.result_consumer.subscribed_to.clear()
        app.close()


def letter(app: Celery, stage: Stage, key: str) -> DeadLetter:
    """Return the only dead letter of a job, once it is there."""
    (buried,) = stage.wait_event("buried", key)
    found = runtime_of(app).store.letter(buried["letter_id"])
    assert found is not None
    return DeadLetter.from_bytes(found[1])


def stage_of(task: Any) -> Stage:
    """Return the stage of a running task."""
    stage: Stage = task.app.stage
    return stage


def note(task: Any, label: str, **facts: Any) -> None:
    """Write who runs."""
    request = task.request
    run = {"attempt": task.attempt, "fence": task.fence, "key": task.idempotency_key}
    stage_of(task).note(label, task=task.name, task_id=request.id, retries=request.retries, **run, **facts)


@signals.task_postrun.connect(weak=False)
def _meet_postrun(task: Any, task_id: str, **_: Any) -> None:
    stage = getattr(task.app, "stage", None)
    if stage is not None:
        stage.meet("postrun", task_id)


@signals.task_failure.connect(weak=False)
def _note_failure(sender: Any, task_id: str, exception: BaseException, **_: Any) -> None:
    stage = getattr(sender.app, "stage", None)
    if stage is not None:
        stage.note(f"failure:{task_id}", error=type(exception).__name__)


# --- effects


def add(self: Any, x: int, label: str, y: int = 1) -> int:
    """Note a sum, and return it."""
    note(self, label, x=x, y=y)
    return x + y


def gather(self: Any, numbers: list[int], label: str) -> int:
    """Note and return the sum of a chord's results."""
    note(self, label, numbers=numbers)
    return sum(numbers)


def told(self: Any, task_id: str) -> None:
    """Note that a task failed: an errback that is sent as a message."""
    note(self, f"told:{task_id}")


def informed(request: Any, exc: BaseException, traceback: Any) -> None:
    """Note that a task failed: an errback that Celery calls in the process of the failed task."""
    stage_of(current_task).note(f"informed:{request.id}", error=type(exc).__name__)


def held(self: Any, label: str, gate: str, result: Any = None) -> Any:
    """Note the start, wait at a gate, note the end."""
    note(self, label, step="start")
    stage_of(self).pass_gate(gate)
    note(self, label, step="end")
    return result


def fenced(self: Any, label: str) -> int:
    """Note the start, wait at the gate of this run (``label:1`` for the first), note the end, return the fence."""
    note(self, label, step="start")
    run = len([entry for entry in stage_of(self).entries(label) if entry["step"] == "start"])
    stage_of(self).pass_gate(f"{label}:{run}")
    note(self, label, step="end")
    return int(self.fence)


def busy(self: Any, label: str, seconds: float) -> str:
    """Take some time."""
    note(self, label, step="start")
    time.sleep(seconds)
    note(self, label, step="end")
    return label


def slotted(self: Any, label: str) -> None:
    """Note for which due time beat fired it."""
    note(self, label, slot=self.slot)


# --- identity


def order(self: Any, order_id: int, label: str, amount: int = 1) -> str:
    """Carry a key made by a template."""
    note(self, label, amount=amount)
    return f"{label}:{amount}"


def pair(self: Any, x: int, y: int = 2, label: str = "pair") -> int:
    """Carry a key made of all arguments."""
    note(self, label, x=x, y=y)
    return x + y


def customer(self: Any, name: str, label: str) -> str:
    """Carry a key made by a callable."""
    note(self, label, name=name)
    return name


def unbound(label: Any) -> Any:
    """Take no self, and hand on what was given."""
    note(current_task, str(label))
    return label


class Tally(ReliableTask):
    """A task written as a class."""

    name = "tally"
    idempotency_key = "tally:{what}"

    def run(self, what: str, label: str) -> str:
        """Note it."""
        note(self, label, what=what)
        return what


def parent(self: Any, label: str, children: int, fails: int = 0) -> int:
    """Submit equal children, then fail for the first attempts."""
    for _ in range(children):
        self.app.tasks["add"].delay(1, f"{label}:child")
    note(self, label)
    stage_of(self).meet("body", label)
    if self.attempt <= fails:
        raise Transient("again")
    return self.attempt


def staged_parent(self: Any, label: str) -> None:
    """Submit the same child before and after a checkpoint, and fail once after both."""
    child = self.app.tasks["add"]
    if self.checkpoint.load(0) == 0:
        child.delay(1, f"{label}:child")
        self.checkpoint.save(1)
    child.delay(1, f"{label}:child")
    note(self, label)
    if self.attempt == 1:
        raise Transient("again")


def swap(self: Any, label: str) -> None:
    """Be replaced by another task."""
    note(self, label)
    try:
        raise self.replace(self.app.tasks["add"].s(10, f"{label}:new"))
    finally:
        stage_of(self).meet("body", label)


def swap_away(self: Any, label: str, queue: str) -> None:
    """Be replaced by a task on another queue."""
    note(self, label)
    raise self.replace(self.app.tasks["add"].s(10, f"{label}:new").set(queue=queue))


# --- errors


def flaky(self: Any, label: str, fails: int, retry_after: float | None = None) -> int:
    """Fail for the first attempts."""
    note(self, label)
    stage_of(self).meet("body", label)
    if self.attempt <= fails:
        raise Transient("again", retry_after=retry_after)
    return int(self.attempt)


def hopeless(self: Any, label: str) -> None:
    """Say that trying again cannot help."""
    note(self, label)
    raise Permanent("never")


def broken(self: Any, label: str) -> None:
    """Raise what the rules take for a mistake in the code."""
    note(self, label)
    raise LookupError(f"no {label}")


def held_then_failing(self: Any, label: str, gate: str, *, fails: int | None = None) -> int:
    """Wait at a gate, then fail for good, or for the first attempts."""
    note(self, label)
    stage_of(self).pass_gate(gate)
    if fails is None:
        raise LookupError("a mistake in the code")
    if self.attempt <= fails:
        raise Transient("again")
    return int(self.attempt)


def later(self: Any, label: str, times: int, seconds: float = 0.1) -> int:
    """Snooze a number of times, counted in the ledger."""
    note(self, label)
    if len(stage_of(self).entries(label)) <= times:
        self.snooze(seconds)
    return int(self.attempt)


def asking(self: Any, label: str, fails: int, **options: Any) -> int:
    """Ask Celery's way for another attempt."""
    note(self, label)
    if self.attempt <= fails:
        raise self.retry(exc=LookupError("not yet"), **options)
    return int(self.attempt)


def auto(self: Any, label: str, fails: int) -> int:
    """Leave it to autoretry_for."""
    note(self, label)
    return 1 // max(self.attempt - fails, 0)


def fetch(self: Any, label: str, url: str) -> str:
    """Ask a server."""
    import requests  # noqa: PLC0415  # most workers never do, and it takes a tenth of their start

    note(self, label)
    answer = requests.get(url, timeout=5)
    answer.raise_for_status()
    return answer.text


def suicidal(self: Any, label: str, times: int) -> int:
    """Kill the own process a number of times, as the OOM killer would."""
    note(self, label)
    if len(stage_of(self).entries(label)) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(self.attempt)


def endless(self: Any, label: str) -> None:
    """Run into the hard time limit."""
    note(self, label)
    time.sleep(60)


def raising(self: Any, label: str, name: str) -> None:
    """Raise what a worker does not expect."""
    note(self, label)
    raise {"MemoryError": MemoryError, "SystemExit": SystemExit, "GeneratorExit": GeneratorExit}[name](label)


# --- results


def returning(self: Any, label: str, what: str, size: int = 0) -> Any:
    """Return something."""
    note(self, label)
    return {"object": object(), "text": "x" * size, "none": None, "frozen objects": gc.get_freeze_count()}[what]


_own: dict[str, Any] = {"bind": False}

TASKS: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
    (add, {}),
    (gather, {}),
    (told, {}),
    (informed, _own),
    (held, {}),
    (fenced, {}),
    (busy, {}),
    (slotted, {}),
    (order, {"idempotency_key": "order:{order_id}"}),
    (pair, {"idempotency_key": "arguments"}),
    (customer, {"idempotency_key": lambda name, label: f"customer:{name.lower()}", "fingerprint_args": ("label",)}),
    (unbound, _own),
    (parent, {}),
    (staged_parent, {}),
    (swap, {}),
    (swap_away, {}),
    (flaky, {}),
    (hopeless, {}),
    (broken, {}),
    (held_then_failing, {}),
    (later, {"max_retries": 0}),
    (asking, {}),
    (auto, {"autoretry_for": (ZeroDivisionError,), "retry_kwargs": {"max_retries": 2}}),
    (fetch, {}),
    (suicidal, {"max_deliveries": 2}),
    (endless, {"time_limit": 1, "max_deliveries": 2}),
    (raising, {}),
    (returning, {}),
)


def variant(body: Any, name: str) -> Callable[..., Any]:
    """Return a body again under another name, for a task with other options."""
    return types.FunctionType(body.__code__, body.__globals__, name, body.__defaults__)


TASKS += (
    (variant(customer, "customer_of"), {"idempotency_key": lambda name, label: name}),
    (variant(order, "order_refused"), {"idempotency_key": "refused:{order_id}", "on_conflict": "raise"}),
    (variant(order, "order_newest"), {"idempotency_key": "newest:{order_id}", "on_conflict": "replace"}),
    (variant(flaky, "impatient"), {"retry_for": 1.5, "max_retries": 1000, "retry_backoff": 0.2}),
    (variant(flaky, "twice"), {"max_retries": 1}),
)
