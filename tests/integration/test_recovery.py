"""What a dead worker held, and what vanished between the queue and a worker, comes back by itself on Redis."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import time
import uuid
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from celery_reliable import internals
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.payloads import Envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job, Run
from celery_reliable.worker.broker import NEAR, RedisBroker
from celery_reliable.worker.recovery import LedgerSweep, Rounds
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.worker"
PLAIN = "tests.integration.apps.plain"
POPPING = "tests.integration.apps.popping"
LEASE = 3.0
DEADLINE = 30.0


@pytest.fixture
def stage(private_redis: RedisServer, tmp_path: Path) -> Stage:
    """A Redis of the test's own; kombu's visibility timeout is an hour, so nothing comes back by that."""
    broker, backend, store = (f"{private_redis.url.removesuffix('/0')}/{number}" for number in range(3))
    return Stage(tmp_path, broker=broker, backend=backend, store=store)


@pytest.fixture
def app(stage: Stage) -> Iterator[Celery]:
    """To submit with."""
    with client(stage) as app:
        yield app


@pytest.fixture
def broker(stage: Stage) -> Iterator[redis.Redis]:
    """The broker's database."""
    with redis.Redis.from_url(stage.broker) as connection:
        yield connection


def start(workers: Workers, stage: Stage, name: str, pool: str = "prefork") -> Worker:
    """Start a worker with one slot."""
    return workers.start(APP, pool=pool, name=name, concurrency=1, env=stage.environment(), arguments=QUICK)


def wait_renewed(broker: redis.Redis, tag: bytes) -> None:
    """Return when the keeper of a held message has made it young again."""
    before = broker.zscore("unacked_index", tag)
    wait_until(lambda: broker.zscore("unacked_index", tag) != before, DEADLINE, "a renewal")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_work_of_a_killed_worker_starts_again_elsewhere(
    app: Celery, stage: Stage, broker: redis.Redis, workers: Workers, pool: str
) -> None:
    """G6: within the lease and two seconds, the running job and those that waited in the dead worker's memory.

    They wait for an ETA, and for Celery's rate limit, in its bucket, and are kept young there for longer than the lease.
    Somebody was killed in the middle of kombu's own sweep before, and left its lock: it holds up nobody.
    """
    broker.set("unacked_mutex", "left by a dead worker", ex=300)
    stage = dataclasses.replace(stage, conf={"task_annotations": {"flaky": {"rate_limit": "1/h"}}})
    first = workers.start(APP, pool=pool, name="first", concurrency=2, env=stage.environment(), arguments=QUICK)
    label, waiting, limited = uuid.uuid4().hex, uuid.uuid4().hex, uuid.uuid4().hex
    for _ in range(2):
        app.tasks["flaky"].delay(limited, 0)
    stage.wait_entries(limited, 1)
    wait_until(lambda: stage.messages() == (0, 1), DEADLINE, "the rate-limited received")
    [in_bucket] = cast("list[bytes]", broker.zrange("unacked_index", 0, -1))
    countdown = app.tasks["add"].apply_async((1, waiting), countdown=6)
    wait_until(lambda: broker.hlen("unacked") == 2, DEADLINE, "the countdown received")
    job = app.tasks["held"].delay(label, "gate")
    stage.wait_entries(label, 1)
    start(workers, stage, "second", pool)
    for _ in range(4):  # a third of the lease apart: the watch of a fleet that runs has seen all messages for as long
        wait_renewed(broker, in_bucket)
    assert broker.zscore("unacked_index", in_bucket) is not None
    assert stage.events("restored") == []
    first.kill()
    killed = time.monotonic()
    stage.open("gate")

    assert job.get(timeout=DEADLINE) is None
    assert countdown.get(timeout=DEADLINE) == 2
    stage.wait_entries(limited, 2)
    again = [entry for entry in stage.entries(label) if entry["step"] == "start"][1]
    # Both processes read the same clock. The bound of G6 is lease + 2; the rest is for a loaded machine.
    assert again["at"] - killed < LEASE + 2 + 3
    assert broker.get("unacked_mutex") == b"left by a dead worker"


