"""Publishing calls with less work, and messages as they came."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task
from kombu import Connection, Queue, common

from celery_reliable import ReliableTask, internals
from celery_reliable.payloads import RawMessage
from tests.unit.internals.channels import PooledChannel


def test_sending_options_are_those_of_the_class_and_the_call(task: Any) -> None:
    """``Task._get_exec_options``."""
    options = internals.sending_options(task, {"priority": 3})
    assert (options["time_limit"], options["priority"]) == (9, 3)


def test_the_target_queue_is_that_of_the_call_then_of_the_task_then_of_the_routes(task: Any) -> None:
    """``Router.route``, which takes the queue out of what it is given."""
    task.app.conf.task_routes = {"unit.routed": {"queue": "routed"}}
    options = {"queue": "slow"}
    assert internals.target_queue(task, options, (1,), {}) == "slow"
    assert options == {"queue": "slow"}
    assert internals.target_queue(task, {}, (1,), {}) == "fast"

    def body() -> None: ...

    for name, queue in (("unit.routed", "routed"), ("unit.plain", "celery")):
        other: Any = task.app.task(base=ReliableTask, name=name, shared=False)(body)
        assert internals.target_queue(other, {}, (), {}) == queue


def test_message_goes_back_as_it_came() -> None:
    """With kombu's ``prepare_message`` and ``basic_publish`` to the default exchange; all of it."""
    with Connection("memory://") as connection:
        channel: Any = connection.default_channel
        channel.queue_declare("jobs")
        raw = RawMessage(
            queue="jobs",
            body="/w==",
            content_type="x/y",
            content_encoding="binary",
            headers={"id": "i", "when": {"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}},
            properties={"priority": 3, "correlation_id": "c", "reply_to": "r"},
        )
        internals.put_back(channel, raw, headers=raw.headers)
        message = channel.message_to_python(channel.basic_get("jobs", no_ack=True))
        assert internals.queue_of(message, None) == "jobs"
        assert RawMessage(queue="jobs", **internals.raw_parts(message)) == raw
        assert message.body == b"\xff"


def test_a_pooled_producer_is_lent_with_a_channel_that_keeps_its_client(task: Any) -> None:
    """``Connection._default_channel``; on other transports nothing changes, and a producer that is given is used."""
    with internals.publishing(task.app, None) as producer:
        assert producer.channel is producer.connection._default_channel
    with task.app.connection() as connection, task.app.amqp.Producer(connection) as mine:
        connection._default_channel = channel = PooledChannel()
        with internals.publishing(task.app, mine) as lent:
            assert lent.connection is mine.connection
        assert channel._create_client() is channel._create_client()
        connection._default_channel = None


def test_celery_reads_a_producer_s_connection_before_it_tells_anybody_of_a_message(task: Any) -> None:
    """`LentProducer`: not the result backend, nor the signals; and after it has built the message."""
    steps: list[str] = []
    task.app.backend.on_task_call = lambda *_: steps.append("backend")
    task.app.amqp.create_task_message = _noting(task.app.amqp.create_task_message, steps, "built")
    with task.app.connection() as connection, task.app.amqp.Producer(connection) as lent:
        producer = internals.LentProducer(lent, lambda: steps.append("asked"))
        Task.apply_async(task, (1,), producer=producer, ignore_result=False)
    assert steps[:3] == ["built", "asked", "backend"]


def test_an_attribute_error_of_a_living_channel_is_what_it_is() -> None:
    """Such as one of a body that cannot be serialized."""

    def publish(*_: object, **__: object) -> None:
        raise AttributeError("of the body")

    channel = SimpleNamespace(connection=SimpleNamespace(client=object()))
    lent: Any = SimpleNamespace(publish=publish, channel=channel)
    with pytest.raises(AttributeError, match="of the body"):
        internals.LentProducer(lent).publish("body")


def test_a_producer_that_asks_publishes_nothing_when_it_may_not() -> None:
    """Whatever Celery has read of it before."""

    def refuse() -> None:
        raise LookupError("not this one")

    published: list[str] = []
    lent: Any = SimpleNamespace(publish=lambda body, **_: published.append(body), serializer="json")
    producer = internals.LentProducer(lent, refuse)
    assert producer.serializer == "json"
    with pytest.raises(LookupError):
        producer.publish("message")
    assert published == []


def test_a_lent_producer_declares_what_its_connection_has_not_declared_yet() -> None:
    """Each once for a connection, also in a retry that has another one; what may vanish by itself each time."""
    lasting, fleeting = Queue("lasting"), Queue("fleeting", auto_delete=True)
    with Connection("memory://") as connection:
        lent = connection.Producer()
        declared: list[str] = []

        def maybe_declare(entity: Any, **_: Any) -> None:
            declared.append(entity.name)
            common.maybe_declare(entity, lent.channel)

        lent.maybe_declare = maybe_declare
        producer = internals.LentProducer(lent)

        def publish() -> list[str]:
            declared.clear()
            producer.publish("message", routing_key="lasting", declare=[lasting, fleeting], retry=True)
            return declared[:]

        assert publish() == ["lasting", "fleeting"]
        assert publish() == ["fleeting"]
        connection.declared_entities.clear()  # as ``Connection`` does when it connects anew
        assert publish() == ["lasting", "fleeting"]


def _noting(call: Any, steps: list[str], step: str) -> Any:
    def noted(*args: Any, **options: Any) -> Any:
        steps.append(step)
        return call(*args, **options)

    return noted
