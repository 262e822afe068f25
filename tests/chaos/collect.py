"""Ask store and broker what became of each job: on the way, and at the end, when all is quiet."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kombu import Connection

from celery_reliable.dead_letters import DeadLetter
from celery_reliable.errors import StoreError
from celery_reliable.stores import open_store
from celery_reliable.stores.base import Done, Job, Kind, Store
from celery_reliable.stores.sql.store import SqlStore
from tests.chaos.evidence import Bounds, Evidence, Fate
from tests.chaos.judge import Violation, unaccounted
from tests.chaos.ledger import Row
from tests.chaos.site import Site
from tests.waiting import POLL_INTERVAL

_HOUR = 3_600_000_000  # microseconds
_PAUSE = 5.0  # seconds
_QUIET = 180.0  # seconds: longer than RabbitMQ holds a message here that no ledger knows of
_ENDED = ("done", "dead", "revoked", "expired", "skipped")
QUEUE = "celery"


class Collector:
    """Reads what the store says, past all proxies."""

    def __init__(self, site: Site) -> None:
        """Take the judge's site; ``began`` is when the run did, by the store's clock."""
        self._site = site
        self._store: Store = open_store(site.store)
        if isinstance(self._store, SqlStore):
            self._store.create_tables()
        self._began = self._store.now()
        self._ledger = site.ledger.follow()
        self._rows: list[Row] = []
        self._counts: Counter[str] = Counter()
        self._members: dict[str, Mapping[str, Any]] = {}
        self._ids: dict[str, str] = {}
        self._ended: dict[str, Fate] = {}
        self._open: dict[str, Fate] = {}

    def close(self) -> None:
        """Close the connection, and let memory be looked through again (`watch`)."""
        self._store.close()
        gc.unfreeze()

    # --- fates

    def fate(self, member: Mapping[str, Any], *, ran_as: str) -> Fate:
        """Return the fate of one job. A callback has no id before it runs."""
        key = member["id"] or ran_as
        if not key:
            return Fate("none")
        for job in self._jobs(key, member["kind"]):
            words = self._store.inspect(job)
            if words:
                return self._said(job, words)
        return Fate("none")

    def _jobs(self, key: str, kind: str) -> Iterable[Job]:
        """Return where a job's record may lie: that of an own key lies by the hour of its submission."""
        named: dict[str, Kind] = {"declared": "declared", "slot": "slot"}
        if kind != "own":
            return [Job(key, named.get(kind, "given"))]
        hours = range(self._began // _HOUR, self._store.now() // _HOUR + 1)
        return [Job(key, "own", hour * _HOUR) for hour in hours]

    def _said(self, job: Job, words: Mapping[str, str]) -> Fate:
        state = words["state"]
        if state == "done":
            return Fate("done", self._fence(job))
        if state == "dead":
            return self._dead(words["letter_id"])
        return Fate(words.get("reason", state) if state == "over" else state)

    def _fence(self, job: Job) -> int | None:
        """Return the fence in the kept outcome: a claim of a finished job changes nothing and is told the outcome."""
        asked = {"task_id": "judge", "life": 0, "token": "judge", "ttl": 3.0, "max_deliveries": 1, "record_ttl": 60.0}
        answer = self._store.claim(job, **asked)  # type: ignore[arg-type]
        if not isinstance(answer, Done) or not answer.outcome:
            return None
        fence: int = json.loads(answer.outcome)["fence"]
        return fence

    def _dead(self, letter_id: str) -> Fate:
        found = self._store.letter(letter_id)
        if found is None:
            return Fate("dead without a letter")
        letter = DeadLetter.from_bytes(found[1])
        return Fate("dead", None, letter.reason, f"{letter.error_type}: {letter.error_message}"[:200])

    # --- what is left

    def residue(self) -> dict[str, int]:
        """Return how many messages wait or are held, and how many ledger entries there are."""
        entries = sum(1 for _ in self._store.ledger())
        return {"ledger entries": entries, **self._messages()}

    def _messages(self) -> dict[str, int]:
        with Connection(self._site.broker) as connection:
            channel = connection.channel()
            if connection.transport.driver_type == "redis":
                return {"messages": channel.client.llen(QUEUE), "messages held": channel.client.hlen("unacked")}
            return {"messages": channel.queue_declare(QUEUE, passive=True).message_count}

    # --- on the way

    def watch(self, stopped: threading.Event) -> None:
        """Read and ask on until told to stop: the marker of a finished job lives for an hour, a long run longer.

        Asked for is what was read the last time: most of it has ended since.
        """
        while not stopped.wait(_PAUSE):
            with suppress(StoreError):  # it is broken just now: the next time, then
                self._ask()
            self._read()
            gc.freeze()  # millions of rows stay: looking through them would stop the proxies, which are threads here

    def _read(self) -> None:
        """Read on in the ledger."""
        new = list(self._ledger.read())
        self._rows += new
        self._counts.update(row.what for row in new)
        for member in (one for row in new if row.what == "accepted" for one in row.facts["members"]):
            self._members[member["label"]] = member
        self._ids |= {row.label: row.facts["task_id"] for row in new if row.what == "start"}

    def _ask(self) -> None:
        """Ask the store for all that had not ended before. Raises `StoreUnavailable` while it is broken."""
        for label, member in [found for found in self._members.items() if found[0] not in self._ended]:
            fate = self.fate(member, ran_as=self._ids.get(label, ""))
            (self._ended if fate.state in _ENDED else self._open)[label] = fate

    def count(self, what: str) -> int:
        """Return how many rows of a kind were read."""
        return self._counts[what]

    @property
    def jobs(self) -> int:
        """How many jobs are known to be accepted."""
        return len(self._members)

    # --- at the end

    def look(self) -> None:
        """Read on, and ask for all that had not ended before."""
        self._read()
        self._ask()

    def wait_ended(self, timeout: float, *, bounds: Bounds) -> None:
        """Return when every accepted job has ended and nothing is left, or nothing that could end the others: the judge will see."""
        deadline = time.monotonic() + timeout
        lost, since = None, 0.0
        while (began := time.monotonic()) < deadline:
            found = self._lost(bounds)
            if found == [] or (found and found == lost and began - since > _QUIET):
                return
            if found != lost:
                lost, since = found, began
            time.sleep(max(10 * POLL_INTERVAL, 2 * (time.monotonic() - began)))  # a look at a long ledger takes long

    def _lost(self, bounds: Bounds) -> list[Violation] | None:
        """Return the jobs that have not ended though nothing is left that could end them, or None while something is."""
        if any(self.residue().values()):  # asked first: what there is to do needs the machine
            return None
        self.look()
        return list(unaccounted(Evidence(self._rows, fates={**self._open, **self._ended}, bounds=bounds)))

    def evidence(self, bounds: Bounds) -> Evidence:
        """Return everything, for the judge: what every job became now, or had become when its marker was still there."""
        self.look()
        fates = {label: self._last(label, member) for label, member in self._members.items()}
        return Evidence(self._rows, self._site.accounts.writes(), fates, self.residue(), bounds)

    def _last(self, label: str, member: Mapping[str, Any]) -> Fate:
        """Return what a job became: what was seen of it before, where that has not changed and the store knows less of it by now.

        An outcome, with the fence in it, lives for an hour, and may end before the marker of its job.
        """
        found, seen = self.fate(member, ran_as=self._ids.get(label, "")), self._ended.get(label)
        if seen is not None and found.fence is None and found.state in ("none", seen.state):
            return seen
        return found
