"""Tell the life of one job in order, from everything that is kept of it.

Its record, its ledger entry, its dead letters, its trail (`celery_reliable.trails`) and what the result backend says are
read by key: a dozen round trips, however many jobs there are. Only a task id that none of them knows is looked for in all
dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from celery_reliable import heartbeats, keys, trails
from celery_reliable.dead_letters import DeadLetter, letter_id_of
from celery_reliable.dead_letters.record import reliable_header
from celery_reliable.payloads import Envelope
from celery_reliable.stores.base import Job
from celery_reliable.trails import Line

if TYPE_CHECKING:
    from celery_reliable.stores.base import Store

_HOUR: Final = 3_600_000_000  # microseconds
_HOURS: Final = 26  # in which the record of a task id may lie, by the hour of its submission
_TOLERANCE: Final = 1  # milliseconds, of two roundings of one time
_LIVES: Final = range(-2, 11)
"""Lives whose letters are looked for: -1 and -2 are those of messages that had no claim."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the result backend knows of a task id: Celery's state, and when it was written, in unix seconds."""

    state: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened, in words. ``at`` is unix seconds; ``times`` how often it had been by then."""

    at: float
    event: str
    words: str
    place: str = ""
    task_id: str = ""
    times: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Life:
    """All that is known of a job. ``state`` is its state now, ``now`` the same in words."""

    asked: str
    key: str
    task: str
    task_ids: tuple[str, ...]
    state: str
    now: str
    record: Mapping[str, str]
    moments: tuple[Moment, ...]
    letters: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(slots=True)
class _Known:
    """What was found on the way."""

    key: str
    ids: dict[str, None]
    record: Mapping[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    is_cut: bool = False
    entries: list[Envelope] = field(default_factory=list)
    letters: dict[str, DeadLetter] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.record or self.lines or self.entries or self.letters)


class Explaining:
    """Tell lives. ``outcome`` asks the result backend about a task id; None: it knows nothing, or keeps nothing."""

    def __init__(self, store: Store, *, outcome: Callable[[str], Outcome | None]) -> None:
        """Take where to look."""
        self._store = store
        self._outcome = outcome

    def life(self, asked: str) -> Life | None:
        """Return the life of the job that has this task id or key; None when nothing is known of it.

        Raises `StoreError` as the store does.
        """
        known = self._look(trails.key_of(self._store.notes, asked) or asked, asked)
        if not known and (letter := self._letter_of(asked)) is not None:
            known = self._look(letter.key or letter.task_id, asked)
            known.letters[letter.id] = letter
        self._ask(known)
        return self._told(known, asked) if known or known.outcomes else None

    # --- looking

    def _look(self, key: str, asked: str) -> _Known:
        known = _Known(key, dict.fromkeys(name for name in (asked,) if name != key))
        known.record = self._record(key)
        known.lines = trails.lines_of(self._store.notes, {key, asked})
        known.is_cut = bool(known.lines) and trails.is_cut(self._store.notes, {key, asked})
        known.ids |= dict.fromkeys(filter(None, [known.record.get("task_id", ""), *_ids_of(known.lines)]))
        wanted = [letter_id_of(name, life=life) for name in {key, asked} for life in _LIVES]
        wanted += [str(line.facts["letter_id"]) for line in known.lines if line.facts.get("letter_id")]
        known.letters = {letter.id: letter for name in dict.fromkeys(wanted) if (letter := self._letter(name))}
        for letter in known.letters.values():
            known.ids |= dict.fromkeys([letter.task_id, *(entry.new_id for entry in letter.replays)])
        others = [name for name in known.ids if name not in {key, asked}]
        known.lines = sorted([*known.lines, *trails.lines_of(self._store.notes, others)], key=lambda line: line.at)
        known.entries = [entry for name in dict.fromkeys([key, *known.ids]) if (entry := self._entry(key, name))]
        return known

    def _record(self, key: str) -> Mapping[str, str]:
        """Find the record: beside those of declared keys, or in the hour of its submission."""
        found = self._store.inspect(Job(key, "declared"))
        now = self._store.now()
        hours = iter(range(_HOURS))
        while not found and (hour := next(hours, None)) is not None:
            found = self._store.inspect(Job(key, "own", now - hour * _HOUR))
        return found

    def _entry(self, key: str, task_id: str) -> Envelope | None:
        raw = self._store.entry(Job(key), task_id=task_id)
        try:
            return Envelope.from_bytes(raw) if raw else None
        except ValueError:
            return None  # of another version

    def _letter(self, letter_id: str) -> DeadLetter | None:
        found = self._store.letter(letter_id)
        return DeadLetter.read(found[1]) if found else None

    def _letter_of(self, task_id: str) -> DeadLetter | None:
        """Look through all letters for a task id."""
        cursor = ""
        while True:
            page = self._store.letters(cursor)
            for _, _, body in page.letters:
                letter = DeadLetter.read(body) if task_id.encode() in body else None
                if letter is not None and task_id in _ids_in(letter):
                    return letter
            cursor = page.cursor
            if not cursor:
                return None

    def _ask(self, known: _Known) -> None:
        answers = {name: self._outcome(name) for name in dict.fromkeys([known.key, *known.ids])}
        known.outcomes = {name: answer for name, answer in answers.items() if answer is not None}

    # --- telling

    def _told(self, known: _Known, asked: str) -> Life:
        moments = sorted(_moments(known), key=lambda moment: moment.at)
        tasks = [letter.task for letter in known.letters.values()] + [entry.task for entry in known.entries]
        state = known.record.get("state") or _state_without_record(known)
        return Life(
            asked=asked,
            key=known.key,
            task=next(filter(None, [*tasks, *(line.task for line in known.lines)]), ""),
            task_ids=tuple(known.ids) or (known.key,),
            state=state,
            now=self._now_words(known, state),
            record=known.record,
            moments=tuple(moments),
            letters=tuple(known.letters),
        )

    def _now_words(self, known: _Known, state: str) -> str:
        record = known.record
        if state == "running":
            return f"running, attempt {record.get('attempt', '?')}, in {self._worker_of(record.get('holder', ''))}"
        if state == "waiting" and record:
            return f"waiting for attempt {record.get('attempt', '1')}"
        if state == "dead":
            return f"dead, by letter {record.get('letter_id') or next(iter(known.letters), '?')}"
        if state == "over":
            return f"over: {record.get('reason', '?')}"
        return _STATES.get(state, state)

    def _worker_of(self, token: str) -> str:
        owner = keys.owner_of(token)
        note = self._store.notes.read(heartbeats.SHELF, [owner]).get(owner) if owner else None
        try:
            sign = heartbeats.LifeSign.from_json(note.value) if note else None
        except ValueError:
            sign = None
        return f"worker {sign.node} (pid {sign.process.pid})" if sign else "a worker that gives no sign of life"


def _moments(known: _Known) -> Iterator[Moment]:
    yield from _submissions(known)
    if known.is_cut:
        yield _moment(known.lines[0].at, "left_out", {}, task_id="")
    # noted when it was done, and by then the replayed job may have ended: what counts is when it began
    begun = {entry.new_id: entry.when for letter in known.letters.values() for entry in letter.replays}
    for line in known.lines:
        at = begun.get(line.task_id, line.at) if line.event == "letter_replayed" else line.at
        yield replace(_of_line(line), at=at)
    told = {str(line.facts.get("letter_id")) for line in known.lines if line.event == "buried"}
    replayed = {line.task_id for line in known.lines if line.event == "letter_replayed"}
    for letter in known.letters.values():
        if letter.id not in told:
            yield _burial(letter)
        for entry in letter.replays:
            if entry.new_id not in replayed:
                facts = {"letter_id": letter.id, "by": entry.who}
                yield _moment(entry.when, "letter_replayed", facts, task_id=entry.new_id)
    if not any(line.event == "recovered" for line in known.lines):
        for task_id, outcome in known.outcomes.items():
            if outcome.at is not None and outcome.state == "SUCCESS":
                yield _moment(outcome.at, "done", {}, task_id=task_id)


def _submissions(known: _Known) -> Iterator[Moment]:
    """Yield each submission whose time is known: by a later claim, by its ledger entry, or by its letter."""
    stamps: dict[int, str] = {}
    for line in known.lines:
        stamps.setdefault(round(float(line.facts.get("submitted") or 0) * 1000), line.task_id or known.key)
    for entry in known.entries:
        stamps.setdefault(round(int(reliable_header(entry).get("s") or 0) / 1000), entry.task_id)
    for letter in known.letters.values():
        stamps.setdefault(round(letter.stamp / 1000), letter.task_id)
    replays = {round(entry.when * 1000) for letter in known.letters.values() for entry in letter.replays}
    for stamp, task_id in stamps.items():
        if stamp and not any(abs(stamp - one) <= _TOLERANCE for one in replays):
            yield _moment(stamp / 1000, "submitted", {}, task_id=task_id)


def _burial(letter: DeadLetter) -> Moment:
    place = f"{letter.worker.host}:{letter.worker.pid}" if letter.worker.host else ""
    return replace(_moment(letter.last_failure, "buried", letter.facts(), task_id=letter.task_id), place=place)


def _of_line(line: Line) -> Moment:
    words = _words(line.event, line.facts)
    return Moment(line.at, line.event, words, line.place, line.task_id, line.times, line.facts)


def _moment(at: float, event: str, facts: Mapping[str, Any], *, task_id: str) -> Moment:
    return Moment(at, event, _words(event, facts), task_id=task_id, facts=facts)


class _Facts(dict[str, str]):
    """Facts as texts; what an older version did not note is a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"