def test_kombu_takes_nothing_until_it_is_known_what_the_clock_is_worth(app: Celery, broker: redis.Redis) -> None:
    """Its sweep goes by the worker's wall clock; green pools sweep whenever nothing came."""
    app.tasks["add"].delay(1, "label")
    with app.connection_for_read() as first, app.connection_for_read() as second:
        queue = app.amqp.queues["celery"](first.default_channel)
        assert queue.get() is not None
        broker.zadd("unacked_index", dict.fromkeys(cast("list[bytes]", broker.zrange("unacked_index", 0, -1)), 1.0))
        channel: Any = second.default_channel
        internals.hold_sweep(channel)
        channel.qos.restore_visible(interval=1)
        assert (broker.hlen("unacked"), broker.llen("celery")) == (1, 0)

        RedisBroker(channel).allow_for_skew(3600.0)
        channel.qos.restore_visible(interval=1)
        assert (broker.hlen("unacked"), broker.llen("celery")) == (0, 1)


def test_message_that_vanished_in_the_pop_window_runs_once(
    app: Celery, stage: Stage, broker: redis.Redis, workers: Workers
) -> None:
    """G1: kombu pops a message and only then notes that it has it; a kill in between destroys it.

    Of two workers only one looks for such messages; it looks in the queue of the other, too.
    """
    label, queues = uuid.uuid4().hex, ("left", "right")
    results = [app.tasks["add"].apply_async((1, f"{label}:{queue}"), queue=queue) for queue in queues]
    for queue in queues:
        assert broker.rpop(queue) is not None  # what a worker does in the moment before it dies
    for queue in queues:
        workers.start(APP, pool="threads", name=queue, queues=[queue], env=stage.environment(), arguments=QUICK)

    assert [result.get(timeout=DEADLINE) for result in results] == [2, 2]
    assert [len(stage.events("published_again", result.id)) for result in results] == [1, 1]
    assert [len(stage.entries(f"{label}:{queue}")) for queue in queues] == [1, 1]


def test_worker_killed_in_the_pop_window_takes_nothing_along(
    app: Celery, stage: Stage, broker: redis.Redis, workers: Workers, label: str
) -> None:
    """The same by a SIGKILL in that very moment: the message is in no place any more, and its task runs once."""
    first = workers.start(POPPING, pool="threads", name="first", env=stage.environment(), arguments=QUICK)
    stage.plan("popped", label, "kill")
    result = app.tasks["add"].apply_async((1, label), task_id=label)
    assert first.wait(DEADLINE) == -signal.SIGKILL
    assert (stage.messages(), stage.entries(label)) == ((0, 0), [])

    start(workers, stage, "second", "threads")
    assert result.get(timeout=DEADLINE) == 2
    assert [len(stage.entries(label)), len(stage.events("published_again", label))] == [1, 1]


def test_backlog_is_not_published_again(app: Celery, stage: Stage, broker: redis.Redis, workers: Workers) -> None:
    """A message that waits its turn is not lost, however old it is."""
    start(workers, stage, "only")
    label = uuid.uuid4().hex
    app.tasks["held"].delay(label, "gate")
    stage.wait_entries(label, 1)
    waiting = [app.tasks["add"].delay(1, f"{label}:waiting") for _ in range(200)]
    wait_until(lambda: int(broker.llen("celery")) >= len(waiting) - 2, DEADLINE, "a backlog")
    time.sleep(2 * LEASE + 3)  # that none was published again can only be seen by waiting past the moment

    assert stage.events("published_again") == []
    stage.open("gate")
    stage.wait_entries(f"{label}:waiting", len(waiting), timeout=DEADLINE)
    assert stage.events("published_again") == []


def multiply(app: Celery, stage: Stage, broker: redis.Redis, count: int) -> None:
    """Make a backlog of one real submission: its message and its ledger entry, again and again, each a little later."""
    broker.delete("celery")
    app.tasks["add"].delay(1, "label")
    (raw,) = [cast("bytes", one) for one in broker.lrange("celery", 0, -1)]
    broker.delete("celery")
    message = json.loads(raw)
    with redis.Redis.from_url(str(stage.store)) as store:
        ((task_id, entry),) = store.hgetall("cr:led").items()
        store.delete("cr:led")
        first, text = task_id.decode(), Envelope.from_bytes(entry).to_bytes()
        plain = text if text[:1] == b"[" else zlib.decompress(text)
        stamp = message["headers"]["reliable"]["s"]
        for start in range(0, count, 5000):
            messages, entries = [], {}
            for number in range(start, min(start + 5000, count)):
                again, later = str(uuid.UUID(int=number)), str(stamp + number)
                messages.append(raw.decode().replace(first, again).replace(str(stamp), later))
                entries[again] = plain.decode().replace(first, again).replace(str(stamp), later)
            broker.lpush("celery", *messages)
            store.hset("cr:led", mapping=entries)


