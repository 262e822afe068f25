"""Timing: full jitter within its limits, and when a job has had its chances."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable.retries import LONGEST_WAIT, Bury, Release, Verdict, delay, next_step


class Highest:
    """Draws the upper end."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return the larger."""
        return max(a, b)


class Lowest:
    """Draws the lower end."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return the smaller."""
        return min(a, b)


# --- delay

durations = st.floats(min_value=0, max_value=1e9)
floors = st.none() | st.floats()
draws = st.randoms(use_true_random=False) | st.sampled_from([Highest(), Lowest()])


@given(n=st.integers(0, 10_000), backoff=durations, backoff_max=durations, floor=floors, draw=draws)
def test_delay_lies_between_the_floor_and_the_longest_wait(
    n: int, backoff: float, backoff_max: float, floor: float | None, draw: random.Random
) -> None:
    """Whatever the settings and the server say: never negative, never nan, never beyond a day."""
    waited = delay(n, backoff=backoff, backoff_max=backoff_max, floor=floor, random=draw)
    least = 0.0 if floor is None or math.isnan(floor) else min(max(floor, 0.0), LONGEST_WAIT)
    assert least <= waited <= min(LONGEST_WAIT, least + backoff_max)


@given(n=st.integers(-5, 10_000), backoff=durations)
def test_highest_draw_doubles_up_to_the_cap(n: int, backoff: float) -> None:
    """`min(cap, backoff * 2**n)`, exactly, computed here with whole numbers of any size."""
    exact = min(600, int(backoff) * 2 ** max(n, 0))
    assert delay(n, backoff=int(backoff), backoff_max=600, random=Highest()) == exact


def test_lowest_draw_is_no_delay() -> None:
    """Full jitter begins at 0."""
    assert delay(7, backoff=1.0, backoff_max=600, random=Lowest()) == 0.0


@pytest.mark.parametrize(("n", "ceiling"), [(0, 0.5), (3, 4.0), (30, 60.0)])
def test_delays_are_spread_evenly_below_the_ceiling(n: int, ceiling: float) -> None:
    """Mean and quartiles of a uniform distribution, of 20,000 draws: failures spread out as far as they can."""
    draw = random.Random(20_240_607)
    waits = [delay(n, backoff=0.5, backoff_max=60, random=draw) for _ in range(20_000)]
    assert statistics.fmean(waits) == pytest.approx(ceiling / 2, rel=0.02)
    assert statistics.quantiles(waits, n=4) == pytest.approx([ceiling / 4, ceiling / 2, ceiling * 3 / 4], rel=0.03)


def test_fractions_of_a_second_are_kept() -> None:
    """Celery's own backoff rounds to whole seconds."""
    assert delay(1, backoff=0.01, backoff_max=600, random=Highest()) == 0.02


def test_server_that_asks_for_more_than_the_cap_gets_it() -> None:
    """The server knows better than `retry_backoff_max` when it will be back."""
    assert 3600 <= delay(0, backoff=1, backoff_max=600, floor=3600, random=random.Random(1)) <= 3601


def test_jobs_that_were_told_the_same_second_do_not_return_in_it() -> None:
    """Jitter is added to Retry-After, else the whole queue would come back at once."""
    draw = random.Random(1)
    waits = {delay(2, backoff=1, backoff_max=600, floor=30, random=draw) for _ in range(100)}
    assert len(waits) == 100
    assert max(waits) - min(waits) > 3


@pytest.mark.parametrize("floor", [1e9, math.inf, 1e308])
def test_server_that_asks_for_years_gets_a_day(floor: float) -> None:
    """A hostile Retry-After cannot park a job for ever."""
    assert delay(0, backoff=1, backoff_max=600, floor=floor, random=random.Random(1)) == LONGEST_WAIT


def test_cap_beyond_a_day_is_a_day_and_still_spread() -> None:
    """Also an infinite one: the delays do not pile up at the longest wait."""
    draw = random.Random(1)
    waits = [delay(50, backoff=1, backoff_max=math.inf, random=draw) for _ in range(1000)]
    assert statistics.fmean(waits) == pytest.approx(LONGEST_WAIT / 2, rel=0.05)


# --- the next step


def step(
    verdict: Verdict,
    *,
    attempt: int = 1,
    max_retries: int | None = 5,
    retry_for: float | None = None,
    age: float = 0.0,
    snoozes: int = 0,
    max_snoozes: int = 1000,
) -> Release | Bury:
    """Take the next step with the defaults of the preset, drawing the longest delay."""
    return next_step(
        verdict,
        attempt=attempt,
        max_retries=max_retries,
        retry_for=retry_for,
        age=age,
        backoff=1.0,
        backoff_max=600.0,
        random=Highest(),
        snoozes=snoozes,
        max_snoozes=max_snoozes,
    )


RETRY = Verdict.retry(rule="connection")
TIME_LIMIT = Verdict.retry(rule="soft_time_limit", reason="time_limit")


def test_failure_is_buried_at_once_with_its_reason() -> None:
    """No budget helps what cannot succeed."""
    assert step(Verdict.fail()) == Bury("permanent")
    assert step(Verdict.fail(reason="invalid")) == Bury("invalid")


