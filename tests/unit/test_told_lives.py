"""Whole lives, from the gate or the checkpoint to what `explain` tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_reliable import ReliableTask, Transient
from celery_reliable.explaining import Explaining, Life
from celery_reliable.runtime import runtime_of
from celery_reliable.testing import in_memory
from celery_reliable.testing.bench import Bench
from celery_reliable.trails import Trails


class Desk:
    """An app on a bench, whose events are noted as those of a worker are."""

    def __init__(self) -> None:
        """Make the app."""
        self.app = Celery("shop", broker="memory://", set_as_current=False)
        self.app.config_from_object("celery_reliable.presets")
        self.app.conf.update(reliable_store_url="memory://")
        self.bench: Bench
        self.trails: Trails

    def note(self, name: str, fields: dict[str, Any]) -> None:
        """Hand on what the trails want to hear."""
        if name in Trails.events:
            self.trails(name, fields)

    def life(self, asked: str) -> Life:
        """Tell a life."""
        life = Explaining(self.bench.store, outcome=lambda _: None).life(asked)
        assert life is not None
        return life

    def drain(self) -> None:
        """Deliver until nothing waits."""
        for _ in range(20):
            self.bench.elapse(60.0)
            self.bench.run_due()


@pytest.fixture
def desk() -> Iterator[Desk]:
    """An app on a bench."""
    desk = Desk()
    with in_memory(desk.app, hooks=(desk.note,)) as bench:
        desk.bench = bench
        desk.trails = Trails(bench.store.notes, now=bench.store.now, host="h", size=1024, share=1.0)
        yield desk


def test_open_breaker_is_told(desk: Desk) -> None:
    """A job that waits for its dependency says so, and by which name."""

    def charge() -> None: ...

    task = desk.app.task(charge, name="charge", base=ReliableTask, shared=False, breaker="payments")
    runtime_of(desk.app).breakers.open("payments")
    waiting = task.delay()
    desk.bench.deliver(desk.bench.waiting[0])
    told = [moment.words for moment in desk.life(waiting.id).moments if moment.event == "breaker_waits"]
    assert [words.partition(": ")[2] for words in told] == ["breaker payments was open"]


def test_last_save_before_a_failure_is_told(desk: Desk) -> None:
    """Which save it was, before the failure; and the next run says after which one it goes on."""

    def export(self: Any) -> None:
        self.checkpoint.save(self.request.retries)
        self.checkpoint.save("further")
        if not self.request.retries:
            raise Transient("away")

    task = desk.app.task(export, bind=True, name="export", base=ReliableTask, shared=False)
    job = task.delay()
    desk.drain()
    told = [moment.words for moment in desk.life(job.id).moments if moment.event != "submitted"]
    assert told[0] == "saved its progress: save 2, the last before what follows"
    assert told[1].startswith("attempt 1 failed")
    assert told[2].endswith("; goes on after save 2")
    assert told[3] == "saved its progress: save 4, the last before what follows"
    assert told[4].startswith("done")