def test_sweep_of_a_large_backlog_publishes_what_vanished_and_nothing_else(
    app: Celery, stage: Stage, broker: redis.Redis
) -> None:
    """Whatever waits is there; each look asks once what a queue holds, however many entries it looks at."""
    multiply(app, stage, broker, 20_000)
    vanished = json.loads(cast("bytes", broker.rpop("celery")))["headers"]["id"]
    with app.connection_for_write() as connection:
        sweep, view = LedgerSweep(app, quiet=0.01), RedisBroker(connection.default_channel)
        looks = 0
        while not stage.events("published_again"):
            sweep.look(view, queues={"celery"})
            looks += 1
            assert looks < 100
        for _ in range(looks):  # a second pass, with the message at the other end of the queue
            sweep.look(view, queues={"celery"})
        view.close()

    again = [event["task_id"] for event in stage.events("published_again")]
    assert set(again) == {vanished}  # more than once where a pass takes longer than the pause of this test's sweep
    assert broker.llen("celery") == 19_999 + len(again)
    assert broker.info("commandstats")["cmdstat_lrange"]["calls"] <= 2 * looks + 1


def test_message_to_a_queue_that_nobody_consumes_is_told_once(app: Celery, stage: Stage, broker: redis.Redis) -> None:
    """It waits for a worker that will; it is not published again and again."""
    app.tasks["add"].apply_async((1, "label"), queue="nobody")
    with app.connection_for_write() as connection:
        sweep, view = LedgerSweep(app, quiet=0.01), RedisBroker(connection.default_channel)
        broker.delete("nobody")

        def told() -> bool:
            sweep.look(view, queues={"celery"})
            return bool(stage.events("queue_unconsumed"))

        wait_until(told, DEADLINE, "the entry quiet for long enough")
        for _ in range(4):
            sweep.look(view, queues={"celery"})
        assert [event["queue"] for event in stage.events("queue_unconsumed")] == ["nobody"]
        assert stage.events("published_again") == []
        for _ in range(2):
            sweep.look(view, queues={"celery", "nobody"})
        view.close()
    assert len(stage.events("published_again")) == 1


def test_message_that_nobody_settles_becomes_a_letter(app: Celery, stage: Stage, broker: redis.Redis) -> None:
    """Bounded: after three more times it is ``lost``. The sweep's decision, without the wait between the times."""
    result = app.tasks["add"].delay(1, "label")
    store = runtime_of(app).store
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        sweep, view = LedgerSweep(app, quiet=0.01), RedisBroker(channel)
        for _ in range(8):
            broker.delete("celery")
            time.sleep(0.15)  # longer than 0.01 * 2**3: the doubling pause
            sweep.look(view, queues={"celery"})
            sweep.look(view, queues={"celery"})
        view.close()
    ((_, _, raw),) = store.letters().letters
    assert (DeadLetter.from_bytes(raw).reason, DeadLetter.from_bytes(raw).task_id) == ("lost", result.id)
    assert len(stage.events("published_again", result.id)) == 3
    assert list(store.ledger()) == []


def test_look_at_the_ledger_reads_each_queue_once(app: Celery, broker: redis.Redis) -> None:
    """However many entries wait: a look that lasts longer than the leader's term keeps anyone from restoring."""
    for number in range(100):
        app.tasks["add"].delay(number, "label")
    with app.connection_for_write() as connection:
        sweep, view = LedgerSweep(app, quiet=0.01), RedisBroker(connection.default_channel)
        sweep.look(view, queues={"celery"})
        broker.config_resetstat()
        sweep.look(view, queues={"celery"})
        view.close()
    assert broker.info("commandstats")["cmdstat_lrange"]["calls"] == 1


