"""What `reliable check` finds in options of tasks, routes and entries, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Queue

import celery_reliable
from celery_reliable import ReliableTask
from celery_reliable.checks import Finding
from celery_reliable.checks.options import option_findings


def app_with(conf: dict[str, Any] | None = None, *, plain: bool = False, **options: Any) -> Celery:
    """A project with one task, and another one of which nothing is to be said."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({"task_time_limit": 60, "reliable_store_url": "memory://", **(conf or {})})
    celery_reliable.install(app)
    app.task(base=None if plain else ReliableTask, name="shop.charge", shared=False, **options)(charge)
    app.task(base=ReliableTask, name="shop.mail", shared=False, time_limit=30)(mail)
    return app


def charge(order: int) -> None:
    """Charge."""


def mail(to: str) -> None:
    """Mail."""


def found(app: Celery) -> list[Finding]:
    """Return what is found; nothing of it is about the other task."""
    findings = option_findings(app)
    assert not any("shop.mail" in finding.message for finding in findings)
    return findings


def kinds(app: Celery) -> list[tuple[str, str]]:
    """Return code and severity of each."""
    return [(finding.code, finding.severity) for finding in found(app)]


class TestTimeLimits:
    """None, one that is off, and a soft one that comes too late."""

    def test_task_without_a_limit_is_told_and_fails_nothing(self) -> None:
        """Of its own, or of the project."""
        assert kinds(app_with({"task_time_limit": None})) == [("no_time_limit", "info")]
        assert kinds(app_with({"task_time_limit": None}, time_limit=5)) == kinds(app_with()) == []

    def test_zero_switches_the_project_s_limit_off(self) -> None:
        """In Celery it is not "not given"."""
        assert kinds(app_with(time_limit=0)) == [("time_limit_off", "warning")]
        assert kinds(app_with(time_limit=0, soft_time_limit=90)) == [("time_limit_off", "warning")]
        assert kinds(app_with({"task_time_limit": None}, time_limit=0)) == [("no_time_limit", "info")]

    @pytest.mark.parametrize(
        ("conf", "options", "late"),
        [
            ({}, {"soft_time_limit": 60}, True),
            ({}, {"soft_time_limit": 59}, False),
            ({}, {"soft_time_limit": 90, "time_limit": 120}, False),
            ({"task_soft_time_limit": 20}, {"time_limit": 10}, True),
            ({"task_soft_time_limit": 20}, {"time_limit": 10, "soft_time_limit": 0}, False),
        ],
    )
    def test_soft_limit_is_below_the_hard_one(self, conf: dict[str, Any], options: Any, *, late: bool) -> None:
        """Whoever of the two says it."""
        assert kinds(app_with(conf, **options)) == ([("soft_limit_late", "warning")] if late else [])


class TestRetries:
    """What is retried, and when."""

    @pytest.mark.parametrize(
        ("options", "codes"),
        [
            ({"autoretry_for": (Exception,), "retry_backoff": True, "plain": True}, ["retries_anything"]),
            ({"autoretry_for": (OSError,), "plain": True}, ["retries_in_step"]),
            ({"autoretry_for": (OSError,), "retry_backoff": 2, "plain": True}, []),
            ({"autoretry_for": (OSError,)}, []),
            ({"retry_on": (Exception,)}, ["retries_anything"]),
            ({"retry_on": (OSError, "requests.ConnectionError")}, []),
        ],
    )
    def test_a_bug_is_not_retried_and_pauses_are_spread(self, options: Any, codes: list[str]) -> None:
        """A ReliableTask spreads them by itself."""
        assert [code for code, _ in kinds(app_with(**options))] == codes


class TestRoutes:
    """Routes, queues and entries that name what is not there."""

    @pytest.mark.parametrize(
        ("routes", "unmet"),
        [
            ({"shop.charge": "fast"}, False),
            ({"shop.*": {"queue": "fast"}}, False),
            ([{"shop.charge": "fast"}, {"shop.*": "slow"}], False),
            ({"shop.charged": {"queue": "fast"}}, True),
            ({"stock.*": "fast"}, True),
            (("celery_reliable.testing:route",), False),
        ],
    )
    def test_route_of_a_task_that_was_renamed_is_told(self, routes: Any, *, unmet: bool) -> None:
        """As information: the task may be another app's."""
        assert kinds(app_with({"task_routes": routes})) == ([("route_unmet", "info")] if unmet else [])

    @pytest.mark.parametrize(("missing", "severity"), [(True, "info"), (False, "error")])
    @pytest.mark.parametrize("where", ["task", "route", "entry"])
    def test_queue_that_is_not_declared_is_found(self, where: str, severity: str, *, missing: bool) -> None:
        """Whoever names it; an error where nothing can be sent to it."""
        conf: dict[str, Any] = {"task_queues": [Queue("celery")], "task_create_missing_queues": missing}
        assert kinds(app_with(conf)) == []
        entry = {"task": "shop.charge", "schedule": 60, "options": {"queue": "fast"}}
        conf |= {"task_routes": {"shop.charge": "fast"}} if where == "route" else {}
        conf |= {"beat_schedule": {"often": entry}} if where == "entry" else {}
        options: dict[str, Any] = {"queue": "fast"} if where == "task" else {}
        app = app_with(conf, **options)
        assert kinds(app) == [("queue_undeclared", severity)]
        declared = app_with({**conf, "task_queues": [Queue("celery"), Queue("fast")]})
        assert kinds(declared) == []

    def test_entry_whose_task_does_not_exist_is_found(self) -> None:
        """It fires into the void at each slot."""
        known = {"task": "shop.charge", "schedule": 60}
        schedule = {
            "good": known,
            "old": {**known, "task": "shop.charged"},
            "own": {**known, "task": "celery.backend_cleanup"},
        }
        [finding] = found(app_with({"beat_schedule": schedule}))
        assert (finding.code, finding.severity) == ("entry_without_task", "warning")
        assert "'old' (shop.charged)" in finding.message
        assert "good" not in finding.message


def test_process_that_has_no_tasks_is_told_nothing() -> None:
    """It only sends; what others run is not known there."""
    app = Celery("web", broker="memory://", set_as_current=False)
    app.conf.update(task_routes={"shop.charge": "fast"}, beat_schedule={"a": {"task": "shop.charge", "schedule": 60}})
    assert option_findings(app) == []
