"""Beats that are killed, frozen, cut off and stopped: each slot fires once."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery.schedules import schedule
from click.testing import CliRunner
from redbeat import RedBeatSchedulerEntry

from celery_reliable.beat.leadership import Leadership, leader_and_members
from celery_reliable.cli import reliable
from celery_reliable.events import Events
from celery_reliable.slots.desk import Desk
from celery_reliable.slots.records import SlotRecord
from celery_reliable.stores import open_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, client
from tests.integration.beats import (
    APP,
    SCHEDULER,
    TTL,
    Beats,
    distances,
    every,
    fired,
    headers,
    messages,
    staged,
    wait_fired,
    wait_leader,
)
from tests.integration.workers import ROOT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.apps.stage import Stage
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

LATE = 12.0  # seconds that a loaded machine may add to what is promised


@pytest.fixture(scope="module")
def store_redis() -> Iterator[RedisServer]:
    """The store, apart from the broker."""
    with servers.start_redis() as server:
        yield server


def test_each_slot_runs_once_through_a_kill_a_freeze_and_a_restart_of_the_store(
    module_redis: RedisServer, store_redis: RedisServer, tmp_path: Path, beats: Beats, workers: Workers
) -> None:
    """Three beats, every second; whoever leads goes on where the other was stopped, and nobody ends."""
    schedule = {"tick": every(1.0, "add", 1, "tick", **headers(catch_up="all"))}
    stage = staged(tmp_path, module_redis, store_redis, schedule)
    workers.start(APP, pool="solo", env=stage.environment(), arguments=QUICK, ready=False)
    started = [beats.start(stage) for _ in range(3)]
    leader, _ = wait_leader(stage, *started)
    wait_fired(stage, 1, entry="tick")

    killed_at = time.monotonic()
    leader.kill()
    started.remove(leader)
    frozen, elected = wait_leader(stage, *started)
    assert elected["at"] - killed_at < TTL + LATE
    wait_fired(stage, len(fired(stage, "tick")) + 1, entry="tick")

    frozen.freeze()
    (last,) = [beat for beat in started if beat is not frozen]
    wait_leader(stage, last)
    wait_fired(stage, len(fired(stage, "tick")) + 1, entry="tick")
    frozen.thaw()
    wait_until(lambda: stage.events("standing_by"), 10.0, "the frozen beat stands by")

    store_redis.restart()
    wait_fired(stage, len(fired(stage, "tick")) + 2, entry="tick")
    assert all(beat.running for beat in started)
    for beat in started:
        beat.terminate()
    assert [beat.wait() for beat in started] == [0, 0]

    slots = {one["slot"] for one in fired(stage, "tick")}
    runs = stage.wait_entries("tick", len(slots))
    assert distances(stage, "tick") == {timedelta(seconds=1)}
    assert max(Counter(run["task_id"] for run in runs).values()) == 1
    assert len(runs) == len(slots)


def test_a_pod_without_a_disk_goes_on_where_it_was(
    module_redis: RedisServer, store_redis: RedisServer, tmp_path: Path, beats: Beats
) -> None:
    """Restarted more often than its interval, first with no place for its file, then with a foreign one there.

    A task that it cannot import goes out like one that it can. All it writes has its prefix: another cluster's beat in
    the same store is not met.
    """
    schedule = {"far": every(8.0, "elsewhere.task"), "near": every(8.0, "add", 1, "near")}
    stage = staged(tmp_path, module_redis, store_redis, schedule, reliable_key_prefix="pod:")
    for foreign in ("beat2", "beat2.db", "beat2.dat"):
        (tmp_path / foreign).write_bytes(b"not a schedule")
    first = beats.start(stage, schedule=tmp_path / "nowhere" / "beat1")
    wait_leader(stage, first)
    assert first.stop() == 0
    second = beats.start(stage)
    wait_leader(stage, second)
    wait_fired(stage, 1, entry="far", timeout=15.0)
    wait_fired(stage, 1, entry="near", timeout=15.0)
    _look_and_run(stage, second)
    assert second.stop() == 0

    for entry in ("far", "near"):
        sent = [one for one in messages(stage) if one.get("reliable_slot") and one["reliable_entry"] == entry]
        assert all(one["reliable"]["k"] == "slot" for one in sent)
        assert all(one["reliable"]["key"].startswith(f"beat:{entry}:") for one in sent)
        pairs = [(one["id"], one["reliable_slot"]) for one in sent]
        assert pairs == [(event["task_id"], event["slot"]) for event in fired(stage, entry)]
        assert len(pairs) == len(set(pairs))
        assert all(not distance % timedelta(seconds=8) for distance in distances(stage, entry))
    assert stage.events("schedule_file_unusable")
    with redis.Redis.from_url(store_redis.url) as store:
        keys = [key.decode() for key in store.keys("*")]
    assert keys
    assert all(key.startswith("pod:") for key in keys)


def test_two_clusters_in_one_redis_do_not_meet(store_redis: RedisServer) -> None:
    """Other prefixes: both have a leader, and each claims the slot of an entry of the same name."""
    store_redis.revive()
    events = Events()
    stores = [open_store(store_redis.url, key_prefix=prefix) for prefix in ("one:", "two:")]
    leaders = [Leadership(store.notes, ttl=TTL, events=events) for store in stores]
    try:
        assert [leader.poll() for leader in leaders] == [True, True]
        for store, leader in zip(stores, leaders, strict=True):
            desk = Desk(store.notes, now=store.now)
            desk.load(epoch=leader.epoch)
            assert desk.record("job") is None
            record = SlotRecord("v", 1)
            desk.amend("job", record)
            claimed = record.claimed(2, epoch=leader.epoch, at=2, following=3, missed=None)
            assert desk.put({"job": (record, claimed)}) == {"job"}
            assert leader_and_members(store.notes)[1].keys() == {leader.me.token}
    finally:
        for store, leader in zip(stores, leaders, strict=True):
            leader.resign()
            store.close()


def _look_and_run(stage: Stage, leader: Worker) -> None:
    """``celery reliable beat``, ``why`` and ``run`` while a beat leads."""
    with client(stage) as app:
        shown = operate(app, "beat")
        assert f"pid {leader.pid} leads" in shown
        assert "0 followers" in shown
        assert re.search(r"far +elsewhere\.task .*fired", shown)
        told = operate(app, "beat", "why", "far")
        assert "Nothing keeps it from running" in told
        assert "published" in told
        assert "no beat has seen an entry 'nothing'" in operate(app, "beat", "why", "nothing", exit_code=1)
        answer = json.loads(operate(app, "beat", "run", "near", "--json"))
        assert answer["sent"]
        assert "no entry 'nothing'" in operate(app, "beat", "run", "nothing", exit_code=1)
    (sent,) = [header for header in messages(stage) if header["id"] == answer["task_id"]]
    assert "reliable_slot" not in sent


def operate(app: Celery, *words: str, exit_code: int = 0) -> str:
    """Run ``celery reliable`` in this process and return what it printed."""
    result = CliRunner().invoke(reliable, list(words), obj=SimpleNamespace(app=app, no_color=True))
    assert result.exit_code == exit_code, result.output
    return result.output


def test_a_worker_with_an_embedded_beat_fires(
    module_redis: RedisServer, store_redis: RedisServer, tmp_path: Path, workers: Workers
) -> None:
    """``worker -B``: and its task is told the slot."""
    stage = staged(tmp_path, module_redis, store_redis, {"slotted": every(1.0, "slotted", "slotted")})
    arguments = (*QUICK, "-B", "--scheduler", SCHEDULER, "--schedule", str(tmp_path / "embedded"))
    workers.start(APP, pool="prefork", env=stage.environment(), arguments=arguments, ready=False)
    runs = stage.wait_entries("slotted", 2, timeout=40.0)
    assert {run["slot"] for run in runs} <= {one["slot"] for one in fired(stage, "slotted")}
    assert all(run["key"].endswith(run["slot"]) for run in runs)


# --- other schedulers


def test_rows_of_a_database_are_seen_by_the_leader_and_by_the_next(
    module_redis: RedisServer, store_redis: RedisServer, tmp_path: Path, beats: Beats
) -> None:
    """Added, changed, switched off and on while beats run; one that nobody can read does not stop the rest."""
    stage = staged(
        tmp_path,
        module_redis,
        store_redis,
        {},
        reliable_beat_scheduler="django_celery_beat.schedulers:DatabaseScheduler",
        beat_max_loop_interval=1,
    )
    module = "tests.integration.apps.beat_database"
    policy = json.dumps({"reliable_catch_up": "all"})
    rows: list[dict[str, Any]] = [
        {"name": "one", "task": "add", "args": '[1, "one"]', "headers": policy},
        {"name": "two", "task": "elsewhere", "headers": policy},
        {"name": "changed", "task": "add", "args": '[1, "old"]'},
        {"name": "broken", "task": "add", "broken": True},
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **stage.environment()}
    subprocess.run([sys.executable, "-m", module, json.dumps(rows)], env=environment, cwd=ROOT, check=True)
    started = [beats.start(stage, app=module) for _ in range(2)]
    leader, _ = wait_leader(stage, *started)
    wait_fired(stage, 2, entry="one")
    wait_fired(stage, 2, entry="two")
    wait_sent(stage, "changed", "old", by=leader)

    _switch(tmp_path, "two", enabled=False)
    _write(tmp_path, "UPDATE django_celery_beat_periodictask SET args = ? WHERE name = 'changed'", '[1, "new"]')
    _add_like_one(tmp_path, "added")
    wait_until(lambda: _quiet(stage, "two", by="one"), 20.0, "the row switched off is silent")
    wait_sent(stage, "changed", "new", by=leader)
    wait_sent(stage, "added", "one", by=leader)
    leader.stop()
    (other,) = [beat for beat in started if beat is not leader]
    wait_leader(stage, other)
    wait_fired(stage, len(fired(stage, "one")) + 1, entry="one")
    wait_sent(stage, "changed", "new", by=other)
    wait_sent(stage, "added", "one", by=other)
    before = len(fired(stage, "two"))
    _switch(tmp_path, "two", enabled=True)
    wait_fired(stage, before + 2, entry="two")
    assert other.stop() == 0

    assert distances(stage, "one") == {timedelta(seconds=1)}
    assert len({header["id"] for header in messages(stage)}) == len(messages(stage))
    assert max(distances(stage, "two")) > timedelta(seconds=1)  # what came due meanwhile is not caught up
    assert arguments_of(stage, "changed") == [[1, "old"], [1, "new"]]
    assert {one["entry"] for one in stage.events("schedule_failed")} == {"broken"}


def _switch(directory: Path, name: str, *, enabled: bool) -> None:
    _write(directory, "UPDATE django_celery_beat_periodictask SET enabled = ? WHERE name = ?", enabled, name)


def _add_like_one(directory: Path, name: str) -> None:
    """Add a row: a copy of another, under its own name."""
    table, copy = "django_celery_beat_periodictask", "a_copy"
    with sqlite3.connect(directory / "rows.sqlite3", timeout=20) as rows:
        rows.execute(f"CREATE TEMP TABLE {copy} AS SELECT * FROM {table} WHERE name = 'one'")
        rows.execute(f"UPDATE {copy} SET id = NULL, name = ?", (name,))
        rows.execute(f"INSERT INTO {table} SELECT * FROM {copy}")
    _write(directory, f"UPDATE {table} SET date_changed = date_changed WHERE name = ?", name)


def _write(directory: Path, statement: str, *values: Any) -> None:
    """Change rows as the admin does, and tell beat of it."""
    now = datetime.now(tz=None).astimezone().isoformat(sep=" ")  # made aware at once
    with sqlite3.connect(directory / "rows.sqlite3", timeout=20) as rows:
        rows.execute(statement, values)
        rows.execute("UPDATE django_celery_beat_periodictasks SET last_update = ?", (now,))


def wait_sent(stage: Stage, entry: str, key: str, *, by: Worker) -> None:
    """Wait until a beat has fired an entry with an argument."""

    def seen() -> bool:
        ids = {one["task_id"] for one in fired(stage, entry) if one["pid"] == by.pid}
        return any(arguments[-1] == key for task_id, arguments in sent_by(stage, entry) if task_id in ids)

    wait_until(seen, 20.0, f"{entry} with {key!r} from {by.name}")


def sent_by(stage: Stage, entry: str) -> list[tuple[str, list[Any]]]:
    """Return ids and arguments of the messages of an entry, oldest first."""
    return [
        (one["id"], list(ast.literal_eval(one["argsrepr"])))
        for one in messages(stage)
        if one.get("reliable_entry") == entry
    ]


def arguments_of(stage: Stage, entry: str) -> list[list[Any]]:
    """Return the different arguments of an entry, in the order in which they came."""
    return [arguments for arguments, _ in itertools.groupby(found for _, found in sent_by(stage, entry))]


def _quiet(stage: Stage, entry: str, *, by: str) -> bool:
    """Tell whether an entry did not fire while another fired three times."""
    moments = [one["at"] for one in fired(stage, by)]
    last = max(one["at"] for one in fired(stage, entry))
    return len([moment for moment in moments if moment > last]) >= 3


def test_redbeat_hands_over_without_its_own_lock(
    module_redis: RedisServer, store_redis: RedisServer, tmp_path: Path, beats: Beats
) -> None:
    """Its lock would keep a new leader out for half an hour; what is added and changed meanwhile, both beats see."""
    stage = staged(
        tmp_path,
        module_redis,
        store_redis,
        {"one": every(1.0, "add", 1, "one", **headers(catch_up="all")), "two": every(2.0, "elsewhere")},
        reliable_beat_scheduler="redbeat:RedBeatScheduler",
        redbeat_redis_url=f"{module_redis.url.removesuffix('/0')}/7",
    )
    started = [beats.start(stage) for _ in range(2)]
    leader, _ = wait_leader(stage, *started)
    wait_fired(stage, 2, entry="one")
    with client(stage) as app:
        _put_entry(app, "added", "old")
        wait_sent(stage, "added", "old", by=leader)
        _put_entry(app, "added", "new")
        wait_sent(stage, "added", "new", by=leader)
        leader.kill()
        _put_entry(app, "late", "late")
    (other,) = [beat for beat in started if beat is not leader]
    wait_leader(stage, other)
    wait_fired(stage, len(fired(stage, "one")) + 2, entry="one")
    wait_fired(stage, 2, entry="two")
    wait_sent(stage, "added", "new", by=other)
    wait_sent(stage, "late", "late", by=other)
    assert other.stop() == 0
    assert arguments_of(stage, "added") == [[1, "old"], [1, "new"]]
    assert distances(stage, "one") == {timedelta(seconds=1)}
    assert len({header["id"] for header in messages(stage)}) == len(messages(stage))


def _put_entry(app: Celery, name: str, key: str) -> None:
    """Add an entry, or change its arguments, as a project does at run time."""
    RedBeatSchedulerEntry(name, "add", schedule(1.0, app=app), args=[1, key], app=app).save()