def test_retry_that_waits_behind_a_backlog_is_not_published_again(
    app: Celery, stage: Stage, broker: redis.Redis
) -> None:
    """What was there before the retry is younger than its submission, but came earlier than the retry itself."""
    result = app.tasks["add"].delay(1, "label")
    raw = cast("bytes", broker.rpop("celery"))
    for number in range(2 * NEAR):
        app.tasks["add"].delay(number, "the backlog")
    time.sleep(0.5)  # stamps are as exact as the store's clock is known here: by half a round trip, which may be long
    store = runtime_of(app).store
    job = Job(result.id, "own", json.loads(raw)["headers"]["reliable"]["s"])
    times: dict[str, Any] = {"ttl": 15.0, "record_ttl": 3600.0}
    claim = store.claim(job, task_id=result.id, life=0, token="a", max_deliveries=5, **times)
    assert isinstance(claim, Run)
    store.release(job, fence=claim.fence, token="a", outcome="retry", delay=0.0, record_ttl=3600.0)
    broker.lpush("celery", raw)
    with app.connection_for_write() as connection:
        sweep, view = LedgerSweep(app, quiet=0.01), RedisBroker(connection.default_channel)
        for _ in range(4):
            time.sleep(0.02)  # longer than the sweep's patience with an entry that nothing stands in front of
            sweep.look(view, queues={"celery"})
        assert stage.events("published_again") == []
        broker.delete("celery")
        while not stage.events("published_again"):
            sweep.look(view, queues={"celery"})
        view.close()


def test_young_ledger_is_not_read_before_an_entry_can_be_old(app: Celery, stage: Stage, broker: redis.Redis) -> None:
    """A leader of busy queues does not read the same young entries each second, and looks at them in time."""
    result = app.tasks["add"].delay(1, "label")
    broker.delete("celery")
    with app.connection_for_write() as connection:
        sweep, view = LedgerSweep(app, quiet=1.0), RedisBroker(connection.default_channel)
        assert sweep.is_due()
        sweep.look(view, queues={"celery"})
        assert not sweep.is_due()
        assert stage.events("published_again") == []
        wait_until(sweep.is_due, what="the entry to be old")
        sweep.look(view, queues={"celery"})
        view.close()
    assert [event["task_id"] for event in stage.events("published_again")] == [result.id]


def test_long_job_is_not_given_to_a_second_worker(app: Celery, stage: Stage, workers: Workers, tmp_path: Path) -> None:
    """A job of four visibility timeouts with two workers starts once: its message is kept young."""
    short = Stage(
        tmp_path,
        broker=stage.broker,
        backend=stage.backend,
        store=stage.store,
        conf={"broker_transport_options": {"visibility_timeout": 3, "unacked_restore_interval": 1}},
    )
    for name in ("one", "two"):
        start(workers, short, name)
    label = uuid.uuid4().hex
    assert app.tasks["busy"].delay(label, 12).get(timeout=DEADLINE + 12) == label
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert stage.events("busy") == []


def test_a_thousand_held_messages_are_kept_young_in_one_round_trip(app: Celery, broker: redis.Redis) -> None:
    """And those that are not there any more are named, and not made to be there again."""
    tags = [f"tag-{number:04}" for number in range(1000)]
    broker.zadd("unacked_index", dict.fromkeys(tags[1:], 1.0))
    with app.connection_for_write() as connection:
        view = RedisBroker(connection.default_channel)
        view.extend(tags[:1])  # the script is loaded by the first call
        broker.config_resetstat()
        assert view.extend(tags) == tags[:1]
        view.close()
    calls = {name: facts["calls"] for name, facts in broker.info("commandstats").items()}
    assert calls.pop("cmdstat_evalsha") == 1
    assert broker.zcount("unacked_index", 2, "+inf") == 999
    assert set(calls) <= {"cmdstat_zadd", "cmdstat_zscore", "cmdstat_time", "cmdstat_config|resetstat"}


def test_score_that_a_clock_ahead_has_written_moves_like_any_other(app: Celery, broker: redis.Redis) -> None:
    """Who watches takes a score that stands still for a sign that its holder is dead."""
    broker.zadd("unacked_index", {"tag": time.time() + 3600})
    with app.connection_for_write() as connection:
        view = RedisBroker(connection.default_channel)
        assert view.extend(["tag"]) == []
        first = view.held_anywhere()["tag"]
        assert view.extend(["tag"]) == []
        assert float(first) < float(view.held_anywhere()["tag"]) < time.time() + 60
        view.close()


