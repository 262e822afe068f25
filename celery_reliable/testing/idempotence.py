"""Find the interleaving in which a task takes effect twice, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from celery_reliable.app_letters import known_letters_of
from celery_reliable.errors import ProcessKilled
from celery_reliable.runtime import runtime_of
from celery_reliable.testing.bench import Bench, Message, in_memory

if TYPE_CHECKING:
    from celery_reliable.stores.base import Store
    from celery_reliable.task import ReliableTask

__all__ = ["assert_idempotent"]

_STEPS: Final = frozenset({"claim", "save", "complete", "release", "bury"})
_MOST_DELIVERIES: Final = 50
_WHO: Final = "assert_idempotent"

Accident = Literal[
    "none",
    "killed before",
    "killed after",
    "killed each time before",
    "delivered twice at",
    "delivered again after",
    "frozen at",
]
_ACCIDENTS: Final[tuple[Accident, ...]] = ("killed before", "killed after", "delivered twice at", "frozen at")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What goes wrong, and at which step of the first delivery: its number from 1, and the verb."""

    accident: Accident = "none"
    step: int = 0
    verb: str = ""

    def __str__(self) -> str:
        """Say it in words."""
        if self.accident == "none":
            return "nothing goes wrong"
        end = ", until it is a dead letter, which is replayed" if self.kills_each_time else ""
        return f"{self.accident} step {self.step}, {self.verb}{end}"

    @property
    def kills_each_time(self) -> bool:
        """Whether every delivery is killed, and not the first alone."""
        return self.accident == "killed each time before"


def assert_idempotent(
    task: ReliableTask,
    *args: Any,
    effects: Callable[[], int],
    reset: Callable[[], object] | None = None,
    times: int = 1,
    **kwargs: Any,
) -> None:
    """Run a call again and again, each time with another accident, and count how often it takes effect.

    At every step between task and store (claim, checkpoint or ``once``, complete, release, bury) the worker is killed
    before it and after it, the message is delivered twice at once, and the worker is frozen until another one has taken
    over and finished. A call that is killed each time becomes a dead letter, which is replayed: it has another task id then,
    the same key, and what it saved. When it is done, its message arrives once more. Each time the call must take effect
    ``times`` times.

    ``effects`` counts the effects so far, as the outside world sees them: rows, mails, charges. ``reset`` is called
    before each scenario; give it when the outside world dedups by the job's key, which is the same in all of them.
    Raises AssertionError at the first scenario that doubles or loses an effect, with the steps that led there.

    Limits: a killed worker is an exception in this process, so ``finally`` blocks run. Effects are told from each other
    at store steps only: a body that takes two effects between two steps is not cut between them.

    .. versionadded:: 0.1
    """
    count = _Counter(effects=effects, reset=reset, times=times)
    seen = _play(task, args, kwargs, Scenario(), count)
    for scenario in _scenarios(seen):
        _play(task, args, kwargs, scenario, count)


def _scenarios(verbs: list[str]) -> Iterator[Scenario]:
    for number, verb in enumerate(verbs, 1):
        for accident in _ACCIDENTS:
            yield Scenario(accident, number, verb)
        if verb != "claim":  # without a claim no delivery counts
            yield Scenario("killed each time before", number, verb)
    yield Scenario("delivered again after", len(verbs), verbs[-1])


@dataclass(frozen=True, slots=True)
class _Counter:
    effects: Callable[[], int]
    reset: Callable[[], object] | None
    times: int

    def begin(self) -> int:
        if self.reset is not None:
            self.reset()
        return self.effects()


def _play(
    task: ReliableTask, args: tuple[Any, ...], kwargs: dict[str, Any], scenario: Scenario, count: _Counter
) -> list[str]:
    """Play one scenario from submission to end; return the steps of its first delivery."""
    before = count.begin()
    trace = _Trace(lambda: count.effects() - before)
    stage: list[_SteppedStore] = []

    def around(store: Store) -> Any:
        stage.append(_SteppedStore(store, scenario, trace))
        return stage[0]

    with in_memory(task.app, hooks=(trace.event,), around=around) as bench:
        task.apply_async(args, kwargs)
        (message,) = [one for one in bench.submitted if one.task == task.name][:1]
        stage[0].prepare(bench, message)
        _run_to_the_end(bench, trace)
        if scenario.kills_each_time:
            stage[0].rest()
            _replay(bench, trace)
        if scenario.accident == "delivered again after":
            trace.note(f"a second copy arrives after the end; it is {bench.deliver(message)}")
        for exc in bench.failures:
            trace.note(f"the job failed: {exc!r}")
    found = count.effects() - before
    if found != count.times:
        raise AssertionError(_report(task, scenario, trace, found=found, times=count.times))
    return stage[0].steps


