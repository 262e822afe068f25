"""Search, replay and discard dead letters, on any store."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from celery_reliable.dead_letters.outgoing import AS_IT_WAS, Change, edited, outgoing, outgoing_raw
from celery_reliable.dead_letters.record import DeadLetter, Replay
from celery_reliable.dead_letters.search import Filter, Group, Page, Stats, add, largest
from celery_reliable.errors import ReliableError, ReplayRefused
from celery_reliable.events import Events
from celery_reliable.payloads import Envelope, RawMessage
from celery_reliable.signing import Signer
from celery_reliable.stores.base import UNRUN, Job, Refused, Reopening, Replaying, Store

Item = TypeVar("Item")

_TAKEOVER_AFTER: Final = 10.0  # seconds: a publish with its bounded retries is over by then
_FIRST: Final = 60
_CLOCKS_DIFFER: Final = 60.0  # seconds
_BURIED_WITHIN: Final = 3600.0  # seconds from a failure to its burial: the store may have been away
_MOST_LOOPS: Final = 3
_WAITING_TTL: Final = 7 * 24 * 3600.0
_EVERYTHING: Final = Filter(statuses=("dead", "replaying", "replayed"))


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to one letter of a bulk replay: its new id, or why it was refused. ``done`` of ``total``."""

    letter_id: str
    task: str
    done: int
    total: int
    new_id: str = ""
    refused: ReplayRefused | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """How a bulk replay ended: letters found, replayed (or, in a dry run, ready to be), refused by reason."""

    total: int
    replayed: int
    refused: Mapping[str, int]

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Report:
        """Count steps, one at a time."""
        total = 0
        refused: Counter[str] = Counter()
        for step in steps:
            total += 1
            if step.refused:
                refused[step.refused.reason] += 1
        return cls(total, total - refused.total(), refused)


def _nothing(_envelope: Envelope) -> str:
    return ""


def _no_raw(_message: RawMessage) -> None:
    msg = "no way to publish a raw message was given"
    raise NotImplementedError(msg)