@contextlib.contextmanager
def looking(app: Celery) -> Iterator[tuple[Rounds, RedisBroker]]:
    """Look as the thread of a worker does, round by round."""
    with app.connection_for_write() as connection:
        consumer = SimpleNamespace(app=app, task_consumer=SimpleNamespace(channel=connection.default_channel))
        rounds = Rounds(consumer)
        view = rounds._current()
        assert view is not None
        yield rounds, view
        rounds.close()


def hold_all(broker: redis.Redis) -> None:
    """Let a worker hold whatever waits."""
    raws = [json.loads(cast("bytes", one)) for one in broker.lrange("celery", 0, -1)]
    broker.delete("celery")
    broker.hset("unacked", mapping={str(n): json.dumps([raw, "", "celery"]) for n, raw in enumerate(raws)})
    broker.zadd("unacked_index", {str(n): 1.0 for n in range(len(raws))})


def silent_for_ever(rounds: Rounds, view: RedisBroker) -> None:
    """Let the watch have seen every held message stand still all the time."""
    held = view.held_anywhere()
    rounds._watch.look(held)
    rounds._watch._seen = {tag: (score, float("-inf")) for tag, score in held.items()}


def test_many_silent_messages_go_back_in_slices_and_foreign_ones_are_read_once(
    app: Celery, broker: redis.Redis
) -> None:
    """A round ends after a second, so that the leader keeps its role; the next one goes on."""
    app.tasks["add"].delay(1, "label")
    (raw,) = [json.loads(cast("bytes", one)) for one in broker.lrange("celery", 0, -1)]
    broker.delete("celery")
    ours, foreign = json.dumps([raw, "", "celery"]), json.dumps([{"headers": {}}, "", "celery"])
    out = {f"ours-{number}": ours for number in range(1500)} | {f"theirs-{number}": foreign for number in range(150)}
    broker.hset("unacked", mapping=dict(out.items()))
    broker.zadd("unacked_index", dict.fromkeys(out, 1.0))
    with looking(app) as (rounds, view):

        def go() -> bool:
            silent_for_ever(rounds, view)
            rounds._restore(view)
            return (broker.llen("celery"), len(rounds._foreign)) == (1500, 150)

        wait_until(go, DEADLINE, "all back")
        broker.config_resetstat()
        go()
    assert broker.hlen("unacked") == 150
    assert "cmdstat_hmget" not in broker.info("commandstats")


def test_messages_go_back_in_few_round_trips(app: Celery, broker: redis.Redis) -> None:
    """Each one would wait for the interpreter, which a worker that receives thousands of messages rarely gives away."""
    many = 600
    for number in range(many):
        app.tasks["add"].delay(number, "label")
    hold_all(broker)
    with looking(app) as (rounds, view):
        silent_for_ever(rounds, view)
        broker.config_resetstat()
        assert rounds._restore(view) is False
    calls = broker.info("commandstats")
    assert broker.llen("celery") == many
    assert calls["cmdstat_hmget"]["calls"] <= 2
    assert (
        calls["cmdstat_evalsha"]["calls"] <= many + 5
    )  # the messages themselves in pipelines, their trails in two calls


def test_what_is_due_first_is_received_first(app: Celery, broker: redis.Redis) -> None:
    """Of the messages of one silent worker: what has no time, then the earliest; receiving thousands takes seconds."""
    for seconds in (300, 100, None, 200):
        app.tasks["add"].apply_async((seconds, "label"), countdown=seconds)
    hold_all(broker)
    with looking(app) as (rounds, view):
        silent_for_ever(rounds, view)
        assert rounds._restore(view) is False
    back = [json.loads(cast("bytes", one))["headers"]["eta"] or "" for one in broker.lrange("celery", 0, -1)]
    assert (len(back), back) == (4, sorted(back, reverse=True))


def test_a_watcher_that_stood_still_in_a_round_restores_nothing(app: Celery, broker: redis.Redis) -> None:
    """Whoever holds the messages may have been stopped with it: the watch begins anew, in the middle of a round too."""
    for number in range(600):
        app.tasks["add"].delay(number, "label")
    hold_all(broker)
    with looking(app) as (rounds, view):
        silent_for_ever(rounds, view)
        rounds._watch._looked -= 60.0
        assert rounds._restore(view) is False
        assert rounds._watch.silent(after=0.0) == []
    assert (broker.llen("celery"), broker.hlen("unacked")) == (0, 600)


