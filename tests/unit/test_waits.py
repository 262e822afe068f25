"""How long a message waits, said by one clock and read by another."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable.keys import HEADER
from celery_reliable.waits import Wait, eta_here, expiring, expiry_in, wait_in, with_expiry_of, without_expiry

HERE = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SENT = 1_000_000_000_000_000  # microseconds of the store's clock


def ahead(seconds: float) -> str:
    """Return an ETA as a sender's clock wrote it."""
    return (HERE + timedelta(seconds=seconds)).isoformat()


def after(seconds: float) -> int:
    """Return the store's clock so long after the message was sent."""
    return SENT + int(seconds * 1e6)


def carrying(found: object) -> dict[str, Any]:
    """Return the headers of a message with this in the place of its wait."""
    return {"id": "a", "eta": ahead(0), HEADER: {"i": "a", "w": found}}


class TestReckoning:
    """The sender's wall clock does not count."""

    @pytest.mark.parametrize("written", [-3600.0, 4.0, 3600.0])
    def test_message_is_due_by_the_store_s_clock(self, written: float) -> None:
        """Four of ten seconds have passed."""
        assert eta_here(ahead(written), Wait(10.0, SENT), store_now=after(4), here=HERE) == ahead(6)

    def test_message_that_came_late_is_due(self) -> None:
        """It waited longer in its queue than it had to."""
        assert eta_here(ahead(3600), Wait(10.0, SENT), store_now=after(60), here=HERE) == ahead(0)

    @pytest.mark.parametrize(("since", "store_now"), [(0, after(4)), (SENT, None)])
    def test_without_the_store_s_clock_it_waits_no_longer_than_the_whole(
        self, since: int, store_now: int | None
    ) -> None:
        """At the sender there was no ledger, or here the store was never reached."""
        assert eta_here(ahead(3600), Wait(10.0, since), store_now=store_now, here=HERE) == ahead(10)
        assert eta_here(ahead(7), Wait(10.0, since), store_now=store_now, here=HERE) == ahead(7)

    @pytest.mark.parametrize("eta", ["2026-01-01T12:00:00", "soon"])
    def test_eta_that_cannot_be_compared_stays(self, eta: str) -> None:
        """What Celery makes of it is Celery's."""
        assert eta_here(eta, Wait(10.0), store_now=None, here=HERE) == eta

    @given(st.floats(0.001, 1e6), st.floats(-1e6, 1e6))
    def test_clock_that_was_put_makes_nobody_wait_longer(self, seconds: float, passed: float) -> None:
        """Also the store's."""
        assert 0 <= Wait(seconds, SENT).left(now=after(passed)) <= seconds


class TestHeader:
    """It is read from this message's own header alone."""

    def test_wait_travels_in_our_header(self) -> None:
        """Beside what else it says."""
        header = Wait(2.5, SENT).beside({"i": "a", "s": 1})
        assert header["s"] == 1
        assert wait_in({"id": "a", HEADER: header}) == Wait(2.5, SENT)

    @pytest.mark.parametrize(
        "headers",
        [
            {"id": "a"},
            {"id": "a", HEADER: "foreign"},
            {"id": "b", HEADER: Wait(1.0, SENT).beside({"i": "a"})},
            *map(carrying, [None, 1.0, [], [SENT], [SENT, "1"], [SENT, 0], [SENT, -1.0], [SENT, 1e300]]),
            carrying([SENT, float("nan")]),
            carrying([float("inf"), 1.0]),
            carrying([10**400, 1.0]),
            carrying([-1, 1.0]),
        ],
    )
    def test_anything_else_is_none(self, headers: dict[str, Any]) -> None:
        """A message may hold whatever it likes."""
        assert wait_in(headers) is None


class TestExpiry:
    """The moment from which nobody wants a message, by the store's clock."""

    def test_it_travels_in_our_header_and_in_that_of_the_next_message(self) -> None:
        """Beside what else it says; seconds that are over have ended at the submission."""
        header = expiring({"i": "a", "s": 1}, since=SENT, seconds=2.5)
        assert with_expiry_of(header, {"i": "a"}) == {"i": "a", "x": after(2.5)}
        assert without_expiry(header) == {"i": "a", "s": 1}
        assert expiry_in({"id": "a", HEADER: header}) == after(2.5)
        assert expiry_in({"id": "a", HEADER: expiring({"i": "a"}, since=SENT, seconds=-1)}) == SENT

    @pytest.mark.parametrize("found", [None, True, 1.0, "1", [1], 0, -1, 10**400])
    def test_anything_else_is_none(self, found: object) -> None:
        """A message may hold whatever it likes."""
        assert expiry_in({"id": "a", HEADER: {"i": "a", "x": found}}) is None

    @pytest.mark.parametrize("received", [None, "foreign", {"i": "a"}, {"i": "b", "x": 1}])
    def test_that_of_another_message_is_none(self, received: object) -> None:
        """Also where a header was inherited."""
        assert with_expiry_of(received, {"i": "a"}) == {"i": "a"}
        assert expiry_in({"id": "a", HEADER: received}) is None
