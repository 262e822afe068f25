"""Decide which due slot of an entry fires now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_reliable.slots.sequences import SECOND, Sequence, latest, newest

MOST_CAUGHT_UP = 100
"""Missed slots that ``catch_up="all"`` runs at most, the newest."""

_SHORTEST_DEADLINE = 1.0  # seconds: the loop looks once a second, so less would drop every slot

Reason = Literal["", "skip", "window", "deadline"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What happens to slots that could not start in time, in seconds.

    ``on_time`` is how late a slot is not yet missed: the time in which another beat takes over.
    """

    catch_up: str = "latest"
    window: float = 86_400.0
    deadline: float | None = None
    on_time: float = 30.0

    @property
    def oldest(self) -> float:
        """Return the age in seconds beyond which no slot starts."""
        by_policy = self.on_time if self.catch_up == "skip" else max(self.window, self.on_time)
        return by_policy if self.deadline is None else min(by_policy, max(self.deadline, _SHORTEST_DEADLINE))

    def reason(self, age: float) -> Reason:
        """Say why a slot of an age in seconds does not start, "" when it does."""
        if age <= self.oldest:
            return ""
        if self.deadline is not None and age > max(self.deadline, _SHORTEST_DEADLINE):
            return "deadline"
        return "skip" if self.catch_up == "skip" else "window"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done for one entry.

    ``slot`` fires now, None: nothing does. ``missed`` is the first of the slots that are passed over for it, and
    ``reason`` why the newest due one does not fire. ``following`` is the slot after it, else the next one.
    """

    slot: int | None = None
    missed: int | None = None
    reason: Reason = ""
    following: int | None = None


def plan(sequence: Sequence, *, last: int, now: int, policy: Policy, not_before: int = 0) -> Plan:
    """Decide for an entry whose last slot was ``last``; slots before ``not_before`` do not count.

    ``latest`` (and ``skip``, for what is on time) fires the newest due slot; ``all`` the oldest of those that are within
    the window, at most `MOST_CAUGHT_UP`. The rest is passed over for good once a later slot fires.
    """
    start = max(last, not_before - 1)
    first = sequence.after(start, anchor=last)
    if first is None or first > now:
        return Plan(following=first)
    last_due = latest(sequence, first=first, until=now, anchor=last)
    reason = policy.reason((now - last_due) / SECOND)
    if reason:
        return Plan(missed=first, reason=reason, following=sequence.after(last_due, anchor=last))
    chosen = last_due
    if policy.catch_up == "all" and first != last_due:
        oldest = max(start, now - int(policy.oldest * SECOND) - 1)
        chosen = newest(sequence, after=oldest, until=now, most=MOST_CAUGHT_UP, anchor=last)[0]
    following = sequence.after(chosen, anchor=last)
    return Plan(slot=chosen, missed=first if first < chosen else None, following=following)
