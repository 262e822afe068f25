"""Keep the records in Redis or Valkey: one Lua script a verb, on the server's clock.

Needs Redis 7 or Valkey 7.2: scripts that finish work carry ``allow-oom``, so that they go on at the memory limit.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any

from celery_reliable.errors import StoreError
from celery_reliable.stores import base
from celery_reliable.stores.base import Job
from celery_reliable.stores.redis_keys import LAYOUT, Keys, Place
from celery_reliable.stores.redis_link import Link, link_for
from celery_reliable.stores.redis_notes import RedisNotes

if TYPE_CHECKING:
    from typing_extensions import Unpack

_VERBS = [
    "submit",
    "claim",
    "claim_declared",
    "finish",
    "finish_declared",
    "complete",
    "release",
    "bury",
    "renew",
    "free",
    "save",
    "withdraw",
    "published",
    "settle",
    "revoke",
    "keep_letter",
    "replay",
    "discard",
    "find_letters",
    "resend",
    "lead",
    "read_notes",
    "write_notes",
    "page_notes",
]
_BARE = ("claim_declared", "finish", "finish_declared")
_FIRST = base.New(1)
_FIRST_LIFE = "R|1|%d|||||%d|%s|||"
_RESENT = re.compile(rb"\A\x01\d+ \d+\n")  # before an entry that was published again, see resend.lua
_REPLACED = re.compile(
    rb"\A\x02(\d+)\n"
)  # then as many bytes of newer arguments, and the first envelope: see common.lua
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNLABELLED, _LAST_NUMBER = b"00000000", "\0"  # as in common.lua
_BEFORE_BODY = 9
_PLACE = 16  # digits of a microsecond in the index of letters
_INLINE = 32  # bytes: a longer outcome gets a string of its own
_LIVE_TTL = 7 * 24 * 3600.0
_OFFSET_AGE = 60.0  # seconds: how long a measured offset between our monotonic clock and the server's serves


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _first_envelope(entry: bytes) -> bytes:
    """Return the envelope that an entry of the ledger began with."""
    entry = _RESENT.sub(b"", entry, count=1)
    newer = _REPLACED.match(entry)
    return entry[newer.end() + int(newer[1]) :] if newer else entry


def load_scripts() -> dict[str, bytes]:
    """Return every verb's Lua with the shared part put in.

    That is at the line ``-- common.lua``, where what comes before does without, or else below the first line, on which
    the flags must stay. `_BARE` scripts do without it altogether.
    """
    folder = resources.files("celery_reliable.stores").joinpath("lua")
    common = folder.joinpath("common.lua").read_text()
    scripts = {}
    for verb in _VERBS:
        text = folder.joinpath(f"{verb}.lua").read_text()
        flags, rest = text.split("\n", 1) if text.startswith("#!") else ("#!lua", text)
        before, _, after = rest.rpartition("-- common.lua\n")
        scripts[verb] = (text if verb in _BARE else f"{flags}\n{before}{common}\n{after}").encode()
    return scripts


class RedisStore:
    """The store on one Redis or Valkey, behind Sentinel, or on a Cluster."""

    def __init__(self, url: str, *, key_prefix: str = "cr:", timeout: float = 5.0, wait_replicas: int = 0) -> None:
        """Take the URL; nothing connects before the first verb. ``timeout`` (seconds) bounds each round trip."""
        self._link: Link = link_for(url, scripts=load_scripts(), timeout=timeout)
        self._keys = Keys(prefix=key_prefix, shards=self._link.shards)
        self.notes = RedisNotes(self._link, self._keys)
        self.outbox = None
        self._wait_replicas = wait_replicas
        self._timeout = timeout
        self._offset = 0
        self._offset_from = float("-inf")
        self._offset_epoch = 0

    # --- submit

    def submit(self, job: Job, **submission: Unpack[base.Submission]) -> base.SubmitAnswer:
        """See `Store.submit`."""
        return self.begin_submit(job, **submission)()

    def begin_submit(
        self,
        job: Job,
        *,
        task_id: str,
        fingerprint: str = "",
        envelope: bytes | None = None,
        canvas: bool = False,
        replace: bool = False,
        swept: bool = True,
        delay: float = 0.0,
        delay_max: float = 0.0,
        ttl: float,
    ) -> Callable[[], base.SubmitAnswer]:
        """See `base.BeginSubmit`: one plain HSET for ids of their own, a script for declared keys."""
        place = self._keys.place(job)
        if job.kind == "declared":
            names = (place.record, place.alone, place.ledger)
            values: tuple[Any, ...] = (place.field, task_id, fingerprint, envelope or b"")
            values += (int(canvas), int(replace), _ms(ttl))
            if replace:
                values += (int(swept), _ms(delay), _ms(delay_max)) if delay else (int(swept),)
            return partial(self._submitted, place, self._link.begin_script("submit", names, values))
        if envelope is None:
            return lambda: _FIRST
        entered = self._link.begin_command("HSET", place.ledger, task_id, envelope, key=place.ledger)
        return partial(self._entered, place, entered)

    def _submitted(self, place: Place, reply: Callable[[], Any]) -> base.SubmitAnswer:
        answer = _submit_answer(reply())
        self._wait(place)
        return answer

    def _entered(self, place: Place, reply: Callable[[], Any]) -> base.New:
        reply()
        self._wait(place)
        return _FIRST

    def published(self, job: Job, *, task_id: str) -> None:
        """See `Store.published`."""
        place = self._keys.place(job)
        self._link.script("published", (place.record, place.alone), (place.field, task_id))

    def withdraw(self, job: Job, *, task_id: str) -> bool:
        """See `Store.withdraw`."""
        place = self._keys.place(job)
        keys = (place.record, place.alone, place.ledger, self._keys.letters(place.shard))
        day = 24 * 3600
        values = (place.field, task_id, _ms(day), _kept_id(job, task_id), job.stamp)
        return bool(self._link.script("withdraw", keys, values))

    # --- claim and settle

    def claim(
        self,
        job: Job,
        *,
        task_id: str,
        life: int,
        fingerprint: str = "",
        token: str,
        ttl: float,
        max_deliveries: int,
        record_ttl: float,
        late_after: float = 0.0,
        first: bool = False,
    ) -> base.ClaimAnswer:
        """See `Store.claim`: one HSETNX for the first delivery of an own id, a script for all else."""
        place = self._keys.place(job)
        if first and max_deliveries > 0:
            run = None
            if not place.field and fingerprint:
                run = self._claim_declared(place, life, fingerprint, token=token, ttl=ttl, record_ttl=record_ttl)
            elif place.field and life <= 1:
                run = self._claim_first(job, place, token=token, ttl=ttl, late_after=late_after)
            if run is not None:
                return run
        values: tuple[Any, ...] = (place.field, task_id, life, fingerprint, _flat(token), _ms(ttl), max_deliveries)
        values += (_ms(record_ttl), int(late_after * 1000), job.stamp, _kept_id(job, task_id))
        answer = self._link.script("claim", self._keys_of_claim(place), values)
        return _CLAIM_ANSWERS[answer[0]](answer)

    def _keys_of_claim(self, place: Place) -> tuple[str, ...]:
        pulse, letters = self._keys.pulse(place.shard), self._keys.letters(place.shard)
        return (
            place.record,
            place.alone,
            place.ledger,
            pulse,
            place.checkpoint,
            letters,
            place.outcome,
            place.evidence,
        )

    def _claim_first(self, job: Job, place: Place, *, token: str, ttl: float, late_after: float) -> base.Run | None:
        """Claim a field that nobody has claimed, by one plain command; None when that cannot be told.

        The lease is written by our measured offset to the server's clock: not on a Cluster, whose nodes have clocks of
        their own.
        """
        fence = self.now()
        if self._link.shards > 1 or (late_after and fence - job.stamp > late_after * 500_000):
            return None
        record = _FIRST_LIFE % (fence, fence // 1000 + _ms(ttl), _flat(token))
        if self._link.try_command("HSETNX", place.record, place.field, record, key=place.record) != 1:
            return None
        return base.Run(fence=fence, life=1, attempt=1, delivery=1)

    def _claim_declared(
        self, place: Place, life: int, fingerprint: str, *, token: str, ttl: float, record_ttl: float
    ) -> base.Run | None:
        """Claim a submitted key that nobody has claimed; None: it is something else."""
        values = (life, fingerprint, _flat(token), _ms(ttl), _ms(record_ttl))
        fence = self._link.script("claim_declared", (place.record,), values)
        return None if fence is None else base.Run(fence=int(fence), life=life, attempt=1, delivery=1)

    def renew(self, claims: Iterable[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        """See `Store.renew`: one round trip; on a Cluster one for each shard, since each keeps a pulse of its own."""
        by_shard: dict[int, list[tuple[Job, str, float]]] = {shard: [] for shard in range(self._link.shards)}
        for claim in claims:
            by_shard[self._keys.shard(claim[0])].append(claim)
        lost: list[str] = []
        for shard, held in by_shard.items():
            lost += self._renew_shard(shard, held, pulse_ttl=pulse_ttl)
        return lost

    def _renew_shard(self, shard: int, held: Sequence[tuple[Job, str, float]], *, pulse_ttl: float) -> list[str]:
        names: list[Any] = [self._keys.pulse(shard)]
        values: list[Any] = [_ms(pulse_ttl)]
        for job, token, ttl in held:
            place = self._keys.place(job)
            names += (place.record, place.alone)
            values += (place.field, _flat(token), _ms(ttl), _ms(max(_LIVE_TTL, 2 * ttl)))
        return [held[position - 1][0].key for position in self._link.script("renew", names, values)]

    def complete(
        self,
        job: Job,
        *,
        task_id: str,
        fence: int,
        token: str,
        outcome: bytes | None,
        marker_ttl: float,
        entry_ends: bool = True,
    ) -> base.SettleAnswer:
        """See `Store.complete`."""
        place = self._keys.place(job)
        kept = b"" if outcome is None else b"=" + outcome
        held, lives = (fence, _flat(token)), _ms(marker_ttl)
        if not place.field:
            values: tuple[Any, ...] = (*held, lives, kept, task_id, int(entry_ends), _uuid_bytes(task_id))
            done = self._finish(place, "finish_declared", values)
        else:
            values = (place.field, *held, lives, kept, task_id if entry_ends else b"")
            done = len(kept) <= _INLINE and self._finish(place, "finish", values)
        if done:
            return _SETTLE_ANSWERS[b"ok"]
        answer = self._link.script(
            "complete",
            (
                place.record,
                place.alone,
                place.ledger,
                place.outcome,
                place.checkpoint,
                place.evidence,
            ),
            (place.field, *held, lives, kept, task_id, int(entry_ends)),
        )
        self._wait(place)
        return _SETTLE_ANSWERS[answer]

    def _finish(self, place: Place, verb: str, values: tuple[Any, ...]) -> bool:
        """Complete a first attempt; False: it is something else."""
        if not self._link.script(verb, (place.record, place.ledger), values):
            return False
        self._wait(place)
        return True

    def release(
        self, job: Job, *, fence: int | None, token: str, outcome: base.ReleaseOutcome, delay: float, record_ttl: float
    ) -> base.SettleAnswer:
        """See `Store.release`."""
        place = self._keys.place(job)
        keys = (place.record, place.alone, place.ledger, place.checkpoint)
        known = "" if fence is None else fence
        values = (place.field, known, _flat(token), outcome, int(delay * 1000), _ms(record_ttl))
        return _SETTLE_ANSWERS[self._link.script("release", keys, values)]

    def bury(
        self,
        job: Job,
        *,
        task_id: str,
        fence: int,
        token: str,
        letter_id: str,
        letter: bytes,
        letter_ttl: float,
        letter_max: int,
        label: str = "",
    ) -> base.SettleAnswer:
        """See `Store.bury`."""
        place = self._keys.place(job)
        own = (place.record, place.alone, place.ledger, place.checkpoint, place.evidence)
        answer = self._link.script(
            "bury",
            (*own, *self._keys.letter_keys(place.shard)),
            (place.field, fence, _flat(token), task_id, letter_id, letter, label, _ms(letter_ttl), letter_max),
        )
        settled = _SETTLE_ANSWERS[answer[0]]
        return dataclasses.replace(settled, trimmed=answer[1]) if answer[1] else settled

    def free(self, job: Job, *, token: str, evidence: bytes, keep: float) -> bool:
        """See `Store.free`."""
        place = self._keys.place(job)
        keys = (place.record, place.alone, place.evidence)
        return bool(self._link.script("free", keys, (place.field, _flat(token), evidence, _ms(keep))))

    def settle(self, job: Job, *, task_id: str, state: base.SettleState, ttl: float) -> None:
        """See `Store.settle`: one plain HDEL when only the ledger entry ends."""
        place = self._keys.place(job)
        if state == "sent":
            self._link.command("HDEL", place.ledger, task_id, key=place.ledger)
            return
        values = (place.field, task_id, state, _ms(ttl), _kept_id(job, task_id))
        keys = (place.record, place.alone, place.ledger, place.checkpoint)
        self._link.script("settle", keys, values)

    def revoke(self, job: Job, *, task_id: str, ttl: float) -> None:
        """See `Store.revoke`."""
        place = self._keys.place(job)
        values = (place.field, task_id, _ms(ttl), _kept_id(job, task_id))
        keys = (place.record, place.alone, place.ledger, place.checkpoint)
        self._link.script("revoke", keys, values)

    # --- checkpoints and steps

    def save(
        self, job: Job, *, fence: int, token: str, name: str, body: bytes, ttl: float, number: int = 0
    ) -> base.SettleAnswer:
        """See `Store.save`."""
        place = self._keys.place(job)
        keys = (place.record, place.alone, place.checkpoint)
        return _SETTLE_ANSWERS[
            self._link.script("save", keys, (place.field, fence, _flat(token), name, body, _ms(ttl), number))
        ]

    # --- dead letters

    def keep_letter(
        self,
        letter_id: str,
        *,
        job: Job | None = None,
        letter: bytes,
        letter_ttl: float,
        letter_max: int,
        label: str = "",
    ) -> int:
        """See `Store.keep_letter`."""
        shard = self._keys.shard(job or Job(letter_id))
        values = (letter_id, letter, label, _ms(letter_ttl), letter_max)
        return int(self._link.script("keep_letter", self._keys.letter_keys(shard), values))

    def letter(self, letter_id: str) -> tuple[str, bytes] | None:
        """See `Store.letter`; on a Cluster every shard is asked."""
        for shard in range(self._link.shards):
            name = self._keys.letters(shard)
            raw = self._link.command("HGET", name, letter_id, key=name)
            if raw is not None:
                return _letter(raw)
        return None

    def letters(
        self, cursor: str = "", *, limit: int = 500, labels: Collection[str] | None = None, until: float | None = None
    ) -> base.LetterPage:
        """See `Store.letters`; the cursor is the time of burial, so pages stay whole while letters come and go."""
        begin = "" if until is None else str(int(until * 1e6))
        if labels is not None:
            return self._labelled(cursor or f"{begin or '9' * _PLACE:>0{_PLACE}}~", limit=limit, labels=labels)
        # A cursor among labels names a letter, too: all of its microsecond are given again.
        upper = cursor[:_PLACE] if len(cursor) > _PLACE else f"({cursor}" if cursor else begin or "+inf"
        found: list[tuple[int, int, str]] = []
        for shard in range(self._link.shards):
            order = self._keys.letter_order(shard)
            args = ("ZREVRANGEBYSCORE", order, upper, "-inf", "WITHSCORES", "LIMIT", 0, limit)
            found += [(score, shard, letter_id) for letter_id, score in _scored(self._link.command(*args, key=order))]
        found.sort(reverse=True)
        ends = found[limit - 1][0] if len(found) >= limit else 0
        page = [one for one in found if one[0] >= ends]  # with all that were buried in the last one's microsecond
        return base.LetterPage(self._bodies(page), str(ends) if ends else "")

    def _labelled(self, below: str, *, limit: int, labels: Collection[str]) -> base.LetterPage:
        """Find the newest letters of some labels; the cursor is time and id of the last one."""
        found: list[tuple[bytes, bytes, bytes | None]] = []
        for shard in range(self._link.shards):
            known = self._numbers(shard)
            numbers = [known[label] for label in labels if label in known]
            keys = (self._keys.letters(shard), self._keys.letter_index(shard))
            flat = self._link.script("find_letters", keys, (limit, below, *numbers)) if numbers else []
            found += zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        found.sort(key=lambda one: one[0], reverse=True)
        cursor = _text(found[limit - 1][0]) if len(found) >= limit else ""
        page = [(_text(letter_id), *_letter(raw)) for _, letter_id, raw in found[:limit] if raw is not None]
        return base.LetterPage(page, cursor)

    def letter_labels(self) -> Sequence[str] | None:
        """See `Store.letter_labels`."""
        return sorted({label for shard in range(self._link.shards) for label in self._numbers(shard)})

    def _numbers(self, shard: int) -> dict[str, bytes]:
        name = self._keys.letter_labels(shard)
        found = {_text(label): number for label, number in _pairs(self._link.command("HGETALL", name, key=name))}
        return {"": _UNLABELLED, **{label: number for label, number in found.items() if label != _LAST_NUMBER}}

    def _bodies(self, page: Sequence[tuple[int, int, str]]) -> list[tuple[str, str, bytes]]:
        """Read the letters of a page, in its order, one round trip a shard."""
        bodies: dict[str, bytes | None] = {}
        for shard in {shard for _, shard, _ in page}:
            ids = [letter_id for _, own, letter_id in page if own == shard]
            name = self._keys.letters(shard)
            bodies |= zip(ids, self._link.command("HMGET", name, *ids, key=name), strict=True)
        return [(letter_id, *_letter(raw)) for _, _, letter_id in page if (raw := bodies[letter_id]) is not None]

    def letter_counts(self) -> Mapping[str, int]:
        """See `Store.letter_counts`."""
        counts = dict.fromkeys(("kept", "buried", "replayed", "discarded", "trimmed"), 0)
        for shard in range(self._link.shards):
            letters, stats = self._keys.letters(shard), self._keys.letter_stats(shard)
            counts["kept"] += self._link.command("HLEN", letters, key=letters)
            for name, value in _pairs(self._link.command("HGETALL", stats, key=stats)):
                counts[_text(name)] += int(value)
        return counts

    def replay(
        self,
        letter_id: str,
        job: Job | None,
        *,
        task_id: str,
        envelope: bytes,
        body: bytes,
        fingerprint: str,
        ttl: float,
        label: str = "",
    ) -> base.Replaying | base.Refused:
        """See `Store.replay`."""
        facts = {"envelope": envelope, "body": body, "fingerprint": fingerprint, "ttl": ttl, "label": label}
        [answer] = self.replay_all([base.Reopening(letter_id=letter_id, job=job, task_id=task_id, **facts)])  # type: ignore[arg-type]  # mixed values
        return answer

    def replay_all(self, reopenings: Sequence[base.Reopening]) -> list[base.Replaying | base.Refused]:
        """See `Store.replay_all`: one round trip, on a Cluster one for each letter."""
        answers = self._link.scripts("replay", [self._reopening(one) for one in reopenings])
        return [_replay_answer(answer) for answer in answers]

    def _reopening(self, one: base.Reopening) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Return keys and arguments of the script."""
        place = self._keys.place(one.job or Job(one.letter_id))
        own = (place.record, place.alone) if one.job else ()
        field = place.field if one.job else ""
        values = (field, one.letter_id, one.task_id, one.envelope, one.body, one.fingerprint, _ms(one.ttl), one.label)
        return (*self._keys.letter_keys(place.shard), place.ledger, *own), values

    def discard(self, letter_id: str, job: Job | None) -> bool:
        """See `Store.discard`."""
        place = self._keys.place(job or Job(letter_id))
        own = (place.record, place.alone, place.checkpoint) if job else ()
        values = (letter_id, place.field if job else "", _ms(24 * 3600))
        return bool(self._link.script("discard", (*self._keys.letter_keys(place.shard), *own), values))

    # --- ledger

    def entry(self, job: Job, *, task_id: str) -> bytes | None:
        """See `Store.entry`."""
        name = self._keys.place(job).ledger
        found: bytes | None = self._link.command("HGET", name, task_id, key=name)
        return None if found is None else _first_envelope(found)

    def ledger(self, *, limit: int = 1000) -> Iterator[tuple[str, bytes]]:
        """See `Store.ledger`."""
        for shard in range(self._link.shards):
            name = self._keys.ledger(shard)
            cursor = 0
            while True:
                cursor, flat = self._link.command("HSCAN", name, cursor, "COUNT", limit, key=name)
                yield from ((_text(task_id), _first_envelope(entry)) for task_id, entry in _pairs(flat))
                if int(cursor) == 0:
                    break

    def resend(self, job: Job, *, task_id: str, quiet: float, most: int, record_ttl: float) -> base.ResendAnswer:
        """See `Store.resend`."""
        place = self._keys.place(job)
        keys = (place.record, place.alone, place.ledger, place.checkpoint)
        values = (place.field, task_id, _ms(quiet), most, _ms(record_ttl))
        answer: base.ResendAnswer = _text(self._link.script("resend", keys, values))  # type: ignore[assignment]  # the script's closed set
        return answer

    # --- the fleet

    def lead(self, role: str, *, token: str, ttl: float, pulse_ttl: float) -> base.LeadAnswer:
        """See `Store.lead`."""
        keys = (self._keys.role(role), self._keys.pulse(0))
        answer: base.LeadAnswer = _text(self._link.script("lead", keys, (token, _ms(ttl), _ms(pulse_ttl))))  # type: ignore[assignment]  # likewise
        return answer

    # --- the server

    def now(self) -> int:
        """See `Store.now`: our monotonic clock plus an offset, so that a jump of the wall clock changes nothing."""
        monotonic = time.monotonic()
        if monotonic - self._offset_from > _OFFSET_AGE or self._offset_epoch != self._link.epoch:
            seconds, micros = self._link.command("TIME", key=self._keys.pulse(0))
            monotonic = time.monotonic()
            self._offset = int(seconds) * 1_000_000 + int(micros) - int(monotonic * 1_000_000)
            self._offset_from, self._offset_epoch = monotonic, self._link.epoch
        return int(monotonic * 1_000_000) + self._offset

    def known_now(self) -> int | None:
        """See `Store.known_now`; None behind a new connection: it may be to another server, with another clock."""
        if self._offset_from < 0 or self._offset_epoch != self._link.epoch:
            return None
        return int(time.monotonic() * 1_000_000) + self._offset

    def inspect(self, job: Job) -> Mapping[str, str]:
        """See `Store.inspect`."""
        place = self._keys.place(job)
        raw = self._link.command("HGET", place.record, place.field, key=place.record) if place.field else None
        if raw in (None, b">"):
            raw = self._link.command("GET", place.alone, key=place.alone)
        return {} if raw is None else _in_words(raw)

    def findings(self) -> list[str]:
        """See `Store.findings`."""
        return self._link.findings()

    def newer_layout(self) -> str:
        """See `Store.newer_layout`. Notes the number of ours where none is noted yet."""
        key = self._keys.layout
        noted = self._link.try_command("GET", key, key=key)
        if noted is None:
            self._link.try_command("SET", key, LAYOUT, "NX", key=key)
            return ""
        found = _text(noted)
        if found.isdecimal() and int(found) <= LAYOUT:
            return ""
        return (
            f"store (reliable_store_url): expected keys that this celery_reliable knows (layout {LAYOUT}), found layout {found} "
            f"at {key!r}, which a newer one has made; upgrade celery-reliable here, or set a reliable_key_prefix of its own: "
            "nothing else was read or changed"
        )

    def close(self) -> None:
        """See `Store.close`."""
        self._link.close()

    def _wait(self, place: Place) -> None:
        if self._wait_replicas:
            self._link.wait(self._wait_replicas, timeout=self._timeout, key=place.alone)


