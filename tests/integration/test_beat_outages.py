"""Beats whose broker hangs or goes away, and whose loop takes longer than their lease."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.testing import servers
from tests.integration.beats import Beats, distances, every, fired, headers, messages, staged, wait_fired, wait_leader
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.apps.stage import Stage

pytestmark = pytest.mark.integration

ALL = headers(catch_up="all")


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    """A broker that is frozen and killed."""
    with servers.start_redis() as server:
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    """The store, which stays."""
    with servers.start_redis() as server:
        yield server


def sent(stage: Stage, entry: str) -> list[tuple[str, str]]:
    """Return slot and id of each message of an entry."""
    return [(one["reliable_slot"], one["id"]) for one in messages(stage) if one["reliable_entry"] == entry]


def wait_two_more(stage: Stage, *entries: str) -> None:
    """Return once each entry has fired twice from now on."""
    known = {entry: len(fired(stage, entry)) for entry in entries}
    for entry, count in known.items():
        wait_fired(stage, count + 2, entry=entry, timeout=60.0)


def _more_than(stage: Stage, count: int) -> bool:
    return len(stage.events("beat_slow")) > count


def test_a_broker_that_hangs_and_one_that_goes_away(
    broker: RedisServer, store: RedisServer, tmp_path: Path, beats: Beats
) -> None:
    """SIGSTOP while a beat publishes, longer than the lease, then SIGKILL: no slot is lost, none has two ids.

    A plain task's slot is sent once. No beat ends.
    """
    schedule = {"job": every(1.0, "add", 1, "job", **ALL), "plain": every(1.0, "elsewhere", **ALL)}
    stage = staged(tmp_path, broker, store, schedule)
    started = [beats.start(stage) for _ in range(2)]
    wait_leader(stage, *started)
    wait_two_more(stage, "job", "plain")

    broker.freeze()
    wait_until(lambda: len(stage.events("leading")) > 1, 30.0, "a beat that hangs in a publish is replaced")
    broker.thaw()
    wait_two_more(stage, "job", "plain")
    broker.kill()
    wait_until(lambda: stage.events("slot_refused"), 30.0, "a refused slot")
    broker.restart()
    wait_two_more(stage, "job", "plain")
    # A refused slot is tried again behind those that are due: each second has been fired in the end.
    wait_until(lambda: {str(one) for one in distances(stage, "job")} == {"0:00:01"}, 60.0, "the refused slot, too")
    assert [beat.running for beat in started] == [True, True]
    assert [beat.stop() for beat in started] == [0, 0]

    assert stage.events("beat_stalled")
    job, plain = sent(stage, "job"), sent(stage, "plain")
    assert len({slot for slot, _ in job}) == len(set(job))
    assert len(plain) == len({slot for slot, _ in plain})
    assert {str(one) for one in distances(stage, "job")} == {"0:00:01"}
    assert {slot for slot, _ in job} >= {one["slot"] for one in fired(stage, "job")}


def test_a_loop_that_takes_longer_than_the_lease(
    broker: RedisServer, store: RedisServer, tmp_path: Path, beats: Beats
) -> None:
    """It loses leadership in the middle, stands by, leads again; each slot goes out once, and the setting is named."""
    schedule = {"job": every(1.0, "add", 1, "job", **ALL), "plain": every(1.0, "elsewhere", **ALL)}
    slow: dict[str, Any] = {"reliable_beat_scheduler": "tests.integration.apps.slow_scheduler:SlowScheduler"}
    stage = staged(tmp_path, broker, store, schedule, **slow)
    started = [beats.start(stage) for _ in range(2)]
    wait_leader(stage, *started)
    wait_two_more(stage, "job")
    for _ in range(2):
        known = len(stage.events("beat_slow"))
        stage.open("slow")
        wait_until(partial(_more_than, stage, known), 30.0, "a round that was too slow")
        wait_two_more(stage, "job", "plain")
    assert [beat.stop() for beat in started] == [0, 0]

    assert len(stage.events("leading")) >= 3
    assert {one["reason"] for one in stage.events("standing_by")} >= {"the scheduler's loop stalled"}
    assert all("reliable_leader_ttl" in beat.logs() for beat in started if "a round of the loop" in beat.logs())
    assert {str(one) for one in distances(stage, "job")} == {"0:00:01"}
    for entry in ("job", "plain"):
        assert len(sent(stage, entry)) == len(set(sent(stage, entry))) == len({slot for slot, _ in sent(stage, entry)})
