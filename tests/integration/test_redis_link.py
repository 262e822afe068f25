"""A command that is sent now and whose reply is taken later, on a real server that may do anything in between."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from celery_reliable.errors import StoreFull, StoreUnavailable
from celery_reliable.stores.base import Existing, Job, New
from celery_reliable.stores.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_reliable.testing.servers import RedisSentinel, RedisServer

pytestmark = pytest.mark.integration

JOB = Job("order:1", "declared")
LONG = 60.0


@pytest.fixture
def store(private_redis: RedisServer) -> Iterator[RedisStore]:
    """A store with one kept connection, whose server knows its scripts."""
    with contextlib.closing(RedisStore(private_redis.url)) as made:
        made.submit(Job("order:0", "declared"), task_id="0", ttl=LONG)
        yield made


@pytest.fixture
def server(private_redis: RedisServer) -> Iterator[redis.Redis]:
    """The server, by a client of its own."""
    with redis.Redis.from_url(private_redis.url) as client:
        yield client


def begun(store: RedisStore, task_id: str = "A", job: Job = JOB) -> Any:
    """Begin to submit."""
    return store.begin_submit(job, task_id=task_id, envelope=b"envelope", ttl=LONG)


def hang_up(server: redis.Redis) -> None:
    """Close every connection but that of this client."""
    server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_a_submission_is_with_the_server_before_its_answer_is_asked_for(store: RedisStore) -> None:
    """Both that of a key and that of a ledger entry; no connection is opened for it."""
    answer = begun(store)
    assert dict(store.ledger()) == {"A": b"envelope"}
    assert answer() == New(1)
    answer = begun(store, "B", Job("B", "own", store.now()))
    assert dict(store.ledger()) == {"A": b"envelope", "B": b"envelope"}
    assert answer() == New(1)


def test_other_verbs_in_between_get_their_own_replies(store: RedisStore) -> None:
    """On other connections; a second submission of the key comes second."""
    first = begun(store)
    second = begun(store, "B")
    assert store.inspect(JOB)["state"] == "waiting"
    assert isinstance(second(), Existing)
    assert first() == New(1)


def test_an_answer_that_nobody_asks_for_is_nobody_else_s(store: RedisStore) -> None:
    """Its connection is not used again."""
    begun(store)
    assert store.inspect(JOB)["state"] == "waiting"
    assert store.entry(JOB, task_id="A") == b"envelope"


def test_a_submission_survives_a_connection_that_was_closed_before_it(store: RedisStore, server: redis.Redis) -> None:
    """The server had closed the kept one; a new one is opened when the answer is asked for."""
    epoch = store._link.epoch
    hang_up(server)
    assert begun(store)() == New(1)
    assert store._link.epoch > epoch


def test_a_connection_that_breaks_before_the_answer_submits_once_more(store: RedisStore, server: redis.Redis) -> None:
    """Whether the first one arrived is not known; the same id again is the same submission."""
    answer = begun(store)
    hang_up(server)
    assert answer() in (New(1), Existing("A", "waiting", "same", 1))
    assert dict(store.ledger()) == {"A": b"envelope"}


@pytest.mark.parametrize("options", ["", "?max_connections=2"])
def test_any_number_of_connections_may_be_lost(private_redis: RedisServer, server: redis.Redis, options: str) -> None:
    """redis-py 8 lets a pool make a hundred connections, and counts those that are gone, unless they were given back to it."""
    with contextlib.closing(RedisStore(private_redis.url + options)) as store:
        for _ in range(150):
            hang_up(server)
            assert store.entry(JOB, task_id="A") is None


def test_any_number_of_connections_to_a_master_may_be_lost(redis_sentinel: RedisSentinel) -> None:
    """redis-py has a pool of its own for them, which counts as well."""
    hosts = ",".join(f"{host}:{port}" for host, port in redis_sentinel.addresses)
    store = RedisStore(f"sentinel://{hosts}/{redis_sentinel.master_name}")
    for _ in range(150):
        assert store.entry(JOB, task_id="A") is None
        store.close()


def test_a_server_that_has_gone_is_told_when_the_answer_is_asked_for(
    store: RedisStore, server: redis.Redis, private_redis: RedisServer
) -> None:
    """`StoreUnavailable`, whether it went before the submission or after."""
    server.client_pause(60_000)
    answer = begun(store)
    private_redis.stop()
    with pytest.raises(StoreUnavailable):
        answer()
    with pytest.raises(StoreUnavailable):
        begun(store)()


def test_a_script_that_the_server_has_forgotten_is_sent_whole(store: RedisStore, server: redis.Redis) -> None:
    """As at its first use."""
    begun(store)()
    server.script_flush()
    assert isinstance(begun(store, "B")(), Existing)


def test_a_full_server_refuses_in_its_answer(store: RedisStore, server: redis.Redis) -> None:
    """`StoreFull`, and the connection serves on."""
    begun(store)()
    server.config_set("maxmemory", "1")
    with pytest.raises(StoreFull):
        begun(store, "B", Job("B", "own", store.now()))()
    server.config_set("maxmemory", "0")
    assert begun(store, "B", Job("B", "own", store.now()))() == New(1)
    assert dict(store.ledger()) == {"A": b"envelope", "B": b"envelope"}


def test_a_submitted_key_is_claimed_and_done_in_one_round_trip_each(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirmed by its broker or not, joined or not: the large scripts are for what is not so."""
    verbs: list[str] = []
    script = store._link.script

    def noted(verb: str, *rest: Any) -> Any:
        verbs.append(verb)
        return script(verb, *rest)

    monkeypatch.setattr(store._link, "script", noted)
    for number, confirmed in enumerate((False, True), 1):
        job, task_id, token = Job(f"order:{number}", "declared"), f"{number}", f"token-{number}"
        store.submit(job, task_id=task_id, fingerprint="f" * 8, ttl=LONG)
        if confirmed:
            store.published(job, task_id=task_id)
            store.submit(job, task_id="another", fingerprint="f" * 8, ttl=LONG)
        verbs.clear()
        held: dict[str, Any] = {"task_id": task_id, "token": token}
        run: Any = store.claim(
            job, **held, life=1, fingerprint="f" * 8, ttl=LONG, max_deliveries=3, record_ttl=LONG, first=True
        )
        store.complete(job, **held, fence=run.fence, outcome=None, marker_ttl=LONG)
        assert verbs == ["claim_declared", "finish_declared"]