def _kept_id(job: Job, task_id: str) -> str:
    return task_id if job.kind == "declared" else ""


def _uuid_bytes(task_id: str) -> bytes:
    """Return the 16 bytes of a UUID, nothing of any other id; `uuid_bytes` in common.lua does the same."""
    return bytes.fromhex(task_id.replace("-", "")) if _UUID.fullmatch(task_id) else b""


def _flat(token: str) -> str:
    """Keep the record's separator out of a token, which is only ever compared."""
    return token.replace("%", "%25").replace("|", "%7C") if "|" in token or "%" in token else token


def _letter(raw: bytes) -> tuple[str, bytes]:
    """Return status and body; before them is the number of the label, see `keep_letter` in common.lua."""
    if raw[:1] == b"d":
        return "dead", raw[_BEFORE_BODY:]
    return "replayed", raw[_BEFORE_BODY:].split(b"\n", 1)[1]


def _replay_answer(answer: Sequence[Any]) -> base.Replaying | base.Refused:
    if answer[0] == b"replaying":
        return base.Replaying(int(answer[1]))
    return base.Refused(_text(answer[1]), _text(answer[2]))  # type: ignore[arg-type]  # the script's closed set


def _pairs(flat: Any) -> Iterable[tuple[bytes, bytes]]:
    if isinstance(flat, dict):
        return flat.items()
    return zip(flat[::2], flat[1::2], strict=True)


