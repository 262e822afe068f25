"""Findings about what is kept for ever, and about what is too large for its broker."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_reliable import ReliableTask
from celery_reliable.checks import retention_findings, size_findings
from celery_reliable.cli import reliable
from celery_reliable.errors import StoreError, StoreUnavailable
from celery_reliable.stores.redis_link import count_findings

YEARS = 2 * 365 * 86_400


def make_app(*, broker: str = "memory://", **conf: Any) -> Celery:
    """Return an app with results."""
    app = Celery("shop", broker=broker, backend="cache+memory://", set_as_current=False)
    app.conf.update({"reliable_store_url": "memory://", **conf})
    return app


def pay() -> None:
    """Be a body."""


def codes(app: Celery) -> list[str]:
    """Return the codes of all findings."""
    return [one.code for one in (*retention_findings(app), *size_findings(app))]


def test_the_defaults_keep_nothing_for_ever() -> None:
    """Neither do those of Celery."""
    app = make_app()
    app.task(pay, base=ReliableTask, shared=False)
    assert codes(app) == []


@pytest.mark.parametrize(
    ("conf", "code"),
    [
        ({"result_expires": None}, "results_kept_for_ever"),
        ({"result_expires": 0}, "results_kept_for_ever"),
        ({"result_expires": timedelta(0)}, "results_kept_for_ever"),
        ({"result_expires": timedelta(days=800)}, "results_kept_too_long"),
        ({"result_expires": YEARS}, "results_kept_too_long"),
        ({"reliable_dead_letter_ttl": YEARS}, "letters_kept_too_long"),
        ({"reliable_dead_letter_max": 10**8}, "letters_too_many"),
        ({"reliable_park_ttl": YEARS}, "parked_too_long"),
        ({"reliable_idempotency_ttl": YEARS}, "keys_kept_too_long"),
        (
            {"reliable_max_retries": 10**6, "reliable_retry_backoff": 0.1, "reliable_retry_backoff_max": 0.1},
            "retries_unbounded",
        ),
    ],
)
def test_each_unbounded_setting_has_its_code(conf: dict[str, Any], code: str) -> None:
    """And names the setting and what to do."""
    app = make_app(**conf)
    (finding,) = retention_findings(app)
    assert finding.code == code
    assert next(iter(conf)) in finding.message
    assert "Set " in finding.message


@pytest.mark.parametrize("conf", [{"task_ignore_result": True}, {"result_backend": None}])
def test_results_that_nobody_keeps_are_no_finding(conf: dict[str, Any]) -> None:
    """Whatever their life would be."""
    assert codes(make_app(result_expires=None, **conf)) == []


def test_a_task_s_own_option_is_found_under_its_name() -> None:
    """Once, and not for tasks that are as the project's setting says."""
    app = make_app()
    app.task(pay, base=ReliableTask, name="shop.pay", idempotency_ttl=YEARS, shared=False)
    app.task(pay, base=ReliableTask, name="shop.retry", max_retries=10**6, retry_for=3600, shared=False)
    (finding,) = retention_findings(app)
    assert (finding.code, finding.message.startswith("task shop.pay: idempotency_ttl is 730 days")) == (
        "keys_kept_too_long",
        True,
    )


@pytest.mark.parametrize(
    ("broker", "conf", "expected"),
    [
        ("sqs://", {}, ["sqs_message_limit"]),
        ("sqs://", {"reliable_blob_url": "memory://blobs"}, []),
        (
            "sqs://",
            {"reliable_blob_url": "memory://blobs", "reliable_claim_check_threshold": 200_000},
            ["claim_check_above_broker_limit"],
        ),
        ("amqp://", {"reliable_claim_check_threshold": 2**25}, []),
        (
            "amqp://",
            {"reliable_blob_url": "memory://blobs", "reliable_claim_check_threshold": 2**25},
            ["claim_check_above_broker_limit"],
        ),
        ("redis://", {"reliable_claim_check_threshold": 2**28}, []),
    ],
)
def test_what_a_broker_refuses_is_found(broker: str, conf: dict[str, Any], expected: list[str]) -> None:
    """Only where it may happen."""
    assert [one.code for one in size_findings(make_app(broker=broker, **conf))] == expected


def test_the_command_tells_both() -> None:
    """Exit code 1 for what is kept for ever, 0 for what is only long."""
    for conf, exit_code in (({"result_expires": None}, 1), ({"reliable_dead_letter_ttl": YEARS}, 0)):
        context = type("CLIContext", (), {"app": make_app(**conf), "no_color": True})()
        answer = CliRunner().invoke(reliable, ["check", "--json"], obj=context)
        (line,) = [json.loads(one) for one in answer.output.splitlines() if "kept" in one]
        assert (answer.exit_code, "kept" in line["code"]) == (exit_code, True)


def test_very_many_keys_of_redis_are_a_finding() -> None:
    """Their number is not bounded, so it is told; a user who may not ask for it is told nothing."""

    def refuse(*_: Any) -> Any:
        raise StoreError("NOPERM")

    def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    assert list(count_findings(lambda *_: 20_000_000)) == []
    (found,) = count_findings(lambda *_: 20_000_001)
    assert "20,000,001 keys lie in the database" in found
    assert list(count_findings(refuse)) == []
    with pytest.raises(StoreUnavailable):
        list(count_findings(away))
