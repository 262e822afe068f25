"""Replay many letters as a job of its own: paced, tried on a few first, stopped when it fails, and never lost.

What a run is to do and how far it has come lies in the store. So anybody may pause, resume or cancel it from anywhere, and
when the machine that works on it dies, the next one goes on: a letter that was sent back is no longer one that fits.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal

from celery_reliable.dead_letters.outgoing import Change
from celery_reliable.dead_letters.record import DeadLetter
from celery_reliable.dead_letters.search import Filter
from celery_reliable.dead_letters.service import DeadLetters
from celery_reliable.errors import ReplayRefused
from celery_reliable.stores.base import Job, Store
from celery_reliable.stores.notes import Note, Write, every

SHELF: Final = "replays"
KEPT: Final = 30 * 86_400.0
"""Seconds that the record of a run is kept after its last change: the audit trail."""

ALIVE: Final = 10.0
"""Seconds after its last word from which a run counts as left by its operator."""

_EACH: Final = 1.0  # seconds between two looks at wishes and outcomes
_WATCHED: Final = 200  # replayed jobs whose outcomes are looked at
_BATCH: Final = 100  # letters that go at once
_SHORT: Final = 0.1  # seconds' worth of letters that go at once when they are paced
_LOOKED_AT: Final = 50  # of them, at each look: a round trip each
_JUDGED_FROM: Final = 20  # outcomes from which a share of failures means something
_ORDERS: Final = ".order"

State = Literal["running", "paused", "cancelled", "stopped", "done"]
Wish = Literal["run", "pause", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does. ``rate`` is letters a second, None as fast as it goes.

    The first ``canary`` letters are sent, and the rest only when they have ended and at most the share ``max_failures`` of
    them has died again; the same share stops the run later.
    """

    wanted: Filter
    change: Change = Change()  # noqa: RUF009  # frozen
    rate: float | None = None
    canary: int = 0
    canary_timeout: float = 300.0
    max_failures: float = 0.05
    limit: int | None = None
    force: bool = False
    sign: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Plan:
        """Read what `asdict` wrote, in this or a later version."""
        wanted: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in facts["wanted"].items()
        }
        known: dict[str, Any] = _known(cls, facts)
        return cls(**{**known, "wanted": Filter(**wanted), "change": Change(**facts["change"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The record of a run: who began it, what it does, how far it is. Times are unix seconds by the store's clock.

    ``done`` letters were looked at: ``replayed`` or ``refused`` by reason. Of the replayed ones that were watched,
    ``succeeded`` are done and ``failed`` died again.
    """

    id: str
    who: str
    begun: float
    plan: Plan
    state: State = "running"
    why: str = ""
    total: int = 0
    done: int = 0
    replayed: int = 0
    succeeded: int = 0
    failed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0

    def is_left(self, *, now: float) -> bool:
        """Whether nobody works on it any more although it is not over."""
        return self.state in {"running", "paused"} and now - self.at > ALIVE

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in {"cancelled", "done"}

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_note(cls, note: Note) -> Run | None:
        """Decode; None when it is not ours."""
        try:
            facts = json.loads(note.value)
            return cls(**{**_known(cls, facts), "plan": Plan.of(facts["plan"])})
        except (ValueError, TypeError, KeyError):
            return None


class Runs:
    """The runs of one store, and the wishes of operators about them."""

    def __init__(self, store: Store) -> None:
        """Take the store."""
        self._store = store

    def now(self) -> float:
        """Return the store's time."""
        return self._store.now() / 1e6

    def begin(self, plan: Plan, *, who: str, total: int) -> Run:
        """Write a new run down."""
        run = Run(id=secrets.token_hex(4), who=who, begun=self.now(), plan=plan, total=total, at=self.now())
        self.write(run)
        return run

    def all(self) -> list[Run]:
        """Return every run that is kept, newest first."""
        found = (Run.from_note(note) for name, note in every(self._store.notes, SHELF).items() if _ORDERS not in name)
        return sorted((run for run in found if run is not None), key=lambda run: -run.begun)

    def find(self, run_id: str) -> Run | None:
        """Return one run."""
        note = self._store.notes.read(SHELF, [run_id]).get(run_id)
        return Run.from_note(note) if note else None

    def write(self, run: Run, *, expected: int | None = None) -> int | None:
        """Keep a run's record; None when somebody else has written it since."""
        write = Write(name=run.id, value=run.to_bytes(), ttl=KEPT, expected=expected)
        return self._store.notes.write(SHELF, [write])[0]

    def version(self, run_id: str) -> int:
        """Return the version of a run's record."""
        note = self._store.notes.read(SHELF, [run_id]).get(run_id)
        return note.version if note else 0

    def wish(self, run_id: str, wish: Wish) -> None:
        """Tell whoever works on a run what it is to do."""
        self._store.notes.write(SHELF, [Write(name=run_id + _ORDERS, value=wish.encode(), ttl=KEPT)])

    def wished(self, run_id: str) -> Wish:
        """Return what the run is to do."""
        name = run_id + _ORDERS
        note = self._store.notes.read(SHELF, [name]).get(name)
        found = note.value.decode() if note else "run"
        return found if found in {"run", "pause", "cancel"} else "run"  # type: ignore[return-value]  # just looked


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step of a run: the letter, and its new id or why it was refused."""

    letter: DeadLetter
    new_id: str = ""
    refused: ReplayRefused | None = None


class Runner:
    """Work on one run, in this process."""

    def __init__(
        self,
        store: Store,
        letters: DeadLetters,
        *,
        who: str,
        told: Callable[[Run, Replayed | None], object] = lambda _run, _step: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Take what is needed; ``told`` is called after each letter, and each second of a wait."""
        self._store, self._letters, self._who = store, letters, who
        self._runs = Runs(store)
        self._told, self._clock, self._sleep = told, clock, sleep
        self._watched: deque[tuple[Job, str]] = deque(maxlen=_WATCHED)
        self._looked = float("-inf")
        self._version: int | None = None

    def plan(self, plan: Plan) -> Iterator[Replayed]:
        """Say of each letter what would happen, and change nothing."""
        for letter in self._chosen(plan, until=None):
            try:
                how: dict[str, Any] = {"change": plan.change, "force": plan.force, "sign": plan.sign}
                self._letters.check_letter(letter, who=self._who, **how)
                yield Replayed(letter)
            except ReplayRefused as exc:
                yield Replayed(letter, refused=exc)

    def count(self, plan: Plan) -> int:
        """Count the letters that fit now."""
        return sum(1 for _ in self._chosen(plan, until=None))

    def work(self, run: Run) -> Run:
        """Work on a run until it is over, and return how it ended.

        What store or broker raise is passed on; the run is then as far as its record says, and may be resumed.
        """
        self._version = self._runs.version(run.id)
        run = self._noted(replace(run, state="running", why=""))
        letters, due = self._chosen(run.plan, until=run.begun), self._clock()
        while (run := self._obeyed(run)).state == "running":
            batch = list(itertools.islice(letters, _room(run)))
            if not batch:
                return self._noted(replace(run, state="done"))
            due = self._paced(due, len(batch), rate=run.plan.rate)
            tried, run = run.replayed, self._sent(run, batch)
            if tried < run.plan.canary <= run.replayed:
                run = self._tried(run)
        return self._noted(run)

    def _chosen(self, plan: Plan, *, until: float | None) -> Iterator[DeadLetter]:
        """Iterate over the letters that fit; those that died after the run began are not its business."""
        ends = [moment for moment in (plan.wanted.until, until) if moment is not None]
        wanted = replace(plan.wanted, until=min(ends, default=None))
        found = self._letters.search(wanted)
        return (
            found
            if plan.limit is None or until is not None
            else (one for one, _ in zip(found, range(plan.limit), strict=False))
        )

    def _paced(self, due: float, letters: int, *, rate: float | None) -> float:
        """Wait until letters are due; return when the next ones are."""
        now = self._clock()
        if rate and due > now:
            self._sleep(due - now)
        return max(due, now) + (letters / rate if rate else 0.0)

    def _sent(self, run: Run, batch: Sequence[DeadLetter]) -> Run:
        plan = run.plan
        how: dict[str, Any] = {"change": plan.change, "force": plan.force, "sign": plan.sign}
        answers = self._letters.replay_letters(batch, who=self._who, run=run.id, **how)
        for letter, answer in zip(batch, answers, strict=True):
            run = self._counted(run, letter, answer)
        return run

    def _counted(self, run: Run, letter: DeadLetter, answer: str | ReplayRefused) -> Run:
        if isinstance(answer, ReplayRefused):
            refused = Counter(run.refused) + Counter({answer.reason: 1})
            run = replace(run, done=run.done + 1, refused=dict(refused))
            self._told(run, Replayed(letter, refused=answer))
            return run
        if letter.job is not None:
            self._watched.append((letter.job, answer))
        run = replace(run, done=run.done + 1, replayed=run.replayed + 1)
        self._told(run, Replayed(letter, answer))
        return run

    # --- what became of those that were sent

    def _tried(self, run: Run) -> Run:
        """Wait until the canaries have ended."""
        ends = self._clock() + run.plan.canary_timeout
        while self._watched and run.state == "running":
            if self._clock() >= ends:
                left = len(self._watched)
                return replace(
                    run, state="stopped", why=f"{left} canaries have not ended after {run.plan.canary_timeout:g} s"
                )
            self._sleep(_EACH / 5)
            run = self._obeyed(run)
            self._told(run, None)
        return self._judged(run, least=1) if run.state == "running" else run

    def _settled(self, run: Run) -> Run:
        """Count the watched jobs that have ended."""
        succeeded = failed = 0
        for _ in range(min(len(self._watched), _LOOKED_AT)):
            job, new_id = self._watched.popleft()
            record = self._store.inspect(job)
            state = record.get("state", "")
            if state == "dead":
                failed += 1
            elif state == "done":
                succeeded += 1
            elif state in {"waiting", "running", ""}:
                self._watched.append((job, new_id))
        return replace(run, succeeded=run.succeeded + succeeded, failed=run.failed + failed)

    @staticmethod
    def _judged(run: Run, *, least: int = _JUDGED_FROM) -> Run:
        ended = run.succeeded + run.failed
        if ended < least or run.failed <= run.plan.max_failures * ended:
            return run
        why = f"{run.failed} of {ended} died again, more than {run.plan.max_failures:.0%}"
        return replace(run, state="stopped", why=why)

    # --- what others want

    def _obeyed(self, run: Run) -> Run:
        """Each second: look at outcomes and wishes, and write down how far the run is. A pause is waited out here."""
        if self._clock() - self._looked < _EACH:
            return run
        self._looked = self._clock()
        run = self._judged(self._settled(run))
        if run.state != "running":
            return run
        wish = self._runs.wished(run.id)
        while wish == "pause":
            run = self._noted(replace(run, state="paused"))
            self._told(run, None)
            self._sleep(_EACH)
            wish = self._runs.wished(run.id)
        return self._noted(replace(run, state="cancelled" if wish == "cancel" else "running"))

    def _noted(self, run: Run) -> Run:
        run = replace(run, at=self._runs.now())
        self._version = self._runs.write(run, expected=self._version)
        if self._version is None:
            raise ReplayRefused(
                f"replay {run.id} is worked on by somebody else now: nothing more is done here", reason="replayed"
            )
        return run


def _room(run: Run) -> int:
    """Return how many letters go at once: few when they are paced, and never beyond the canaries or the limit."""
    plan = run.plan
    most = _BATCH if plan.rate is None else max(1, min(_BATCH, int(plan.rate * _SHORT)))
    if plan.limit is not None:
        most = min(most, plan.limit - run.done)
    return min(most, plan.canary - run.replayed) if run.replayed < plan.canary else most


def _known(kind: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in facts.items() if name in names}