def _scored(reply: Any) -> Iterator[tuple[str, int]]:
    items = reply if reply and isinstance(reply[0], list | tuple) else list(_pairs(reply))
    return ((_text(member), int(float(score))) for member, score in items)


def _submit_answer(answer: Sequence[Any]) -> base.SubmitAnswer:
    if answer[0] == b"new":
        return base.New(answer[1])
    if answer[0] == b"mismatch":
        return base.Mismatch(_text(answer[1]))
    _, task_id, state, publish, life, outcome, replaced = answer
    kept = outcome[1:] if outcome[:1] == b"=" else None
    return base.Existing(_text(task_id), _text(state), _text(publish), life, kept, bool(replaced))  # type: ignore[arg-type]  # closed sets


def _run(answer: Sequence[Any]) -> base.Run:
    _, fence, life, attempt, delivery, snoozes, checks, envelope, *saved = answer
    names = {_text(name): body for name, body in _pairs(saved)}
    return base.Run(int(fence), life, attempt, delivery, snoozes, checks, names, envelope or None)


_CLAIM_ANSWERS: Mapping[bytes, Callable[[Sequence[Any]], base.ClaimAnswer]] = {
    b"run": _run,
    b"done": lambda answer: base.Done(_text(answer[1]), answer[2]),
    b"dead": lambda answer: base.Dead(_text(answer[1]), _letter(answer[2])[1] if answer[2] else b""),
    b"busy": lambda answer: base.Busy(int(answer[1]) / 1000),
    b"notyet": lambda answer: base.NotYet(int(answer[1]) / 1000),
    b"poisoned": lambda answer: base.Poisoned(int(answer[1]), answer[2], answer[3], answer[4], tuple(answer[5:])),
    b"mismatch": lambda answer: base.Mismatch(_text(answer[1])),
    b"over": lambda answer: base.Over(_text(answer[1])),  # type: ignore[arg-type]  # the script's closed set
}

