"""Verbs of a store with what tests have no view on, and many that call them at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.errors import StoreUnavailable
from celery_reliable.stores.base import Busy, ClaimAnswer, Job, Run, Settled
from celery_reliable.stores.sql import SqlStore, open_sql_store
from tests.store_contract import LONG, expect, kinds, together
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery_reliable.testing.servers import Server

CLAIMERS = 50
KEYS = 20


def submit(store: Any, job: Job, task_id: str = "A", **changes: Any) -> Any:
    """Submit a declared job."""
    return store.submit(job, **{"task_id": task_id, "ttl": LONG, **changes})


def claim(store: Any, job: Job, *, token: str = "token", **changes: Any) -> ClaimAnswer:
    """Claim it."""
    given = {"task_id": "A", "life": 1, "ttl": LONG, "max_deliveries": 5, "record_ttl": LONG}
    answer: ClaimAnswer = store.claim(job, **{**given, "token": token, **changes})
    return answer


def complete(store: Any, job: Job, run: Run, *, token: str = "token") -> Any:
    """Complete it."""
    return store.complete(job, task_id="A", fence=run.fence, token=token, outcome=b"out", marker_ttl=LONG)


def declared(name: str = "order:1") -> Job:
    """Return the job of a declared key."""
    return Job(name, "declared")


@contextlib.contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do something meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


# --- what holds on every server


def expect_one_run_a_key(url: str, prefix: str) -> None:
    """Let fifty claimers on ten stores ask for keys of which half, but not the first, were submitted."""
    with _stores(url, prefix, timeout=20.0) as stores:
        jobs = [declared(f"order:{number}") for number in range(KEYS)]
        for job in jobs[1::2]:
            submit(stores[0], job)

        def claim_all(number: int) -> list[ClaimAnswer]:
            return [claim(stores[number % len(stores)], job, token=f"token {number}") for job in jobs]

        answers = together(CLAIMERS, claim_all)
    for of_one_key in zip(*answers, strict=True):
        assert len(kinds(of_one_key, Run)) == 1
        assert len(kinds(of_one_key, Busy)) == CLAIMERS - 1


def expect_at_most_one_run_a_key_through_a_crash(server: Server, prefix: str) -> None:
    """Let fifty claimers ask until they are answered, while the server is killed and started."""
    server.start()
    with _stores(server.url, prefix, timeout=5.0) as stores:
        jobs = [declared(f"order:{number}") for number in range(KEYS)]

        def claim_all(number: int) -> list[ClaimAnswer]:
            return [_insist(stores[number % len(stores)], job, token=f"token {number}") for job in jobs]

        with in_thread(lambda: together(CLAIMERS, claim_all)) as claiming:
            wait_until(lambda: stores[0].inspect(jobs[0]).get("state") == "running", LONG, "the first claim")
            server.kill()
            server.start()
            answers = claiming.result(timeout=LONG)
    runs = [len(kinds(of_one_key, Run)) for of_one_key in zip(*answers, strict=True)]
    assert max(runs) == 1
    assert sum(runs) >= KEYS // 2
    assert all(isinstance(answer, Run | Busy) for answer in chain(*answers))


def expect_sound_counts_after_crossing(store: SqlStore) -> None:
    """Bury and replay four keys from eight sides."""

    def live_and_die(number: int) -> None:
        job = declared(f"order:{number % 4}")
        for turn in range(5):
            task_id = f"{number}:{turn}"
            answer = submit(store, job, task_id, envelope=b"call")
            life = answer.life
            found = claim(store, job, token=task_id, task_id=task_id, life=life)
            if isinstance(found, Run):
                facts: dict[str, Any] = {"letter_id": task_id, "letter": b"letter", "letter_ttl": LONG, "letter_max": 3}
                store.bury(job, task_id=task_id, fence=found.fence, token=task_id, **facts)
                replayed: dict[str, Any] = {"envelope": b"again", "body": b"body", "fingerprint": "", "ttl": LONG}
                store.replay(task_id, job, task_id=f"{task_id}:again", **replayed)

    together(8, live_and_die)
    counts = store.letter_counts()
    assert counts["kept"] == len(store.letters().letters) <= 3
    assert counts["buried"] == counts["kept"] + counts["trimmed"]


@contextlib.contextmanager
def _stores(url: str, prefix: str, *, timeout: float) -> Iterator[list[SqlStore]]:
    stores = [open_sql_store(url, key_prefix=prefix, timeout=timeout) for _ in range(10)]
    yield stores
    for store in stores:
        store.close()


def _insist(store: SqlStore, job: Job, *, token: str) -> ClaimAnswer:
    deadline = time.monotonic() + LONG
    while True:
        try:
            return claim(store, job, token=token)
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def expect_a_restart_to_be_outlived(store: SqlStore, server: Server) -> None:
    """Expect `StoreUnavailable` while the server is away; the next call works, and the lease is still held."""
    job = declared()
    submit(store, job)
    run = expect(Run, claim(store, job))
    server.stop()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="reliable_store_url"):
            claim(store, job)
    server.start()
    assert isinstance(claim(store, job, token="another"), Busy)
    assert complete(store, job, run) == Settled()
