"""Run reliable tasks in this process: no broker, no server, no worker, but the real claims, verdicts and dead letters.

    with in_memory(app) as bench:
        checkout(order)                       # the code under test calls charge.delay(12)
        assert_submitted(charge, 12)
        bench.drain_all()                     # runs it, and whatever it leads to, retries included

Messages go through JSON as they would on the way. Time is the bench's own: a retry is run at once, as if its delay had
passed. Limits: one message at a time; chords need a real backend; signals and time limits need a real worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from celery.exceptions import Ignore, Reject, Retry
from kombu.utils import json as kombu_json

from celery_reliable import internals
from celery_reliable.errors import ConfigurationError, ProcessKilled
from celery_reliable.events import Events
from celery_reliable.execution import Execution
from celery_reliable.runtime import replaced_runtime, runtime_of
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.task import ReliableTask
from celery_reliable.worker.waiting import GiveBack, Hold

if TYPE_CHECKING:
    from celery import Celery, Task
    from celery.result import AsyncResult

    from celery_reliable.events import Hook
    from celery_reliable.stores.base import Store

__all__ = ["Bench", "Message", "assert_submitted", "drain_all", "in_memory"]

_MOST_DELIVERIES = 1000
_START = 1_800_000_000.0  # seconds since the epoch
_ADDRESSED = {"link": "callbacks", "link_error": "errbacks", "chain": "chain", "group_id": "group"}

Fate = Literal["acked", "kept", "killed"]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        """Start somewhere in 2027."""
        self.seconds = _START

    def __call__(self) -> float:
        """Tell the time in seconds since the epoch."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class Message:
    """One call on its way: what a worker would receive, due at ``due`` by the bench's clock."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    task_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    due: float = 0.0


class Bench:
    """The messages of one app, its store in memory, and its clock. Made by `in_memory`."""

    def __init__(self, app: Celery, *, store: Store, clock: Clock) -> None:
        """Begin with nothing on its way."""
        self.app, self.store, self.clock = app, store, clock
        self.waiting: list[Message] = []
        self.submitted: list[Message] = []
        """Every call that was published, in order, also those that have run since."""
        self.failures: list[Exception] = []
        """The errors of jobs that became dead letters, in order."""

    def send(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> AsyncResult[Any]:
        """Stand in for `Celery.send_task`: keep the message. Raises what the serializer raises."""
        args, kwargs = kombu_json.loads(kombu_json.dumps((tuple(args or ()), dict(kwargs or {}))))
        plain = {key: kombu_json.loads(kombu_json.dumps(options[key])) for key in _ADDRESSED if options.get(key)}
        message = Message(
            name,
            tuple(args),
            kwargs,
            options["task_id"],
            {**plain, "headers": options.get("headers") or {}, "retries": options.get("retries", 0)},
            self.clock() + float(options.get("countdown") or 0),
        )
        self.waiting.append(message)
        self.submitted.append(message)
        return self.app.AsyncResult(message.task_id)

    def drain_all(self) -> None:
        """Run messages in the order in which they are due until none is left; the clock goes along.

        Raises AssertionError when they do not come to an end. Failures are kept in `failures`.
        """
        for _ in range(_MOST_DELIVERIES):
            if not self.waiting:
                return
            message = min(self.waiting, key=lambda one: one.due)
            self.elapse(message.due - self.clock())
            self.deliver(message)
        self._refuse_to_go_on()

    def run_due(self) -> None:
        """Run what is due at this moment, and what that leads to at once; the clock stands."""
        for _ in range(_MOST_DELIVERIES):
            due = [message for message in self.waiting if message.due <= self.clock()]
            if not due:
                return
            self.deliver(min(due, key=lambda one: one.due))
        self._refuse_to_go_on()

    def elapse(self, seconds: float) -> None:
        """Let time pass under a fleet that is alive: other workers' pulse goes on."""
        pulse = runtime_of(self.app).settings.lease_ttl
        ends = self.clock() + seconds
        while self.clock() < ends:
            self.clock.seconds = min(self.clock() + pulse / 3, ends)
            self.store.renew([], pulse_ttl=pulse)

    def deliver(self, message: Message) -> Fate:
        """Let a worker have a message: it is acked, or waits again when the worker keeps it or is killed."""
        with contextlib.suppress(ValueError):  # a copy of a message is not among those that wait
            self.waiting.remove(message)
        task = self.app.tasks[message.task]
        task.push_request(**_request(message))
        try:
            with internals.current(task):
                self._run(task, message)
        except (ProcessKilled, SystemExit):
            self._keep(message, 0.0)
            return "killed"
        except Reject as exc:
            self._keep(message, _wait(exc))
            return "kept"
        except (Retry, Ignore):
            pass
        except Exception as exc:  # noqa: BLE001  # what a task raises at last is what the caller asks about
            self.failures.append(exc)
        finally:
            task.pop_request()
        return "acked"

    def _refuse_to_go_on(self) -> NoReturn:
        msg = f"{_MOST_DELIVERIES} messages ran and there are more: {sorted({one.task for one in self.waiting})}"
        raise AssertionError(msg)

    def _run(self, task: Task, message: Message) -> None:
        if isinstance(task, ReliableTask):
            Execution(task, message.args, dict(message.kwargs)).perform()
        else:
            task.run(*message.args, **message.kwargs)

    def _keep(self, message: Message, seconds: float) -> None:
        self.waiting.append(replace(message, due=self.clock() + seconds))


