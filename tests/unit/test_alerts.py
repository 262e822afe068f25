"""Alerts: once in a while for each subject, fleet-wide; never a task's trouble."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from celery_reliable.alerts import Alert, Alerts, alert_of
from celery_reliable.dead_letters.silences import Silence, Silences
from celery_reliable.errors import StoreUnavailable
from celery_reliable.events import EVENTS
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import MemoryNotes, Write

BURIED = {
    "task": "shop.charge",
    "task_id": "t",
    "key": "k",
    "reason": "exhausted",
    "error": "Timeout",
    "letter_id": "l",
    "attempts": 6,
    "deliveries": 1,
    "fingerprint": "f1",
}


class Desk:
    """A store with a clock, and two processes that alert."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self.time = 0.0
        self.store = MemoryStore(clock=lambda: self.time)
        self.told: list[Alert] = []

    def alerts(self, *send: Any, release: str = "") -> Alerts:
        """Return the hook of one process."""
        return Alerts(send or (self.told.append,), notes=self.store.notes, every=300.0, release=release)


@pytest.fixture
def desk() -> Desk:
    """An empty store."""
    return Desk()


def test_one_group_is_told_once_in_a_while_in_the_whole_fleet(desk: Desk) -> None:
    """A thousand letters from two processes are one alert; another group is another; later it is told again."""
    for process in (desk.alerts(), desk.alerts()):
        for _ in range(500):
            process("buried", BURIED)
    desk.alerts()("buried", {**BURIED, "fingerprint": "f2"})
    assert [alert.subject for alert in desk.told] == ["dead letters f1", "dead letters f2"]
    assert "dlq show l" in desk.told[0].text
    desk.time += 301
    desk.alerts()("buried", BURIED)
    assert len(desk.told) == 3


def test_alert_links_to_the_letter_s_page_where_there_is_one(desk: Desk) -> None:
    """Else it has the command."""
    Alerts((desk.told.append,), notes=desk.store.notes, every=300.0, link="https://shop.example/{}/".format)(
        "buried", BURIED
    )
    assert desk.told[0].text.endswith(": https://shop.example/l/")


def test_silenced_group_is_not_told_until_its_release(desk: Desk) -> None:
    """It is known."""
    Silences(desk.store.notes).add(Silence("f1", "ann", 0.0, "2.0"))
    desk.alerts(release="1.9")("buried", BURIED)
    assert desk.told == []
    desk.alerts(release="2.0")("buried", BURIED)
    assert len(desk.told) == 1


def test_stuck_worker_is_told_and_a_busy_one_is_not(desk: Desk) -> None:
    """Nor one that drains."""
    for state in ("busy", "draining", "stuck"):
        desk.alerts()("worker_state", {"node": "w@h", "state": state, "before": "idle"})
    assert [alert.text for alert in desk.told] == ["worker w@h is stuck"]


def test_sender_that_fails_stops_no_other(desk: Desk) -> None:
    """Nor the task: it is logged."""

    def broken(_: Alert) -> None:
        raise OSError("no route")

    desk.alerts(broken, desk.told.append)("buried", BURIED)
    assert len(desk.told) == 1


def test_sender_that_hangs_holds_a_task_for_a_while_only(desk: Desk) -> None:
    """A webhook that never answers: the task goes on before it does."""
    release, answered = threading.Event(), threading.Event()

    def hang(_: Alert) -> None:
        release.wait(30)
        answered.set()

    Alerts([hang], notes=desk.store.notes, every=300.0, patience=0.05)("buried", BURIED)
    assert not answered.is_set()
    release.set()
    assert answered.wait(10)


class Away(MemoryNotes):
    """Notes of a store that does not answer."""

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """Fail."""
        raise StoreUnavailable("away")


def test_store_that_is_away_tells_nothing(desk: Desk) -> None:
    """Without it every process would alert."""
    Alerts([desk.told.append], notes=Away(clock=time.time), every=300.0)("buried", BURIED)
    assert desk.told == []


def test_every_event_that_alerts_has_words() -> None:
    """From the facts that the table promises."""
    for event in Alerts.events:
        fields = dict.fromkeys(EVENTS[event].fields, "stuck")
        alert = alert_of(event, fields)
        assert alert is not None
        assert alert.text
