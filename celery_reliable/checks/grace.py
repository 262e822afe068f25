"""Tell whether a worker has left before its supervisor kills it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_reliable.checks.findings import Finding
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.drain.budget import grace_period, longest_time_limit

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.checks.manifests import Supervised


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a stop of a worker may take. ``longest_time_limit`` is None where a task may run for ever. Seconds."""

    drain_timeout: float
    longest_time_limit: float | None

    @property
    def grace(self) -> int:
        """The least time between SIGTERM and SIGKILL, in whole seconds, as supervisors count."""
        return grace_period(self.drain_timeout)

    def __str__(self) -> str:
        """One line for people."""
        limit = self.longest_time_limit
        longest = "tasks without a time limit" if limit is None else f"longest time limit {limit:g} s"
        return f"shutdown budget: drain timeout {self.drain_timeout:g} s, {longest}, needs a grace period of {self.grace} s"


def budget_of(app: Celery) -> Budget:
    """Return the budget of an app's workers; all its tasks are imported."""
    app.loader.import_default_modules()
    return Budget(drain_timeout=runtime_of(app).settings.drain_timeout, longest_time_limit=longest_time_limit(app))


def fit(budget: Budget, supervised: Supervised) -> list[Finding]:
    """Compare what a supervisor gives one kind of worker with what it needs."""
    return [*_too_short(budget, supervised), *_never_told(supervised)]


def _too_short(budget: Budget, one: Supervised) -> Iterator[Finding]:
    left = one.grace - one.spent_before
    if left >= budget.grace:
        return
    given = f"{one.setting} is {one.grace:g} s" if one.is_set else f"{one.setting} is not set and means {one.grace:g} s"
    before = f", of which {one.spent_before:g} s pass before the worker is told" if one.spent_before else ""
    enough = budget.grace + one.spent_before
    shorter = left - (budget.grace - budget.drain_timeout)
    instead = f", or reliable_drain_timeout to at most {shorter:g}" if shorter >= 0 else ""
    yield Finding(
        code="grace_too_short",
        severity="error",
        message=(
            f"{one.where}: {given}{before}, but a stop may take {budget.grace} s (reliable_drain_timeout "
            f"{budget.drain_timeout:g} s, then 2 s to leave). The supervisor kills the worker before: tasks save nothing, "
            f"their work waits until its lease ends, and the run counts as a lost delivery. Set {one.setting} to at least "
            f"{one.spelled(enough)}{instead}."
        ),
    )


def _never_told(one: Supervised) -> Iterator[Finding]:
    if one.stop_signal not in {None, "SIGTERM", "SIGINT"}:
        yield Finding(
            code="stop_signal_wrong",
            severity="error",
            message=(
                f"{one.where}: the supervisor stops the worker by {one.stop_signal}. That is no order to drain: tasks are "
                "cut off, and their work waits until its lease ends. Use SIGTERM."
            ),
        )
    if one.behind_shell:
        yield Finding(
            code="stop_signal_lost",
            severity="warning",
            message=(
                f"{one.where}: a shell runs the worker. The supervisor's signal reaches the shell, which passes it to "
                "nobody: the worker knows nothing until it is killed. Begin the shell's last command with `exec`, or name "
                "the worker's command without a shell."
            ),
        )