def _wait(exc: Reject) -> float:
    match exc.reason:
        case Hold(seconds=seconds):
            return seconds
        case GiveBack():
            return 0.0
    raise exc


def _request(message: Message) -> dict[str, Any]:
    """Return the request that a worker would make of the message."""
    named = {name: message.options.get(option) for option, name in _ADDRESSED.items()}
    lists = {name: _as_list(value) for name, value in named.items() if name != "group"}
    headers = dict(message.options["headers"])
    return {
        **headers,
        "id": message.task_id,
        "task": message.task,
        "args": message.args,
        "kwargs": message.kwargs,
        "retries": message.options["retries"],
        "headers": headers.get("headers") or headers,  # a tracer's own hide the others, as in a worker
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "called_directly": False,
        "is_eager": False,
        "group": named["group"],
        **lists,
    }


def _as_list(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, list | tuple) else [value]


# --- the bench of a test


_bench: ContextVar[Bench | None] = ContextVar("celery_reliable_bench", default=None)


@contextlib.contextmanager
def in_memory(
    app: Celery, *, hooks: tuple[Hook, ...] = (), around: Callable[[Store], Store] | None = None
) -> Iterator[Bench]:
    """Give an app a bench for a block of code; what was set before is back after it.

    ``hooks`` are called with every event, as those of ``reliable_event_hooks`` are. ``around`` may put something of its
    own between the tasks and the store. ``task_always_eager`` is off inside.
    """
    app.finalize()
    clock = Clock()
    store: Store = MemoryStore(clock=clock)
    bench = Bench(app, store=around(store) if around else store, clock=clock)
    eager, app.conf.task_always_eager = app.conf.task_always_eager, False
    vars(app)["send_task"] = bench.send  # where Celery's tasks and canvas come by; an attribute of this app alone
    reset = _bench.set(bench)
    try:
        with replaced_runtime(app, store=bench.store, events=Events(hooks)):
            yield bench
    finally:
        _bench.reset(reset)
        del vars(app)["send_task"]
        app.conf.task_always_eager = eager


def drain_all() -> None:
    """Run everything that was submitted in the `in_memory` block around this call; see `Bench.drain_all`."""
    _current().drain_all()


def assert_submitted(task: Task, *args: Any, **kwargs: Any) -> Message:
    """Return the only submission of this task with these arguments in the `in_memory` block around this call.

    Arguments are bound to the task's signature: ``charge.delay(12)`` is found by ``order_id=12``. Raises AssertionError
    that tells what was submitted instead.
    """
    sent = [message for message in _current().submitted if message.task == task.name]
    wanted = _bound(task, args, kwargs)
    found = [message for message in sent if _bound(task, message.args, message.kwargs) == wanted]
    if len(found) == 1:
        return found[0]
    others = "".join(f"\n  {_shown(message)}" for message in _current().submitted) or " nothing"
    msg = f"expected one submission of {task.name} with {wanted}, found {len(found)}; submitted was:{others}"
    raise AssertionError(msg)


def _bound(task: Any, args: Any, kwargs: Any) -> Any:  # Any: plain tasks have no signature of their own
    signature = getattr(task, "signature_of_run", None)
    if signature is None:
        return tuple(args), dict(kwargs)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return kombu_json.loads(kombu_json.dumps(dict(bound.arguments)))


def _shown(message: Message) -> str:
    named = (f"{name}={value!r}" for name, value in message.kwargs.items())
    return f"{message.task}({', '.join([*map(repr, message.args), *named])})"


def _current() -> Bench:
    bench = _bench.get()
    if bench is None:
        msg = "no bench: expected this call inside a block of `with in_memory(app):`"
        raise ConfigurationError(msg)
    return bench