class DeadLetters:
    """The dead letters of one store.

    ``publish`` sends an envelope and returns when the broker has it. ``objection`` says why no worker with this code
    could run a call (its task is gone, its arguments no longer fit); "" when one could. ``fingerprint`` computes the payload fingerprint of an edited call ("" = not compared).
    ``publish_all`` does so with several at once, all or none when one of them is at fault (`ReliableError`).
    ``publish_raw`` puts a message that could not be read back into its queue. With a ``signer`` a letter that is not known to
    come from a holder of its keys is not sent back unless ``sign`` says so: what is sent back is signed.
    ``clock`` (monotonic) and ``sleep`` pace bulk replays; times of letters are judged by the store's clock. A call that
    died again after ``most_loops`` replays is refused.
    """

    def __init__(
        self,
        store: Store,
        *,
        events: Events,
        publish: Callable[[Envelope], object],
        publish_all: Callable[[Sequence[Envelope]], object] | None = None,
        publish_raw: Callable[[RawMessage], object] = _no_raw,
        objection: Callable[[Envelope], str] = _nothing,
        fingerprint: Callable[[Envelope], str] = _nothing,
        signer: Signer | None = None,
        waiting_ttl: float = _WAITING_TTL,
        most_loops: int = _MOST_LOOPS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Take what is needed; nothing connects."""
        self._store = store
        self._events = events
        self._publish = publish
        self._publish_all = publish_all or self._publish_each
        self._publish_raw = publish_raw
        self._objection = objection
        self._fingerprint = fingerprint
        self._signer = signer
        self._waiting_ttl = waiting_ttl
        self._most_loops = most_loops
        self._clock = clock
        self._sleep = sleep

    def _publish_each(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            self._publish(envelope)

    # --- search

    def search(self, wanted: Filter = _EVERYTHING) -> Iterator[DeadLetter]:
        """Iterate over the letters that fit, newest first, a page of the store in memory at a time."""
        named = [self.show(letter_id) for letter_id in wanted.ids]
        known = [letter for letter in named if letter]
        letters = known if known and len(known) == len(named) else self._all(wanted)
        return (letter for letter in letters if wanted.matches(letter))

    def groups(
        self, wanted: Filter = _EVERYTHING, *, only: Callable[[DeadLetter], bool] = lambda _: True
    ) -> tuple[Group, ...]:
        """Count the letters that fit by `error_fingerprint`, largest group first."""
        groups: dict[str, Group] = {}
        for letter in filter(only, self.search(wanted)):
            add(groups, letter)
        return largest(groups)

    def show(self, letter_id: str) -> DeadLetter | None:
        """Return one letter by its full id; None when it is gone."""
        found = self._store.letter(letter_id)
        return None if found is None else _decoded(letter_id, found[1])

    def find(self, start: str) -> list[DeadLetter]:
        """Return the letters whose id, or whose task id, is or begins with ``start``; an exact letter id comes alone."""
        return list(self.search(replace(_EVERYTHING, ids=(start,))))

    def stats(self) -> Stats:
        """Count what is kept, by reason, task, queue and group, and what was counted since ever. Reads every letter."""
        return Stats.of(self.search(), store=self._store.letter_counts())

    def now(self) -> float:
        """Return the store's time in unix seconds: what ages of letters are counted from."""
        return self._store.now() / 1_000_000

    def pages(self, wanted: Filter = _EVERYTHING, cursor: str = "", *, size: int = 500) -> Iterator[Page]:
        """Iterate over the letters, newest first, ``size`` at a time, from a page's cursor on.

        For whoever must answer soon: a page costs the same whatever fits and however many letters there are.
        """
        labels = self._labels(wanted)
        until = None if wanted.until is None else wanted.until + _BURIED_WITHIN
        while True:
            page = self._store.letters(cursor, limit=size, labels=labels, until=until)
            found = [_decoded(letter_id, body) for letter_id, _status, body in page.letters]
            cursor = "" if _is_before(found, wanted.since) else page.cursor
            yield Page(tuple(letter for letter in found if wanted.matches(letter)), cursor, len(found))
            if not cursor:
                return

    def _labels(self, wanted: Filter) -> list[str] | None:
        """Return the labels that may fit; None when all do, or there are too many to tell."""
        known = self._store.letter_labels()
        fitting = [label for label in known or () if wanted.fits_label(label)]
        return None if known is None or len(fitting) == len(known) else fitting

    def counts(self) -> Mapping[str, int]:
        """Return how many letters are kept, and since ever buried, replayed, discarded, trimmed; reads no letter."""
        return self._store.letter_counts()

    def _all(self, wanted: Filter) -> Iterator[DeadLetter]:
        first = next(self.pages(wanted, size=_FIRST))  # what a screen shows comes soon, however many there are
        yield from first.letters
        for page in self.pages(wanted, cursor=first.cursor) if first.cursor else ():
            yield from page.letters

    # --- replay

    def replay(
        self,
        letter_id: str,
        *,
        who: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        new_task_id: str | None = None,
        force: bool = False,
        sign: bool = False,
    ) -> str:
        """Send a dead letter back to its queue under a new task id; return that id.

        Two who replay one letter at once: one wins, the other is refused. Whoever dies between the store's step and
        the publish loses nothing: the ledger has the call, the letter says ``replaying``, and the next replay of it
        (by the same ``who`` at once, by another after 10 seconds) publishes under the same id. If the first one had
        published after all, a second copy exists, and its claim is refused like that of any duplicate.

        ``sign`` sends a call that nobody is known to have signed. ``force`` publishes against the objection, and puts a message back that could not be read. What ``publish`` raises is passed on: the letter then
        is ``replaying``. Raises `ReplayRefused`.
        """
        change = Change(args=args, kwargs=kwargs)
        return self.replay_letter(
            self._there(letter_id), who=who, change=change, new_task_id=new_task_id, force=force, sign=sign
        )

    def replay_letter(
        self,
        stored: DeadLetter,
        *,
        who: str,
        change: Change = AS_IT_WAS,
        new_task_id: str | None = None,
        force: bool = False,
        sign: bool = False,
        run: str = "",
    ) -> str:
        """Send back a letter that was just read, perhaps changed; see `replay`. ``run`` names the managed replay."""
        [answer] = self.replay_letters(
            [stored], who=who, change=change, new_task_id=new_task_id, force=force, sign=sign, run=run
        )
        if isinstance(answer, ReplayRefused):
            raise answer
        return answer

    def replay_letters(
        self,
        stored: Sequence[DeadLetter],
        *,
        who: str,
        change: Change = AS_IT_WAS,
        new_task_id: str | None = None,
        force: bool = False,
        sign: bool = False,
        run: str = "",
    ) -> list[str | ReplayRefused]:
        """Send back letters that were just read; return the new id of each, or why it was refused.

        They take the three steps of `replay` together: all are marked, all published, all marked as published. Each is
        atomic by itself, as if it were alone.
        """
        found = [
            self._begun_or_refused(
                letter, who=who, change=change, new_task_id=new_task_id, force=force, sign=sign, run=run
            )
            for letter in stored
        ]
        found = self._marked(found)
        self._send([one for one in found if isinstance(one, _Going)])
        return [one if isinstance(one, ReplayRefused) else one.entry.new_id for one in found]

    def _begun_or_refused(self, stored: DeadLetter, **how: Any) -> _Going | ReplayRefused:
        try:
            return self._begin(stored, **how)
        except ReplayRefused as exc:
            return exc

    def _begin(
        self,
        stored: DeadLetter,
        *,
        who: str,
        change: Change,
        new_task_id: str | None,
        force: bool,
        sign: bool,
        run: str,
    ) -> _Going:
        self._refuse_unsigned(stored, sign=sign)
        letter = self._edited(stored, change)
        self._refuse_misfit(letter, force=force, sign=sign)
        entry = self._begun(stored, who=who)
        if entry is None:
            new_id = new_task_id or str(uuid.uuid4())
            entry = Replay(who, when=self.now(), new_id=new_id, edited=letter is not stored, run=run)
            return _Going.on(letter.with_replay(entry), entry, self._sealed)
        if letter.envelope != stored.envelope:
            raise ReplayRefused(_FINISH_FIRST.format(id=letter.id), reason="replayed")
        return _Going.on(letter, entry, self._sealed)

    def check(self, letter_id: str, *, who: str, force: bool = False, sign: bool = False) -> None:
        """Raise the `ReplayRefused` that `replay` would raise, as far as it can be told without doing it."""
        self.check_letter(self._there(letter_id), who=who, force=force, sign=sign)

    def check_letter(
        self,
        stored: DeadLetter,
        *,
        who: str,
        change: Change = AS_IT_WAS,
        force: bool = False,
        sign: bool = False,
    ) -> None:
        """Do likewise with a letter that was just read; a key that has moved on meanwhile is told, too."""
        self._refuse_unsigned(stored, sign=sign)
        self._refuse_misfit(self._edited(stored, change), force=force, sign=sign)
        self._begun(stored, who=who)
        record = self._store.inspect(stored.job) if stored.job and stored.status == "dead" else {}
        if record and record.get("letter_id") != stored.id and record.get("reason") not in UNRUN:
            raise _refused_by_store(stored, Refused("superseded", record.get("task_id", "")))

    def replay_many(
        self,
        wanted: Filter,
        *,
        who: str,
        rate: float | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        force: bool = False,
        on_progress: Callable[[Step], object] | None = None,
    ) -> Report:
        """Replay the letters that fit, newest first, at most ``rate`` a second.

        Refusals are counted and the replay goes on. What the store or ``publish`` raises ends it: what was replayed
        stays replayed, and the same call goes on with the rest. Letters that die while it runs are not taken in.
        """
        # Chosen before the first one is sent, by id: what dies again while this runs is not taken in.
        chosen = [(letter.id, letter.task) for letter in itertools.islice(self.search(wanted), limit)]
        steps = (
            self._step(Step(letter_id, task, done, len(chosen)), who=who, dry_run=dry_run, force=force)
            for done, (letter_id, task) in enumerate(self._paced(chosen, rate=None if dry_run else rate), start=1)
        )
        return Report.of(_told(steps, on_progress))

    def _paced(self, items: Iterable[Item], *, rate: float | None) -> Iterator[Item]:
        due = self._clock()
        for item in items:
            now = self._clock()
            if rate and due > now:
                self._sleep(due - now)
            due = max(due, now) + (1 / rate if rate else 0.0)
            yield item

    def _step(self, step: Step, *, who: str, dry_run: bool, force: bool) -> Step:
        try:
            if dry_run:
                self.check(step.letter_id, who=who, force=force)
                return step
            return replace(step, new_id=self.replay(step.letter_id, who=who, force=force))
        except ReplayRefused as exc:
            return replace(step, refused=exc)

    def _there(self, letter_id: str) -> DeadLetter:
        letter = self.show(letter_id)
        if letter is None:
            raise ReplayRefused(_GONE.format(id=letter_id), reason="gone")
        return letter

    def _refuse_unsigned(self, letter: DeadLetter, *, sign: bool) -> None:
        """Refuse to sign a call, by sending it back, that nobody is known to have signed."""
        signer = self._signer
        if signer is None or not signer.enforces or sign:
            return
        if letter.envelope is not None:
            fault = "" if signer.is_sealed(letter.envelope) else "no key of ours has sealed it"
        else:
            fault = signer.fault_of_raw(letter.raw) if letter.raw else ""
        if fault:
            raise ReplayRefused(_UNSIGNED.format(id=letter.id, fault=fault), reason="unsigned")

    def _sealed(self, envelope: Envelope) -> Envelope:
        return envelope if self._signer is None else self._signer.sealed(envelope)

    def _refuse_misfit(self, letter: DeadLetter, *, force: bool, sign: bool) -> None:
        if letter.envelope is None and (letter.raw is None or letter.raw.item):
            raise ReplayRefused(_NO_BODY.format(id=letter.id), reason="no_body")
        if letter.envelope is None and not (force or (sign and letter.reason == "rejected")):
            text = _RAW.format(id=letter.id, why=letter.error_message, queue=letter.queue)
            raise ReplayRefused(text, reason="no_body")
        objection = "" if force or letter.envelope is None else self._objection(letter.envelope)
        if objection:
            text = _NO_TASK.format(id=letter.id, task=letter.task, objection=objection)
            raise ReplayRefused(text, reason="no_task")
        if letter.loops >= self._most_loops and not force:
            raise ReplayRefused(_LOOPS.format(id=letter.id, loops=letter.loops), reason="looping")

    def _begun(self, letter: DeadLetter, *, who: str) -> Replay | None:
        """Return the replay that somebody began and did not finish; None when the letter is dead."""
        if letter.status == "dead":
            return None
        entry = letter.replays[-1]
        if letter.status == "replayed":
            text = _REPLAYED.format(id=letter.id, by=entry.who, new_id=entry.new_id)
            raise ReplayRefused(text, reason="replayed")
        age = self.now() - entry.when
        if entry.who != who and age < _TAKEOVER_AFTER:
            text = _AT_WORK.format(id=letter.id, by=entry.who, age=age, wait=_TAKEOVER_AFTER - age)
            raise ReplayRefused(text, reason="replayed")
        return entry

    def _edited(self, letter: DeadLetter, change: Change) -> DeadLetter:
        if not change:
            return letter
        if letter.envelope is None:
            raise ReplayRefused(_NO_BODY.format(id=letter.id), reason="no_body")
        try:
            changed, envelope = edited(letter, change)
        except ValueError as exc:
            raise ReplayRefused(f"dead letter {letter.id} was not replayed: {exc}.", reason="no_body") from exc
        return replace(changed, envelope=self._sealed(envelope), fingerprint=self._fingerprint(envelope))

    def _marked(self, found: Sequence[_Going | ReplayRefused]) -> list[_Going | ReplayRefused]:
        """Mark in the store what is to go; the store refuses what has moved on meanwhile."""
        answers = iter(self._reopen([one for one in found if isinstance(one, _Going)]))
        return [one if isinstance(one, ReplayRefused) else _answered(one, next(answers)) for one in found]

    def _reopen(self, going: Sequence[_Going]) -> list[Replaying | Refused]:
        return self._store.replay_all([one.reopening(ttl=self._waiting_ttl) for one in going]) if going else []

    def _send(self, going: Sequence[_Going]) -> None:
        """Publish, and mark as published: a death between the two is picked up by the next replay, or by the sweep."""
        claimed = [one for one in going if one.is_claimed]
        together = claimed if len(claimed) > 1 and self._is_sent_together(claimed) else []
        alone = [one for one in going if not (together and one.is_claimed)]
        failures = [failure for one in alone if (failure := self._send_alone(one)) is not None]
        if failures:
            raise failures[0]

    def _is_sent_together(self, going: Sequence[_Going]) -> bool:
        """Publish all; False when one of them cannot be published: then each is tried by itself."""
        try:
            self._publish_all([one.envelope for one in going if one.envelope is not None])
        except ReliableError:
            return False
        self._note_published(going)
        return True

    def _send_alone(self, one: _Going) -> ReliableError | None:
        try:
            if one.envelope is None:
                self._publish_raw(one.raw())
            else:
                self._publish(one.envelope)
        except ReliableError as exc:
            return exc
        self._note_published([one])
        return None

    def _note_published(self, going: Sequence[_Going]) -> None:
        published = [one.published() for one in going]
        self._reopen(published)
        for one in published:
            letter = one.letter
            if not one.is_claimed:
                # Nobody ends the ledger entry of a task that is not ours, or of a message that may be refused again.
                self._store.settle(letter.job or Job(letter.id), task_id=one.entry.new_id, state="sent", ttl=1.0)
        self._events.emit_all("letter_replayed", [one.facts() for one in published])

    # --- discard

    def discard(self, letter_id: str, *, who: str) -> bool:
        """Drop one letter for good, and free its key if it is still dead by it. False when it was gone already."""
        letter = self.show(letter_id)
        if letter is None or not self._store.discard(letter_id, letter.job):
            return False
        facts = {"task": letter.task, "task_id": letter.task_id, "key": letter.key or letter.task_id}
        self._events.emit("letter_discarded", **facts, letter_id=letter_id, by=who)
        return True


@dataclass(frozen=True, slots=True)
class _Going:
    """A letter on its way back: the entry that marks it, and the call as it is published, in ``life``.

    The store says the life when the letter is marked. Until then it is the one that must come, for the ledger's copy.
    """

    letter: DeadLetter
    entry: Replay
    life: int
    envelope: Envelope | None
    kept: bytes
    seal: Callable[[Envelope], Envelope]

    @classmethod
    def on(cls, letter: DeadLetter, entry: Replay, seal: Callable[[Envelope], Envelope]) -> _Going:
        life = max(letter.life, 1) + 1 if letter.key else 1
        envelope = seal(_message(letter, entry=entry, life=life)) if letter.envelope else None
        return cls(letter, entry, life, envelope, envelope.to_bytes() if envelope else _NOT_A_CALL, seal)

    @property
    def is_claimed(self) -> bool:
        """Whether a second copy would be refused by its claim."""
        return self.letter.job is not None and self.envelope is not None

    def raw(self) -> RawMessage:
        letter = self.letter
        return outgoing_raw(letter, replay=self.entry, life=self.life, fingerprint=letter.fingerprint)

    def in_life(self, life: int) -> _Going:
        if life == self.life or self.envelope is None:
            return replace(self, life=life)
        return replace(self, life=life, envelope=self.seal(_message(self.letter, entry=self.entry, life=life)))

    def published(self) -> _Going:
        entry = replace(self.entry, published=True)
        return replace(self, letter=self.letter.with_replay(entry), entry=entry)

    def facts(self) -> dict[str, Any]:
        letter, entry = self.letter, self.entry
        job = {"task": letter.task, "task_id": entry.new_id, "key": letter.key or letter.task_id}
        return {**job, "letter_id": letter.id, "by": entry.who}

    def reopening(self, *, ttl: float) -> Reopening:
        letter = self.letter
        return Reopening(
            letter_id=letter.id,
            job=letter.job,
            task_id=self.entry.new_id,
            envelope=self.kept,
            body=letter.to_bytes(),
            fingerprint=letter.fingerprint,
            ttl=ttl,
            label=letter.label,
        )


def _answered(going: _Going, answer: Replaying | Refused) -> _Going | ReplayRefused:
    return going.in_life(answer.life) if isinstance(answer, Replaying) else _refused_by_store(going.letter, answer)


def _told(steps: Iterable[Step], on_progress: Callable[[Step], object] | None) -> Iterator[Step]:
    for step in steps:
        if on_progress:
            on_progress(step)
        yield step


def _message(letter: DeadLetter, *, entry: Replay, life: int) -> Envelope:
    return outgoing(letter, replay=entry, life=life, fingerprint=letter.fingerprint)


def _is_before(letters: Sequence[DeadLetter], since: float | None) -> bool:
    """Tell whether letters, and so all that were buried before them, are older than what is looked for."""
    return since is not None and max((one.last_failure for one in letters), default=since) < since - _CLOCKS_DIFFER


def _decoded(letter_id: str, body: bytes) -> DeadLetter:
    try:
        return DeadLetter.from_bytes(body)
    except ValueError as exc:
        return DeadLetter.unreadable(letter_id, failure=str(exc))


_NOT_A_CALL: Final = b"[]"  # a ledger entry that no sweep publishes
_RAW: Final = (
    "dead letter {id} is a message that could not be read: {why}. If that has changed, --force puts it back into queue "
    "{queue} as it was."
)
_GONE: Final = (
    "dead letter {id} is gone: it was discarded, or dropped by reliable_dead_letter_max or reliable_dead_letter_ttl. "
    "Submit the call again from its source."
)
_NO_BODY: Final = (
    "dead letter {id} has no readable call, so there is nothing to publish. Look at it, send the call from its source, "
    "then discard the letter."
)
_NO_TASK: Final = (
    "dead letter {id}, a call of {task}, cannot run with this app's code: {objection}. Deploy code that fits, or change "
    "the arguments, or force the replay."
)
_UNSIGNED: Final = (
    "dead letter {id} was not replayed: {fault}, and its replay would be signed by us. If you know where the call comes from, "
    "send it with --sign (dlq replay), or with the box Sign (Django's admin)."
)
_LOOPS: Final = (
    "dead letter {id} has come back dead after {loops} replays already. Find out why before it goes round again; --force "
    "sends it all the same."
)
_REPLAYED: Final = (
    "dead letter {id} was replayed by {by} already, as task {new_id}. Look at that task; if it died again it has a "
    "dead letter of its own."
)
_AT_WORK: Final = (
    "dead letter {id} is being replayed by {by}, begun {age:.0f} s ago. If that process died, replay it again in "
    "{wait:.0f} s."
)
_FINISH_FIRST: Final = (
    "a replay of dead letter {id} was begun without this edit and not finished. Replay it without edit to finish it, "
    "or submit the changed call as a new one."
)
_SUPERSEDED: Final = (
    "the key of dead letter {id} has moved on: it was submitted again{new} or is done. Look at that task, then discard "
    "the letter."
)


def _refused_by_store(letter: DeadLetter, answer: Refused) -> ReplayRefused:
    if answer.reason == "gone":
        return ReplayRefused(_GONE.format(id=letter.id), reason="gone")
    if answer.reason == "replayed":
        text = _REPLAYED.format(id=letter.id, by="somebody else", new_id=answer.new_id)
        return ReplayRefused(text, reason="replayed")
    new = f" as task {answer.new_id}" if answer.new_id else ""
    return ReplayRefused(_SUPERSEDED.format(id=letter.id, new=new), reason="superseded")
