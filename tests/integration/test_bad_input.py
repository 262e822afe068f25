"""Mistakes of a project: each a clear error, nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_reliable import ConfigurationError, Permanent, ReliableTask
from celery_reliable.runtime import runtime_of
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, letter

if TYPE_CHECKING:
    from tests.integration.apps.stage import Stage
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

DEADLINE = 20.0


@pytest.fixture(scope="module")
def worker(stage: Stage, module_workers: Workers) -> Worker:
    """One pool child."""
    return module_workers.start("tests.integration.apps.worker", env=stage.environment(), arguments=QUICK)


# --- keys


def empty_app() -> Celery:
    """An app without tasks and servers."""
    app = Celery("empty", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"
    return app


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("charge:{order}", "no argument named order"),
        ("charge", "a template without any argument"),
        ("charge:{order_id", "is not a template"),
        (7, "found int"),
    ],
)
def test_a_rule_that_can_give_no_key_is_refused_when_the_task_is_registered(rule: Any, found: str) -> None:
    """The error names the task, the setting, what was found and what is expected."""
    app = empty_app()

    def charge(order_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="task charge: idempotency_key") as refused:
        app.task(base=ReliableTask, name="charge", idempotency_key=rule, shared=False, lazy=False)(charge)
    assert found in str(refused.value)


def test_a_template_s_error_names_the_arguments_there_are() -> None:
    """Expected, found, setting, remedy: all in one line."""
    app = empty_app()

    def charge(order_id: int, amount: int = 1) -> None: ...

    with pytest.raises(ConfigurationError) as refused:
        app.task(base=ReliableTask, name="charge", idempotency_key="charge:{order}", shared=False, lazy=False)(charge)
    assert str(refused.value) == (
        "task charge: idempotency_key='charge:{order}': expected names of its arguments (order_id, amount), found no "
        "argument named order; write the argument's name in braces"
    )


def test_a_key_that_is_too_long_is_refused_before_anything_is_published(app: Celery, stage: Stage, label: str) -> None:
    """512 bytes are the most: by the call, by the template, counted in bytes."""
    order, add = app.tasks["order"], app.tasks["add"]
    with pytest.raises(ConfigurationError, match=r"1 to 512 bytes, found 513 bytes; .*hash"):
        add.apply_async((1, label), queue=label, idempotency_key="x" * 513)
    with pytest.raises(ConfigurationError, match="found 606 bytes"):
        order.apply_async(("é" * 300, label), queue=label)
    assert stage.messages(label)[0] == 0

    add.apply_async((1, label), queue=label, idempotency_key="x" * 512)
    assert stage.messages(label)[0] == 1


def test_an_empty_key_is_refused(app: Celery, stage: Stage, label: str) -> None:
    """A rule that gives nothing would make one job of all calls."""
    with pytest.raises(ConfigurationError, match="expected a text of 1 to 512 bytes"):
        app.tasks["customer_of"].apply_async(("", label), queue=label)
    assert stage.messages(label)[0] == 0


def test_a_call_that_does_not_fit_the_task_is_refused(app: Celery, stage: Stage, label: str) -> None:
    """As the call itself would."""
    with pytest.raises(TypeError, match="missing a required argument"):
        app.tasks["order"].apply_async((1,), queue=label)
    assert stage.messages(label)[0] == 0


# --- results


@pytest.mark.usefixtures("worker")
def test_a_channel_that_was_closed_is_told_as_an_error_of_the_broker(app: Celery, stage: Stage, label: str) -> None:
    """After a broker has refused messages kombu meets one, and gets an AttributeError; the call is taken back."""
    with app.producer_or_acquire() as producer:
        producer.channel.close()
        with pytest.raises(OperationalError, match="submit again"):
            app.tasks["add"].apply_async((1, label), task_id=label, producer=producer, declare=[])
    assert [event["task_id"] for event in stage.events("withdrawn", label)] == [label]
    assert app.tasks["add"].apply_async((1, label), task_id=label).get(timeout=DEADLINE) == 2


@pytest.mark.usefixtures("worker")
def test_a_result_that_json_cannot_carry_is_a_dead_letter(app: Celery, stage: Stage, label: str) -> None:
    """The work is done, its result cannot be kept: said once, clearly, not tried again."""
    result = app.tasks["returning"].apply_async((label, "object"), task_id=label)

    with pytest.raises(Permanent, match=r"returned a object that JSON cannot carry.*ignore_result"):
        result.get(timeout=DEADLINE)
    kept = letter(app, stage, label)
    assert [kept.reason, kept.task, kept.attempts] == ["permanent", "returning", 1]
    assert len(stage.entries(label)) == 1


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("size", [40, 200_000])
def test_a_result_of_any_size_is_kept_and_given_again(app: Celery, stage: Stage, label: str, size: int) -> None:
    """Above what fits the marker, and above ``claim_check_threshold`` (said by an event): the second delivery has it."""
    stage.plan("done", label, "kill")
    result = app.tasks["returning"].apply_async((label, "text", size), task_id=label)

    assert result.get(timeout=DEADLINE) == "x" * size
    assert stage.met("done", label)
    assert len(stage.events("replayed_outcome", label)) == 1
    assert len(stage.entries(label)) == 1
    oversized = [[event["size"], event["limit"]] for event in stage.events("result_oversized", label)]
    assert oversized == ([[size + 2, 131_072]] if size > 131_072 else [])


@pytest.mark.usefixtures("worker")
def test_a_result_of_none_is_given_again(app: Celery, stage: Stage, label: str) -> None:
    """No result is a result too."""
    stage.plan("done", label, "kill")
    result = app.tasks["returning"].apply_async((label, "none"), task_id=label)

    assert result.get(timeout=DEADLINE) is None
    assert len(stage.wait_event("replayed_outcome", label)) == 1
    assert result.state == "SUCCESS"


# --- the store


@pytest.mark.parametrize("url", ["mysql://localhost/0", "redis:/localhost", "mongodb://localhost/jobs"])
def test_a_store_of_an_unknown_scheme_is_refused(url: str) -> None:
    """Before anything is submitted, with the schemes there are."""
    app = empty_app()
    app.conf.reliable_store_url = url

    with pytest.raises(ConfigurationError, match="reliable_store_url: expected a URL that begins with one of redis://"):
        runtime_of(app)


def test_a_worker_refuses_a_store_of_an_unknown_scheme(stage: Stage, workers: Workers) -> None:
    """It ends with the one message, without a traceback, before it takes a task."""
    wrong = {**stage.conf, "reliable_store_url": "mysql://user:secret@localhost/0"}
    environment = type(stage)(stage.directory, stage.broker, stage.backend, conf=wrong).environment()
    worker = workers.start("tests.integration.apps.worker", env=environment, ready=False)

    assert worker.wait() != 0
    assert "reliable_store_url: expected a URL that begins with one of redis://" in worker.logs()
    assert "Traceback" not in worker.logs()
    assert "secret" not in worker.logs()


@pytest.mark.parametrize(("policy", "expected"), [("allkeys-lru", True), ("volatile-ttl", True), ("noeviction", False)])
def test_a_store_that_evicts_is_found(policy: str, expected: bool) -> None:  # noqa: FBT001
    """A store that drops keys at its memory limit forgets what was done."""
    with servers.start_redis(config={"maxmemory": "100mb", "maxmemory-policy": policy}) as server:
        app = empty_app()
        app.conf.reliable_store_url = server.url
        findings = runtime_of(app).store.findings()
        runtime_of(app).store.close()

    assert any("maxmemory-policy" in finding and policy in finding for finding in findings) == expected
