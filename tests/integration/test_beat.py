"""Beats that are killed, frozen, cut off and stopped: each slot fires once."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK
from tests.integration.apps.stage import Stage
from tests.integration.beats import APP, Beats, every, fired, headers, wait_fired, wait_leader
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

TTL = 3.0  # the least
LATE = 5.0  # seconds that a loaded machine may add to what is promised


@pytest.fixture(scope="module")
def lasting_redis() -> Iterator[RedisServer]:
    """A Redis that keeps its writes over a restart."""
    with servers.start_redis(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def beats(tmp_path: Path) -> Iterator[Beats]:
    """Start beats; all are killed at the end."""
    fleet = Beats(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


def staged(directory: Path, broker: RedisServer, store: RedisServer, schedule: dict[str, Any], **conf: Any) -> Stage:
    """A stage with a schedule, whose store is a server of its own."""
    broker.flush()
    store.revive()
    store.flush()
    settings = {"reliable_leader_ttl": TTL, "beat_schedule": schedule, **conf}
    return dataclasses.replace(Stage.on(broker.url, directory=directory, conf=settings), store=store.url)


def as_times(slots: Any) -> list[datetime]:
    """Return slots as times, in order."""
    return sorted(datetime.fromisoformat(slot) for slot in slots)


def test_each_slot_runs_once_through_a_kill_a_freeze_and_a_restart_of_the_store(
    module_redis: RedisServer, lasting_redis: RedisServer, tmp_path: Path, beats: Beats, workers: Workers
) -> None:
    """Two beats, every second; whoever leads goes on where the other was stopped, and nobody ends."""
    schedule = {"tick": every(1.0, "add", 1, "tick", **headers(catch_up="all"))}
    stage = staged(tmp_path, module_redis, lasting_redis, schedule)
    workers.start(APP, pool="solo", env=stage.environment(), arguments=QUICK, ready=False)
    first, second = beats.start(stage), beats.start(stage)
    leader, _ = wait_leader(stage, first, second)
    wait_fired(stage, 2, entry="tick")

    leader.kill()
    (other,) = {first, second} - {leader}
    wait_leader(stage, other)
    third = beats.start(stage)
    wait_fired(stage, len(fired(stage, "tick")) + 2, entry="tick")

    other.freeze()
    wait_leader(stage, third)
    wait_fired(stage, len(fired(stage, "tick")) + 2, entry="tick")
    other.thaw()
    wait_until(lambda: stage.events("standing_by"), 10.0, "the frozen beat stands by")

    lasting_redis.restart()
    wait_fired(stage, len(fired(stage, "tick")) + 3, entry="tick")

    assert (other.stop(), third.stop()) == (0, 0)
    entered = as_times({one["slot"] for one in fired(stage, "tick")})
    runs = stage.wait_entries("tick", len(entered))
    assert {after - before for before, after in itertools.pairwise(entered)} == {timedelta(seconds=1)}
    assert max(Counter(run["task_id"] for run in runs).values()) == 1
    assert len(runs) == len(entered)
