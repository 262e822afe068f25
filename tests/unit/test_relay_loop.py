"""The rate of ``celery reliable relay``."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from celery_reliable.cli.relay import _Loop


class Backlog:
    """A relay with so many submissions before it."""

    def __init__(self, left: int) -> None:
        """Take how many."""
        self.left = left
        self.asked: list[int] = []

    def look(self, *, limit: int) -> int:
        """Publish some."""
        self.asked.append(limit)
        published = min(limit, self.left)
        self.left -= published
        return published


class Pauses(threading.Event):
    """Notes how long somebody would wait; ends after so many pauses."""

    def __init__(self, most: int) -> None:
        """Take how many."""
        super().__init__()
        self.most = most
        self.noted: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Note it, and do not wait."""
        self.noted.append(timeout or 0.0)
        if len(self.noted) >= self.most:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(("rate", "limit", "pause"), [(2.0, 2, 1.0), (250.0, 250, 1.0), (0.1, 1, 10.0)])
def test_a_relay_publishes_so_many_a_second_and_no_more(
    monkeypatch: pytest.MonkeyPatch, rate: float, limit: int, pause: float
) -> None:
    """Also one that only empties what waits now; below one a second it looks less often."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of this process are not the relay's
    for call in ("once", "until_told"):
        relay: Any = Backlog(5 * limit)
        pauses = Pauses(5)
        assert getattr(_Loop(relay, rate, ending=pauses), call)() == 5 * limit
        assert set(relay.asked) == {limit}
        assert pauses.noted == pytest.approx([pause] * 5, abs=0.5)