def _words(event: str, facts: Mapping[str, Any]) -> str:
    texts = _Facts({name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in facts.items()})
    words = _WORDS.get(event, event).format_map(texts)
    return f"{words}; goes on after save {texts['saves']}" if event == "claimed_again" and facts.get("saves") else words


def _state_without_record(known: _Known) -> str:
    if known.entries:
        return "waiting"
    states = {outcome.state for outcome in known.outcomes.values()}
    if "SUCCESS" in states:
        return "done"
    if known.letters:
        return next(reversed([letter.status for letter in known.letters.values()]))
    return "failed" if "FAILURE" in states else "forgotten"


def _ids_of(lines: Iterable[Line]) -> Iterator[str]:
    return (line.task_id for line in lines if line.task_id)


def _ids_in(letter: DeadLetter) -> set[str]:
    return {letter.task_id, *(entry.new_id for entry in letter.replays)}


_STATES: Final = {
    "waiting": "waiting for a worker",
    "done": "done",
    "failed": "failed, says the result backend",
    "replaying": "being replayed",
    "replayed": "replayed; nothing is known of the new run yet",
    "forgotten": "nothing is known any more but what is told here",
}

_WORDS: Final[Mapping[str, str]] = {
    "submitted": "submitted",
    "existing": "submitted again; joined task {existing_id}, which was {state}",
    "child_known": "submitted again by a repeated run of its parent: the same job",
    "withdrawn": "taken back: the broker refused the message",
    "withdraw_failed": "the broker refused the message, and it could not be taken back",
    "claimed_again": "claimed: attempt {attempt}, delivery {delivery}, fence {fence}",
    "busy": "waited {wait} s: another run had the key",
    "not_yet": "waited {wait} s: it was not due",
    "replayed_outcome": "delivered once more; answered with the stored result",
    "already_committed": "not run: its effect was committed by an earlier run",
    "queue_waits": "waited {wait} s: the job before it under its key had not ended",
    "breaker_waits": "waited {wait} s: breaker {breaker} was open",
    "limit_waits": "waited {wait} s: as many of {limit_key} ran as may at a time",
    "rate_waits": "waited {wait} s: as many of {limit_key} had begun as may",
    "budget_waits": "waited {wait} s: enough retries of {budget} had run",
    "overlap_waits": "waited {wait} s: another job had the right to run",
    "overlap_lost": "another job took the right to run",
    "skipped": "skipped: {reason}",
    "over": "a late message was dropped: the job was over ({state})",
    "quarantined": "moved to queue {queue} for its last delivery",
    "poisoned": "claimed {delivery} times without a verdict",
    "mismatch": "refused: the key belongs to other arguments",
    "done": "done",
    "recovered": "done, by attempt {attempt}, delivery {delivery}",
    "saved": "saved its progress: save {saves}, the last before what follows",
    "retried": "attempt {attempt} failed with {error}; again in {delay} s (rule {rule})",
    "snoozed": "snoozed for {delay} s",
    "interrupted": "given back: its worker had to stop",
    "buried": "became dead letter {letter_id}: {reason} after {attempts} attempts, {error}",
    "reported_again": "its failure was reported once more",
    "stale": "refused ({verb}): another run had taken over from fence {fence}",
    "lost_writes": "the store had lost writes; accepted by the higher fence",
    "publish_failed": "the {what} could not be published; waited {wait} s",
    "backend_unavailable": "the result backend was away ({what}); waited {wait} s",
    "blob_failed": "what is kept aside could not be read or written: {error}",
    "evidence": "the process that ran it is gone: {cause}",
    "parked": "parked: no worker could run it ({reason})",
    "unparked": "back in queue {queue} after {waited} s",
    "refused": "can run nowhere: {reason}",
    "lease_lost": "lost its lease while it ran",
    "runtime_exceeded": "ran longer than any limit; its lease was given up",
    "restored": "its worker had fallen silent; back in the queue",
    "stolen": "taken by a consumer with a shorter visibility timeout",
    "published_again": "had vanished from the broker; published again",
    "lost": "published again and again, and never settled",
    "letter_replayed": "replayed from dead letter {letter_id} by {by}",
    "letter_discarded": "dead letter {letter_id} discarded by {by}",
    "left_out": "older lines have gone (reliable_explain_size)",
}