def test_hundreds_of_messages_with_an_eta_of_a_killed_worker_run_once_elsewhere(
    app: Celery, stage: Stage, broker: redis.Redis, workers: Workers, label: str
) -> None:
    """G6 for all of them: back within the lease and two seconds. `python -m benchmarks.fleet eta` does it with 10,000."""
    many = 400
    eager = (*QUICK, "--prefetch-multiplier", str(2 * many))
    first = workers.start(APP, name="first", concurrency=1, env=stage.environment(), arguments=eager)
    app.tasks["held"].delay(f"{label}:held", "never")  # so that the first runs none of them, due or not
    stage.wait_entries(f"{label}:held", 1)
    for number in range(many):
        app.tasks["add"].apply_async((number, label), countdown=5 + 5 * number / many)
    wait_until(lambda: broker.hlen("unacked") == many + 1, DEADLINE, "all held")
    workers.start(APP, pool="threads", name="second", concurrency=4, env=stage.environment(), arguments=QUICK)
    time.sleep(LEASE)  # the watch of a fleet that runs has seen every message for longer than the lease
    first.kill()
    killed = time.monotonic()

    entries = stage.wait_entries(label, many, timeout=2 * DEADLINE)
    assert sorted(entry["x"] for entry in entries) == list(range(many))
    restored = stage.events("restored")
    assert len(restored) == many + 1
    assert max(event["at"] for event in restored) - killed < LEASE + 2 + 3  # the last for a loaded machine


def test_another_application_s_messages_are_left_alone(stage: Stage, broker: redis.Redis, workers: Workers) -> None:
    """A message without our header belongs to somebody whose visibility timeout may be hours."""
    message = {"body": "e30=", "headers": {"id": "foreign", "task": "theirs"}, "properties": {"delivery_tag": "t"}}
    broker.hset("unacked", "t", json.dumps([message, "", "celery"]))
    broker.zadd("unacked_index", {"t": time.time()})
    start(workers, stage, "only")
    time.sleep(LEASE + 3)  # that it was not taken can only be seen by waiting past the moment

    assert broker.hexists("unacked", "t")
    assert stage.events("restored") == []


def test_theft_by_a_shorter_visibility_timeout_is_told(
    app: Celery, stage: Stage, broker: redis.Redis, workers: Workers
) -> None:
    """A worker of another application, on the same database, with a timeout below our beat: the job runs once."""
    label = uuid.uuid4().hex
    start(workers, stage, "ours")
    job = app.tasks["held"].delay(label, "gate")
    stage.wait_entries(label, 1)
    # At an interval that is no divisor of our beat's, else it may always come just after a beat.
    options = {"visibility_timeout": 0.1, "unacked_restore_interval": 0.37, "unacked_restore_throttle": 1}
    thief = dataclasses.replace(stage, conf={"broker_transport_options": options})
    workers.start(PLAIN, pool="solo", name="theirs", queues=["theirs"], env=thief.environment(), arguments=QUICK)

    stage.wait_event("stolen", job.id, timeout=DEADLINE)
    stage.open("gate")
    assert job.get(timeout=DEADLINE) is None
    assert [entry["step"] for entry in stage.entries(label)] == ["start", "end"]
    assert len(stage.events("stolen", job.id)) == 1


def test_busy_worker_keeps_no_message_in_its_socket(app: Celery, stage: Stage, workers: Workers) -> None:
    """A worker that waits for a time asks for one more message; what comes when it has become busy is not kept.

    Where there is no event loop (threads, green pools) it is received as usual: then it is among the unacked.
    The question stays open for a second, here for longer, so that the message surely meets it.
    """
    label = uuid.uuid4().hex
    options = {"polling_interval": 20, "unacked_restore_interval": 1}
    asking = dataclasses.replace(stage, conf={"broker_transport_options": options})
    workers.start(APP, concurrency=1, env=asking.environment(), arguments=QUICK)
    job = app.tasks["held"].apply_async((label, "gate"), countdown=2)
    stage.wait_entries(label, 1)
    other = app.tasks["add"].delay(1, f"{label}:other")
    wait_until(
        lambda: all(stage.messages() == (1, 1) for _ in range(20)), 5.0, "the other one in the queue, and staying"
    )
    stage.open("gate")

    assert job.get(timeout=DEADLINE) is None
    assert other.get(timeout=DEADLINE) == 2
    assert len(stage.entries(f"{label}:other")) == 1
