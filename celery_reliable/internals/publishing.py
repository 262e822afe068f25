"""Publish calls as Celery would with less work, and messages as they came."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError
from kombu.utils import json as kombu_json

from celery_reliable.internals.redis_channels import is_connected, reuse_client

if TYPE_CHECKING:
    from celery import Celery, Task
    from kombu import Producer

    from celery_reliable.payloads import RawMessage

_CONFIRM_TIMEOUT = 30.0
_CLOSED = "the connection to the broker was closed meanwhile, nothing was sent; submit again"


def sending_options(task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under which `Task.apply_async` sends: those of the task's class, then the call's.

    ``Task._get_exec_options`` (5.7) is what `apply_async` itself reads; a copy that left one out would be sent
    elsewhere.
    """
    return {**task._get_exec_options(), **options}  # noqa: SLF001


def target_queue(task: Task, options: Mapping[str, Any], args: Any, kwargs: Any) -> str:
    """Return the name of the queue that a call is sent to, "" when it names an exchange alone.

    The router (5.7) takes ``queue`` out of what it is given, so it gets a copy.
    """
    wanted = sending_options(task, options)
    found = task.app.amqp.router.route(dict(wanted), task.name, args, kwargs, task).get("queue")
    return str(getattr(found, "name", found or ""))


def dumped_arguments(task: Task, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return pydantic arguments as `apply_async` sends them: ``Task._dump_pydantic_arguments`` (5.7), None if off."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump is not None else (args, kwargs)


@contextmanager
def publishing(
    app: Celery, producer: Producer | None, *, ask: Callable[[], None] | None = None
) -> Iterator[LentProducer]:
    """Lend a producer whose channel makes no client for each message (`reuse_client`), as ``Celery.send_task`` would.

    ``ask`` is called before anything is done with it. A connection of the pool keeps its channel in
    ``_default_channel`` (5.7); before its first message it has none. kombu (5.7, ``Producer.__exit__``) closes the
    connection when any exception leaves the block, so what ``ask`` has raised is raised after it.
    """
    refusal: BaseException | None = None
    with app.producer_or_acquire(producer) as lent:
        channel = getattr(lent.__connection__, "_default_channel", None)
        if channel is not None:
            reuse_client(channel)
        lending = LentProducer(lent, ask)
        try:
            yield lending
        except BaseException as exc:
            if not lending.refused:
                raise
            refusal = exc
    try:
        if refusal is not None:
            raise refusal
    finally:
        del refusal  # the exception holds this frame


class LentProducer:
    """A producer that calls ``ask`` before anything is done with it: what that raises is raised, and nothing is sent.

    ``Celery.send_task`` (5.7) reads ``connection`` when it has built the message, before the result backend, signals or
    the broker know of it. ``publish`` asks as well, so that nothing is sent unasked whatever Celery reads.
    """

    __slots__ = ("_ask", "_producer", "refused")

    def __init__(self, producer: Producer, ask: Callable[[], None] | None = None) -> None:
        """Take the producer that does the work."""
        self._producer, self._ask = producer, ask
        self.refused = False

    @property
    def connection(self) -> Any:
        """The connection of the producer, once asked."""
        if self._ask is not None:
            self._asked(self._ask)
        return self._producer.connection

    def publish(self, *args: Any, declare: Iterable[Any] | None = None, **options: Any) -> Any:
        """Publish, once asked. Raises what publishing raises.

        After the broker has refused messages kombu (5.7) may meet a channel that was closed meanwhile: it raises AttributeError,
        before anything is sent. Here that is the OperationalError that callers look for.
        """
        if self._ask is not None:
            self._asked(self._ask)
        wanted = _Undeclared(declare or ())
        wanted.producer = self._producer
        try:
            return self._producer.publish(*args, declare=wanted, **options)
        except AttributeError as exc:
            if is_connected(self._producer.channel):
                raise
            raise OperationalError(_CLOSED) from exc

    def _asked(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except BaseException:
            self.refused = True
            raise

    def __getattr__(self, name: str) -> Any:
        """Return what else the producer has."""
        return getattr(self._producer, name)


class _Undeclared(list[Any]):
    """Queues and exchanges; who goes through them meets those alone that the connection has not declared yet.

    kombu (5.7, ``common.maybe_declare``) looks for that, too, but makes copies of queue and exchange before: a tenth of what
    plain Celery does for a message. Looked at anew each time, since a retry may have another connection.
    """

    producer: Producer

    def __iter__(self) -> Iterator[Any]:
        connection = self.producer.channel.connection
        declared = connection.client.declared_entities if connection else ()
        return (one for one in super().__iter__() if not (hash(one) in declared and one.can_cache_declaration))


@contextmanager
def confirming_producer(app: Celery) -> Iterator[Producer]:
    """Give a producer on a connection of its own whose publish returns once the broker has the message.

    On AMQP by kombu's transport option ``confirm_publish`` (5.7), whatever the project's own connections do.
    """
    driver = app.connection_for_write().get_transport_cls().driver_type
    extra = {"transport_options": {"confirm_publish": True}} if driver == "amqp" else {}
    with app.connection_for_write(**extra) as connection:
        connection.connect()
        yield app.amqp.Producer(connection, auto_declare=False)


def put_back(channel: Any, raw: RawMessage, *, headers: Mapping[str, Any]) -> None:
    """Publish a message straight to its queue, with these headers. On AMQP it returns once the broker has it.

    The default exchange leads to the queue of that name everywhere. On virtual transports the message gets a new
    delivery tag (kombu's ``basic_publish``, 5.7): the old one may still be held somewhere, and its ack would delete both.
    """
    properties = kombu_json.loads(json.dumps(dict(raw.properties)))
    message = channel.prepare_message(
        raw.content,
        priority=properties.pop("priority", None),
        content_type=raw.content_type or None,
        content_encoding=raw.content_encoding or None,
        headers=kombu_json.loads(json.dumps(dict(headers))),
        properties=properties,
    )
    if hasattr(channel, "basic_publish_confirm"):  # AMQP: what the default exchange cannot route is dropped, confirmed
        channel.queue_declare(raw.queue, passive=True)
        channel.basic_publish_confirm(message, exchange="", routing_key=raw.queue, confirm_timeout=_CONFIRM_TIMEOUT)
        return
    channel.basic_publish(message, exchange="", routing_key=raw.queue)