@pytest.mark.parametrize(("attempt", "expected"), [(1, 1.0), (2, 2.0), (3, 4.0), (5, 16.0)])
def test_retry_is_granted_after_a_growing_delay(attempt: int, expected: float) -> None:
    """The first retry waits up to `retry_backoff`."""
    assert step(RETRY, attempt=attempt) == Release("retry", expected)


def test_five_retries_are_six_attempts() -> None:
    """The last attempt is number `max_retries` + 1."""
    steps = [step(RETRY, attempt=attempt) for attempt in range(1, 8)]
    assert [isinstance(step, Release) for step in steps] == [True] * 5 + [False] * 2
    assert steps[5] == Bury("exhausted")


def test_no_retries_is_one_attempt() -> None:
    """0 is not "not given"."""
    assert step(RETRY, attempt=1, max_retries=0) == Bury("exhausted")


def test_soft_time_limit_ends_as_time_limit() -> None:
    """The reason says what every attempt, or at least the last one, died of."""
    assert step(TIME_LIMIT, attempt=1) == Release("retry", 1.0)
    assert step(TIME_LIMIT, attempt=6) == Bury("time_limit")
    assert step(TIME_LIMIT, attempt=1, retry_for=0.5) == Bury("time_limit")


def test_retry_waits_at_least_as_long_as_the_server_asks() -> None:
    """The verdict's retry_after is the floor."""
    assert step(Verdict.retry(retry_after=120, rule="http_status")) == Release("retry", 121.0)


@pytest.mark.parametrize(
    ("age", "expected"), [(0, Release("retry", 1.0)), (59.0, Release("retry", 1.0)), (59.1, Bury("exhausted"))]
)
def test_retry_that_would_start_too_late_is_not_granted(age: float, expected: Release | Bury) -> None:
    """`retry_for` bounds the time from the submission to the start of the last attempt."""
    assert step(RETRY, retry_for=60, age=age) == expected


def test_server_that_asks_for_longer_than_retry_for_ends_the_job() -> None:
    """Better a letter now than a job that is known to be too late."""
    assert step(Verdict.retry(retry_after=3600), retry_for=60) == Bury("exhausted")


def test_submission_in_the_future_counts_as_new() -> None:
    """The producer's clock may be ahead."""
    assert step(RETRY, retry_for=1.0, age=-3600) == Release("retry", 1.0)
    assert step(RETRY, retry_for=0.5, age=-3600) == Bury("exhausted")


def test_time_alone_may_bound_the_retries() -> None:
    """`max_retries=None` with `retry_for` is as many as fit."""
    assert step(RETRY, attempt=100, max_retries=None, retry_for=10_000, age=9000) == Release("retry", 600.0)
    assert step(RETRY, attempt=100, max_retries=None, retry_for=10_000, age=9500) == Bury("exhausted")


def test_there_is_always_a_limit() -> None:
    """With neither a number nor a time, five retries are granted."""
    assert step(RETRY, attempt=5, max_retries=None) == Release("retry", 16.0)
    assert step(RETRY, attempt=6, max_retries=None) == Bury("exhausted")


def test_snooze_waits_as_long_as_asked_and_spends_no_attempt() -> None:
    """No jitter: the task named the time; no attempt: also after the last one."""
    assert step(Verdict.snooze(90), attempt=99, max_retries=0) == Release("snooze", 90.0)
    assert step(Verdict.snooze(0)) == Release("snooze", 0.0)


def test_snooze_is_at_most_a_day_at_a_time() -> None:
    """The task looks again and may snooze again."""
    assert step(Verdict.snooze(7 * 86_400)) == Release("snooze", LONGEST_WAIT)


def test_snoozes_are_bounded_by_number_and_time() -> None:
    """A job that snoozes for ever becomes a letter."""
    assert step(Verdict.snooze(1), snoozes=999) == Release("snooze", 1.0)
    assert step(Verdict.snooze(1), snoozes=1000) == Bury("exhausted")
    assert step(Verdict.snooze(1), max_snoozes=0) == Bury("exhausted")
    assert step(Verdict.snooze(10), retry_for=60, age=55) == Bury("exhausted")


@given(
    verdict=st.sampled_from([RETRY, TIME_LIMIT, Verdict.snooze(0), Verdict.snooze(5), Verdict.retry(retry_after=9)]),
    max_retries=st.none() | st.integers(0, 20),
    retry_for=st.none() | st.floats(0, 2000),
    max_snoozes=st.integers(0, 20),
)
def test_every_job_ends(verdict: Verdict, max_retries: int | None, retry_for: float | None, max_snoozes: int) -> None:
    """A job whose every attempt ends alike is buried after a bounded number of steps, in time."""
    attempt, snoozes, age = 1, 0, 0.0
    for _ in range(100):
        after = step(
            verdict,
            attempt=attempt,
            max_retries=max_retries,
            retry_for=retry_for,
            age=age,
            snoozes=snoozes,
            max_snoozes=max_snoozes,
        )
        if isinstance(after, Bury):
            break
        age += after.delay
        attempt += after.outcome == "retry"
        snoozes += after.outcome == "snooze"
    assert after == Bury(verdict.reason)
    assert retry_for is None or age <= retry_for
    assert attempt <= (1000 if max_retries is None else max_retries) + 1
