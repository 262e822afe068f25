"""Hold what is to become of an attempt that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from celery_reliable.errors import ConfigurationError

Action = Literal["retry", "fail", "snooze"]
Reason = Literal["permanent", "exhausted", "time_limit", "invalid", "rejected"]
"""The dead-letter reasons that a failed attempt can lead to; the others are decided without running the task."""

BY_CLASSIFY: Final = "user:classify"

_REASON: Mapping[Action, Reason] = MappingProxyType({"retry": "exhausted", "fail": "permanent", "snooze": "exhausted"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of an attempt that raised. A value: returning one does nothing by itself.

    Make it with `Verdict.retry`, `Verdict.fail` or `Verdict.snooze`; a task's ``classify(self, exc)`` may return one.
    ``rule`` is the stable short name of what decided. ``retry_after`` is in seconds: the least wait of a retry, the
    wait of a snooze. ``reason`` is that of the dead letter if the job ends here: at once for ``fail``, for the others
    when their budget is used up.

    A wrong action, reason or number of seconds raises `ConfigurationError`.

    .. versionadded:: 0.1
    """

    action: Action
    rule: str
    retry_after: float | None
    reason: Reason

    def __post_init__(self) -> None:
        """Refuse what nobody could act on."""
        _expect("action", self.action, expected=get_args(Action))
        _expect("reason", self.reason, expected=get_args(Reason))
        if self.retry_after is not None and seconds(self.retry_after) != self.retry_after:
            msg = f"Verdict: expected retry_after in seconds, 0 or more, or None, found {self.retry_after!r}; pass a number"
            raise ConfigurationError(msg)

    @classmethod
    def retry(
        cls, *, retry_after: float | None = None, rule: str = BY_CLASSIFY, reason: Reason = _REASON["retry"]
    ) -> Verdict:
        """Say that another attempt may succeed, not before ``retry_after`` seconds. It spends one of ``max_retries``."""
        return cls("retry", rule, retry_after, reason)

    @classmethod
    def fail(
        cls, *, reason: Reason = _REASON["fail"], rule: str = BY_CLASSIFY, retry_after: float | None = None
    ) -> Verdict:
        """Say that no attempt can succeed: the task becomes a dead letter now.

        ``retry_after`` is kept for `overruled` only: a task may retry what the rules would fail.
        """
        return cls("fail", rule, retry_after, reason)

    @classmethod
    def snooze(cls, seconds: float, *, rule: str = BY_CLASSIFY) -> Verdict:
        """Say that it is too early: run again after ``seconds``, without spending an attempt."""
        return cls("snooze", rule, seconds, _REASON["snooze"])

    def overruled(self, action: Action, *, rule: str) -> Verdict:
        """Return another action by another rule, keeping what the exception itself told: its wait and its time limit."""
        reason = self.reason if self.reason == "time_limit" else _REASON[action]
        return Verdict(action, rule, self.retry_after, reason)


def seconds(value: object) -> float | None:
    """Return a number of seconds that can be waited for: negative is 0, what is not a number is None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:  # noqa: PLR0124  # nan
        return None
    return float(min(max(value, 0), _ENDLESS))


_ENDLESS: Final = 1e12  # seconds; an int may be too large for a float, and infinity is no delay


def _expect(field: str, found: str, *, expected: tuple[str, ...]) -> None:
    if found not in expected:
        msg = f"Verdict: expected {field} {' or '.join(expected)}, found {found!r}; use Verdict.retry, .fail or .snooze"
        raise ConfigurationError(msg)
