"""A chaos run waits for its jobs as long as something could still end them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import collect
from tests.chaos.collect import Collector
from tests.chaos.evidence import Bounds, Fate
from tests.chaos.site import Site

LIMIT = 1800.0  # seconds


class Clock:
    """Goes on by what is slept."""

    now = 1000.0

    def monotonic(self) -> float:
        """Return the time, in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let it pass at once."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the collector."""
    clock = Clock()
    monkeypatch.setattr(collect, "time", clock)
    return clock


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """Knows of one job that was accepted and of which nobody has heard since."""
    site = Site(tmp_path, "judge", broker="memory://", backend="", store=f"sqlite:///{tmp_path}/store", seed=1)
    site.ledger.note("accepted", "a", form="own", members=[{"label": "a", "id": "id", "kind": "given"}])
    collector = Collector(site)
    yield collector
    collector.close()


def waited(collector: Collector, clock: Clock) -> float:
    """Return how long it waits, in seconds."""
    began = clock.now
    collector.wait_ended(LIMIT, bounds=Bounds())
    return clock.now - began


def left(collector: Collector, monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    """Have so many messages in the broker, for ever."""
    monkeypatch.setattr(collector, "residue", lambda: {"messages": messages})


def test_a_lost_job_is_not_waited_for_when_nothing_is_left(
    collector: Collector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a message nor a ledger entry: it is looked at for a while longer, and judged."""
    left(collector, monkeypatch, 0)
    assert collect._QUIET < waited(collector, clock) < collect._QUIET + 60


def test_a_job_is_waited_for_while_a_message_is_left(
    collector: Collector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the one."""
    left(collector, monkeypatch, 1)
    assert waited(collector, clock) >= LIMIT


def test_a_message_that_comes_back_begins_the_wait_again(
    collector: Collector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks at an empty broker prove nothing where a message was between them."""
    began = clock.now
    monkeypatch.setattr(collector, "residue", lambda: {"messages": int(100 < clock.now - began < 120)})
    assert waited(collector, clock) > 120 + collect._QUIET


@pytest.mark.parametrize("later", [Fate("none"), Fate("done")])
def test_what_the_store_has_forgotten_at_the_end_was_seen_before(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, later: Fate
) -> None:
    """The marker of a job, or the outcome with its fence: a long run is longer than their lives."""
    left(collector, monkeypatch, 0)
    collector._site.accounts.create()
    fates = iter([Fate("done", 5), later])
    monkeypatch.setattr(collector, "fate", lambda *_, **__: next(fates))
    collector.look()
    assert collector.evidence(Bounds()).fates == {"a": Fate("done", 5)}
