"""Time the next attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from celery_reliable.retries.verdict import Reason, Verdict, seconds

LONGEST_WAIT: Final = 86_400.0
"""One day, in seconds: no retry or snooze waits longer in one go, whatever a server, a setting or a task asks for.

A server that names a year must not park a job for a year, and markers must outlive every wait.
"""

MAX_SNOOZES: Final = 1000
_UNBOUNDED: Final = 5  # retries, when a caller gives neither a number nor a time: there is always a limit
_DOUBLINGS: Final = 1000  # 2.0 ** 1024 is beyond a float


class Random(Protocol):
    """What is needed of `random.Random`."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between ``a`` and ``b``."""
        ...


@dataclass(frozen=True, slots=True)
class Release:
    """Give the right back as ``outcome``; the job is due again in ``delay`` seconds."""

    outcome: Literal["retry", "snooze"]
    delay: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Make the job a dead letter, for ``reason``."""

    reason: Reason


def delay(
    retries_so_far: int, *, backoff: float, backoff_max: float, floor: float | None = None, random: Random
) -> float:
    """Return the seconds until the next attempt: full jitter above ``floor``, at most `LONGEST_WAIT`.

    Full jitter is ``random(0, min(backoff_max, backoff * 2**n))``, so that jobs which failed together do not come back
    together. It is added to the floor (a server's Retry-After) for the same reason: all were told the same moment. The
    floor may exceed ``backoff_max``: the server knows better.
    """
    ceiling = min(backoff_max, LONGEST_WAIT, backoff * 2.0 ** min(max(retries_so_far, 0), _DOUBLINGS))
    least = seconds(floor) or 0.0
    return min(LONGEST_WAIT, least + random.uniform(0.0, max(ceiling, 0.0)))


def next_step(
    verdict: Verdict,
    *,
    attempt: int,
    max_retries: int | None,
    retry_for: float | None,
    age: float,
    backoff: float,
    backoff_max: float,
    random: Random,
    snoozes: int = 0,
    max_snoozes: int = MAX_SNOOZES,
) -> Release | Bury:
    """Turn the verdict on attempt number ``attempt`` (from 1) into what to do now.

    A retry is granted while fewer than ``max_retries`` were: attempt ``max_retries + 1`` is the last. A snooze is
    granted while fewer than ``max_snoozes`` were (``snoozes`` of this life so far). Neither is granted when it would
    start later than ``retry_for`` seconds after the submission, which was ``age`` seconds ago (0 if not known; a
    negative age, of clocks that differ, is 0). What is not granted ends with the verdict's reason: ``exhausted``, or
    ``time_limit`` when the last attempt ran into its soft limit.

    ``max_retries`` None means that ``retry_for`` alone bounds the retries; with neither, 5 are granted, since a
    job must end.
    """
    if verdict.action == "fail":
        return Bury(verdict.reason)
    if verdict.action == "snooze":
        granted = snoozes < max_snoozes
        wait = min(LONGEST_WAIT, verdict.retry_after or 0.0)
    else:
        granted = attempt <= _allowed(max_retries, retry_for)
        floor = verdict.retry_after
        wait = delay(attempt - 1, backoff=backoff, backoff_max=backoff_max, floor=floor, random=random)
    in_time = retry_for is None or max(age, 0.0) + wait <= retry_for
    return Release(verdict.action, wait) if granted and in_time else Bury(verdict.reason)


def _allowed(max_retries: int | None, retry_for: float | None) -> float:
    if max_retries is not None:
        return max_retries
    return _UNBOUNDED if retry_for is None else math.inf