def _run_to_the_end(bench: Bench, trace: _Trace) -> None:
    lease = runtime_of(bench.app).settings.lease_ttl
    for _ in range(_MOST_DELIVERIES):
        if not bench.waiting:
            return
        message = min(bench.waiting, key=lambda one: one.due)
        bench.elapse(message.due - bench.clock())
        fate = bench.deliver(message)
        trace.note(f"the message is {fate}" if fate != "killed" else "the worker is gone")
        if fate == "killed":
            bench.elapse(2 * lease)
            trace.note(f"{2 * lease:g} s later its lease has ended, the message is delivered again")
    trace.note(f"the job did not end in {_MOST_DELIVERIES} deliveries")


def _replay(bench: Bench, trace: _Trace) -> None:
    letters = known_letters_of(bench.app)
    for letter in list(letters.search()):
        bench.failures.clear()
        trace.note(
            f"it is a dead letter: {letter.reason}; an operator replays it, under another task id and the same key"
        )
        letters.replay(letter.id, who=_WHO, sign=True)  # a bench seals nothing
        _run_to_the_end(bench, trace)


class _Trace:
    """What happened, line by line, the effects among it."""

    def __init__(self, effects: Callable[[], int]) -> None:
        self.lines: list[str] = []
        self._effects = effects
        self._known = 0

    def note(self, line: str) -> None:
        found = self._effects()
        if found != self._known:
            self.lines.append(f"  -> effects: {found}")
            self._known = found
        self.lines.append(line)

    def event(self, name: str, fields: dict[str, Any]) -> None:
        told = {
            key: fields[key] for key in ("attempt", "delivery", "wait", "delay", "reason", "error") if key in fields
        }
        self.note(f"event {name}" + "".join(f" {key}={value}" for key, value in told.items()))


class _SteppedStore:
    """The store, with an accident at one step of the first delivery, or from there on."""

    def __init__(self, store: Store, scenario: Scenario, trace: _Trace) -> None:
        self._store, self._scenario, self._trace = store, scenario, trace
        self.steps: list[str] = []
        self._deliveries: tuple[Bench, Message] | None = None
        self._resting = False

    def rest(self) -> None:
        """Do nothing more to those who come."""
        self._resting = True

    def prepare(self, bench: Bench, message: Message) -> None:
        """Begin to count steps: the submission is over, and this is its message."""
        self._deliveries = (bench, message)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in _STEPS or self._deliveries is None:
            return verb
        return self._stepped(name, verb, *self._deliveries)

    def _stepped(self, name: str, verb: Callable[..., Any], bench: Bench, message: Message) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.steps.append(name)
            hit = self._is_hit(name)
            if hit:
                self._before(name, bench, message)
            answer = verb(*args, **kwargs)
            self._trace.note(f"{name}: {type(answer).__name__}")
            if hit and self._scenario.accident == "killed after":
                self._trace.note(f"KILLED after {name}")
                raise ProcessKilled
            return answer

        return call

    def _is_hit(self, name: str) -> bool:
        if self._scenario.kills_each_time:
            return not self._resting and name == self._scenario.verb and len(self.steps) >= self._scenario.step
        return self._scenario.step == len(self.steps)

    def _before(self, name: str, bench: Bench, message: Message) -> None:
        match self._scenario.accident:
            case "killed before" | "killed each time before":
                self._trace.note(f"KILLED before {name}")
                raise ProcessKilled
            case "delivered twice at":
                self._trace.note(f"a second copy arrives before {name}")
                self._trace.note(f"it is {bench.deliver(message)}")
            case "frozen at":
                self._trace.note(f"FROZEN before {name} until the lease has ended; another worker gets the message")
                bench.elapse(2 * runtime_of(bench.app).settings.lease_ttl)
                self._trace.note(f"it is {bench.deliver(message)}; the frozen worker goes on with {name}")


def _report(task: ReliableTask, scenario: Scenario, trace: _Trace, *, found: int, times: int) -> str:
    trace.note("the end")
    steps = "\n".join(f"  {number:>3}  {line}" for number, line in enumerate(trace.lines, 1))
    return (
        f"{task.name} took effect {found} times, expected {times}, when: {scenario}\n{steps}\n"
        "What helps: hand self.idempotency_key to an API that takes one (self.request.id is another one after a replay), "
        "wrap the step in self.once(name, fn), or commit the effect under the job's key and fence."
    )