_SETTLE_ANSWERS: Mapping[bytes, base.SettleAnswer] = {
    b"ok": base.Settled(),
    b"revoked": base.Settled(revoked=True),
    b"lost_writes": base.Settled(lost_writes=True),
    b"stale": base.Stale(),
}

_STATES = {"W": "waiting", "R": "running", "X": "dead", "O": "over", "D": "done", "u": "done", "d": "done"}
_FIELDS = (
    "life",
    "fence",
    "attempts",
    "lost",
    "snoozes",
    "checks",
    "at_ms",
    "token",
    "marks",
    "fingerprint",
    "task_id",
)
_COUNTS = ("attempts", "lost", "snoozes", "checks")


def _in_words(raw: bytes) -> dict[str, str]:
    state = _STATES.get(chr(raw[0]))
    if state is None:
        msg = f"record not understood: {raw[:40]!r}; it was written by another version"
        raise StoreError(msg)
    if state == "done":
        return {"state": state}
    words = dict(zip(_FIELDS, raw.decode(errors="replace").split("|", 11)[1:], strict=True))
    if "l" in words["marks"]:  # the id of the dead life before this one stands behind it
        words["task_id"] = words["task_id"].rpartition("\n")[0]
    words |= {name: words[name] or "0" for name in _COUNTS}
    words["attempt"] = str(int(words.pop("attempts")) + 1)
    words["delivery"] = str(int(words.pop("lost")) + 1)
    token = words.pop("token")
    if state == "running":
        words["holder"] = token
    if state in ("over", "dead"):
        words["reason" if state == "over" else "letter_id"] = token
    if words.get("reason") == "revoked":
        state = "revoked"
    return {"state": state, **{name: value for name, value in words.items() if value}}
