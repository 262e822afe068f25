"""Submissions in Django's transactions. Run by `test_outbox` in a process of its own, once for each database."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import chain, group
from django.db import Error, connections, transaction
from django.test.utils import CaptureQueriesContext

from celery_reliable.errors import StoreError
from celery_reliable.relay import Relay
from celery_reliable.runtime import runtime_of
from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage

ALIAS = os.environ["CR_TEST_ALIAS"]
OTHER = "default" if ALIAS != "default" else "postgres"
app: Any = make_app(Stage.from_environment())
add = app.tasks["add"]


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    with redis.Redis.from_url(app.conf.broker_url) as broker:
        broker.delete(app.conf.task_default_queue)


@pytest.fixture
def label() -> str:
    """A task id that no other test uses."""
    return uuid.uuid4().hex


def waiting() -> list[str]:
    """Return the ids of the messages in the queue, the oldest first."""
    with redis.Redis.from_url(app.conf.broker_url) as broker:
        texts = broker.lrange(app.conf.task_default_queue, 0, -1)
    return [json.loads(text)["headers"]["id"] for text in reversed(texts)]


def atomic(**options: Any) -> Any:
    """Begin a transaction on the store's database."""
    return transaction.atomic(using=ALIAS, **options)


def test_a_submission_is_one_statement_and_is_published_by_the_commit(label: str) -> None:
    """No block of ours, no other call."""
    with atomic(durable=True), CaptureQueriesContext(connections[ALIAS]) as said:
        add.apply_async((1, label), task_id=label)
        assert waiting() == []
    assert [query["sql"].split()[0] for query in said.captured_queries] == ["INSERT"]
    assert waiting() == [label]
    assert label in dict(runtime_of(app).store.ledger())


def test_a_rollback_drops_a_submission(label: str) -> None:
    """Also one to a savepoint, after which the block goes on; a nested block that ends well commits nothing by itself."""
    with atomic():
        add.apply_async((1, label), task_id="kept")
        with contextlib.suppress(LookupError), atomic():
            add.apply_async((1, label), task_id="back")
            raise LookupError
        with atomic():
            add.apply_async((1, label), task_id="nested")
        assert waiting() == []
    assert waiting() == ["kept", "nested"]
    with contextlib.suppress(LookupError), atomic():
        add.apply_async((1, label), task_id="gone")
        raise LookupError
    assert waiting() == ["kept", "nested"]


def test_canvas_goes_through_it(label: str) -> None:
    """A chain is one message now, a group is all of its members; delay is apply_async."""
    with atomic():
        first = chain(add.s(1, label), add.s(label)).apply_async()
        members = group(add.s(number, label) for number in range(3)).apply_async()
        last = add.delay(1, label)
        assert waiting() == []
    assert waiting() == [first.parent.id, *(member.id for member in members), last.id]


def test_a_process_that_dies_after_its_commit_is_followed_by_a_relay(label: str) -> None:
    """Killed before Django's hook of the submission runs."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        with atomic():
            transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL), using=ALIAS)
            add.apply_async((1, label), task_id=label)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert waiting() == []
    outbox = runtime_of(app).store.outbox
    assert outbox is not None
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("UPDATE celery_reliable_ledger SET resent_at = 0 WHERE made_at > 0")
    assert Relay(app, outbox).look(limit=10) == 1
    assert waiting() == [label]


def test_a_transaction_that_it_cannot_belong_to_is_told(label: str) -> None:
    """On another database, or begun by hand: it is submitted at once."""
    stage = Stage.from_environment()
    connection = connections[ALIAS]
    with transaction.atomic(using=OTHER):
        add.apply_async((1, label), task_id=f"{label}:other")
        assert waiting() == [f"{label}:other"]
    connection.set_autocommit(False)
    try:
        add.apply_async((1, label), task_id=f"{label}:manual")
    finally:
        connection.set_autocommit(True)
    told = [stage.events("outside", f"{label}:{name}")[0]["database"] for name in ("other", "manual")]
    assert told == [OTHER, ALIAS]
    add.apply_async((1, label), task_id=f"{label}:none")
    assert stage.events("outside", f"{label}:none") == []


def test_a_broken_transaction_is_said(label: str) -> None:
    """Whether Django knows, or only the server."""
    with contextlib.suppress(Error), atomic():
        with contextlib.suppress(LookupError), atomic(savepoint=False):
            raise LookupError
        with pytest.raises(StoreError, match="has failed before"):
            add.apply_async((1, label), task_id=label)
    assert waiting() == []


def test_tables_that_are_missing_are_named(label: str) -> None:
    """With the command that makes them."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("ALTER TABLE celery_reliable_ledger RENAME TO hidden")
        try:
            with atomic(), pytest.raises(StoreError, match=r"manage\.py migrate celery_reliable"), atomic():
                add.apply_async((1, label), task_id=label)
        finally:
            cursor.execute("ALTER TABLE hidden RENAME TO celery_reliable_ledger")
    assert waiting() == []
