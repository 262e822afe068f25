"""Touch what Celery and kombu do not document, in one place, each with the version and the reason.

`tests/unit/test_internals.py` and the integration tests fail when one of them changes. Written against Celery 5.7.0 and
kombu 5.7.0.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import datetime
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from billiard.common import terminate_handler_fired
from celery import Task, current_app, states
from celery._state import _task_stack
from celery.app import utils as app_utils
from celery.app.task import Context, get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import NotRegistered, TaskRevokedError
from celery.utils.time import maybe_iso8601
from celery.worker import state
from kombu import Exchange, serialization
from kombu.transport.redis import _socket_readable
from kombu.transport.virtual import QoS as VirtualQoS
from kombu.utils import json as kombu_json
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from celery import Celery
    from celery.exceptions import Retry
    from kombu import Producer
    from kombu.message import Message

    from celery_reliable.payloads import RawMessage
    from celery_reliable.task import ReliableTask


def loaded_app() -> Celery | None:
    """Return the app that this process has made; None when there is only the one that Celery makes up.

    ``celery._state`` (5.7) answers with an app named "default" that is nobody's current one when it is asked for an app
    and has none: whatever is submitted with it goes to a broker on this host.
    """
    app: Celery = current_app._get_current_object()  # noqa: SLF001
    return None if app.main == "default" and not app.set_as_current else app


def command_context(app: Celery) -> Any:
    """Return what ``celery -A proj`` gives its commands as ``ctx.obj``: ``celery.bin.base.CLIContext`` (5.7)."""
    from celery.bin.base import CLIContext  # noqa: PLC0415  # the command line, which nobody else needs

    return CLIContext(app=app, no_color=False, workdir=None)


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


def declare_like(app: Celery, queue: str, names: Iterable[str]) -> None:
    """Let an app know queues that are like another one, each reached by its own name alone.

    A copy of a kombu ``Queue`` (5.7) has its arguments, so type, priorities and limits. The exchange is one of the queue's own, as
    ``Queues.new_missing`` (5.7) has it; Celery sends to such a queue by the default exchange. Raises `KeyError` for an unknown one.
    """
    model = app.amqp.queues[queue]
    for name in names:
        made = copy(model)
        made.name = made.routing_key = name
        made.exchange, made.bindings, made.alias = Exchange(name, type="direct"), set(), None
        app.amqp.queues.add(made)


def consume_also(app: Celery, more: Callable[[str], Iterable[str]]) -> None:
    """Have a worker that has not begun to consume take more queues with each that it was told to.

    ``Queues.select_add`` (5.7) adds to those of ``-Q``, or to all that it consumes without it.
    """
    queues = app.amqp.queues
    for name in [name for queue in list(queues.consume_from) for name in more(queue)]:
        queues.select_add(queues[name])


class _InTurn(tuple[int, ...]):  # noqa: SLOT001  # a tuple has no room for named slots
    """Steps of priority that are gone through in an order of their own, and are found by their number as ever."""

    order: Callable[[Sequence[int]], Sequence[int]]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self[:]))


def take_turns(channel: Any, turns: Any) -> None:
    """Let ``turns`` say in which order a Redis channel looks into its lists.

    ``_brpop_start`` (kombu 5.7) asks ``_queue_cycle`` for the order of queues, and goes through ``priority_steps`` around it;
    ``_brpop_read`` tells the cycle from where a message came. The number of a step is found by index, not by this order.
    """
    steps = _InTurn(channel.priority_steps[:])
    steps.order = turns.steps
    turns.update(channel.active_queues)
    channel.priority_steps, channel._queue_cycle = steps, turns  # noqa: SLF001


def dumped_arguments(task: Task, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return pydantic arguments as `apply_async` sends them: ``Task._dump_pydantic_arguments`` (5.7), None if off."""
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return dump(args, kwargs) if dump is not None else (args, kwargs)


def register_alias(app: Celery, cls: type[Task], name: str) -> bool:
    """Register a task under one more name; False when another task has it.

    ``app._tasks`` (5.7) is what ``app.tasks`` gives without finalising the app, which is not possible while a task is
    bound. The entry is an instance of its own: workers keep a tracer, which knows the name, on each.
    """
    known = app._tasks.get(name)  # noqa: SLF001
    if known is None:
        app._tasks[name] = cls()  # noqa: SLF001
    return known is None or type(known) is cls


def prepared_retry(task: ReliableTask, **options: Any) -> Retry:
    """Let Celery's own `Task.retry` build the retry (merged arguments, options) without publishing it.

    For an eager request `Task.retry` (5.7) returns the signature instead of sending it; nothing else depends on the flag.
    It also leaves its ``max_retries`` on the task, where ``autoretry_for`` takes it for the limit of the next run.
    """
    request = task.request
    eager, request.is_eager = request.is_eager, True
    try:
        prepared: Retry = Task.retry(task, throw=False, **options)
        return prepared
    finally:
        request.is_eager = eager
        task.__dict__.pop("override_max_retries", None)


def give_back(message: Message) -> None:
    """Return an unacknowledged message to the end of its queue from which it is received next.

    On Redis kombu's ``reject(requeue=True)`` (5.7) pushes to the far end, behind the whole backlog; ``restore_by_tag``
    takes the end as an argument. AMQP brokers put it back near its old place by themselves.
    """
    if message.acknowledged:
        return
    qos: Any = getattr(message.channel, "qos", None)
    if qos is not None and hasattr(qos, "restore_by_tag"):
        qos.restore_by_tag(message.delivery_tag, leftmost=False)
        VirtualQoS.ack(qos, message.delivery_tag)  # takes it from what this worker holds, sends nothing
        message._state = "REQUEUED"  # noqa: SLF001  # what `Message.requeue` sets
        return
    message.requeue()


def give_back_all(messages: Sequence[Message]) -> None:
    """Do as `give_back` with each message, in this order. Two round trips for hundreds of a Redis queue."""
    unacked = [message for message in messages if not message.acknowledged]
    channel: Any = unacked[0].channel if unacked else None
    if not hasattr(channel, "unacked_key"):
        for message in unacked:
            message.requeue()
        return
    restore_all(channel, [message.delivery_tag for message in unacked])
    for message in unacked:
        VirtualQoS.ack(channel.qos, message.delivery_tag)
        message._state = "REQUEUED"  # noqa: SLF001


def restore_all(channel: Any, tags: Sequence[str]) -> None:
    """Put held messages of a Redis broker back to the near end of their queues, in this order; each atomically.

    As ``QoS.restore_by_tag`` of kombu's channel (5.7), which takes 1.2 ms for each. By EVAL, which kombu's client does
    not prefix, unlike EVALSHA.
    """
    held = [f"{channel.global_keyprefix}{name}" for name in (channel.unacked_key, channel.unacked_index_key)]
    with channel.conn_or_acquire() as client:
        for start in range(0, len(tags), _AT_ONCE):
            some = tags[start : start + _AT_ONCE]
            raws = client.eval(_READ_HELD, 1, held[0], *some)
            for places, restored in _by_list(channel, zip(some, raws, strict=True)).items():
                client.eval(_RESTORE_HELD, 2 + len(places), *held, *places, *restored)


_AT_ONCE = 200  # messages: the script keeps Redis for about a millisecond
_READ_HELD = "return redis.call('HMGET', KEYS[1], unpack(ARGV))"

# Atomic for each message: whoever takes it out of the held ones puts it back, so that it is back once.
_RESTORE_HELD = """
for i = 1, #ARGV, 2 do
    redis.call('ZREM', KEYS[2], ARGV[i])
    if redis.call('HDEL', KEYS[1], ARGV[i]) == 1 then
        for k = 3, #KEYS do redis.call('RPUSH', KEYS[k], ARGV[i + 1]) end
    end
end
"""


def _by_list(channel: Any, held: Iterable[tuple[str, Any]]) -> dict[tuple[str, ...], list[str]]:
    """Group tags and messages by the lists they go back to. One that is no longer held is left out."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for tag, raw in held:
        if raw is None:
            continue
        payload, exchange, routing_key = loads(bytes_to_str(raw))
        with suppress(KeyError):  # another producer's message may have neither
            payload["headers"]["redelivered"] = True
            payload["properties"]["delivery_info"]["redelivered"] = True
        priority = channel._get_message_priority(payload, reverse=False)  # noqa: SLF001  # as ``_do_restore_message`` (5.7)
        queues = channel._lookup(exchange, routing_key)  # noqa: SLF001
        places = tuple(f"{channel.global_keyprefix}{channel._q_for_pri(queue, priority)}" for queue in queues)  # noqa: SLF001
        grouped.setdefault(places, []).extend((tag, dumps(payload)))
    return grouped


def new_token() -> str:
    """Return 12 characters that no other delivery has."""
    return secrets.token_urlsafe(9)


def keeps_result(task: Task) -> bool:
    """Tell whether the tracer will store this request's result.

    ``ignore_result`` of the request wins over the task's only when it was given (``get_actual_ignore_result``, 5.7).
    """
    return not get_actual_ignore_result(task, task.request) and not isinstance(task.backend, DisabledBackend)


def store_failure(task: Task, exc: Exception) -> None:
    """Store the failure of the present request as the tracer will do again: the rule of ``handle_error_state`` (5.7)."""
    if not get_actual_ignore_result(task, task.request) or task.store_errors_even_if_ignored:
        told = "".join(traceback.format_exception(exc))
        task.backend.store_result(task.request.id, exc, states.FAILURE, traceback=told, request=task.request)


def store_success(task: Task, result: Any) -> None:
    """Store the success of the present request and count it in its chord, as the tracer does after a body (5.7)."""
    task.backend.mark_as_done(task.request.id, result, task.request, keeps_result(task))


def is_chord_claimed(task: Task) -> bool:
    """Tell whether a worker says that it is sending the body of the present request's chord just now.

    ``on_chord_part_return`` of the Redis backend (5.7) lets one worker claim that, and all others go on as if it were
    done. If that worker dies, only a member that comes again when the claim is over sends the body.
    """
    backend, group = task.backend, task.request.group
    if not group or not hasattr(backend, "_chord_part_return_script"):
        return False
    return backend.client.get(backend.get_key_for_group(group, ".c")) not in (None, b"done")


def fail_what_follows(task: Task, exc: Exception) -> None:
    """Fail the chord and the rest of the chain of the present request, its errbacks left out (``mark_as_failure``, 5.7).

    The failure itself is not stored.
    """
    request, backend = task.request, task.backend
    told = "".join(traceback.format_exception(exc))
    if request.chord:
        backend.on_chord_part_return(request, states.FAILURE, exc)
    backend._fail_chain(request.chain, exc, told, store_result=keeps_result(task))  # noqa: SLF001


def store_retry(task: Task, exc: Exception | None) -> None:
    """Store that the present request will be tried again, as the tracer does (``handle_retry``, 5.7)."""
    if keeps_result(task):
        told = "".join(traceback.format_exception(exc)) if exc is not None else None
        task.backend.mark_as_retry(task.request.id, exc, told, request=task.request)


def mark_skipped(task: Task, reason: str) -> None:
    """Store that the present request was revoked, and tell its chord, its chain and its errbacks.

    ``Backend.mark_as_revoked`` (5.7) tells the chord alone; ``mark_as_failure`` takes the state to store for all of them.
    """
    request = task.request
    stored = not get_actual_ignore_result(task, request)
    task.backend.mark_as_failure(
        request.id, TaskRevokedError(reason), request=request, store_result=stored, state=states.REVOKED
    )


def is_called_in_place(backend: Any, errback: Any) -> bool:
    """Tell whether the tracer calls an errback instead of sending it: the rule of ``_call_task_errbacks`` (5.7)."""
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return False
    takes_more = header is not None and not isinstance(header, partial)
    return takes_more and bool(backend._errback_arity_greater(errback, 1))  # noqa: SLF001


def is_terminated() -> bool:
    """Tell whether a signal told this pool child to end (time limit, revoke, a SIGTERM to the process group).

    billiard's handler (4.3) raises SystemExit in the body and sets this flag first; whatever comes out of the body then
    is no outcome of the task.
    """
    fired: bool = terminate_handler_fired()
    return fired


def has_room(consumer: Any) -> bool:
    """Tell whether a consumer may receive a message now: its prefetch count is not used up.

    kombu's virtual transports know it themselves (``QoS.can_consume``, 5.7, which ``worker_disable_prefetch`` replaces).
    For AMQP the broker counts: here, what Celery (5.7) has reserved, scheduled, or put into the bucket of a rate limit.
    """
    qos = getattr(consumer.task_consumer.channel, "qos", None)
    if qos is not None and hasattr(qos, "can_consume"):
        return bool(qos.can_consume())
    limit = consumer.qos.value
    buckets = [bucket for bucket in consumer.task_buckets.values() if bucket]
    held = len(state.reserved_requests) + len(state.scheduled_requests)
    return not limit or held + sum(len(bucket.contents) for bucket in buckets) < limit


def active_requests() -> list[Any]:
    """Return the requests that run: a copy of ``state.active_requests`` (5.7), a WeakSet that changes meanwhile."""
    while True:
        try:
            return list(state.active_requests)
        except RuntimeError:
            continue


def pool_name(pool: Any) -> str:
    """Return the name under which ``--pool`` knows a pool: that of its module (5.7)."""
    name = type(pool).__module__.rpartition(".")[2]
    return {"thread": "threads"}.get(name, name)


def subscribe_only_to_wait(app: Celery) -> None:
    """Have this process subscribe to a result when somebody waits for it, not whenever a task is sent.

    On green pools Celery (5.7, Redis backend) subscribes for every task that a worker sends, and unsubscribes in
    ``AsyncResult.__del__``. The garbage collector may run that anywhere: inside gevent's own thread pool, which looks up
    the server's name, it waits for a lock that the same thread holds, and the worker stands still for ever. With this
    the collector only notes what to unsubscribe from, and the next look at the results does it.
    """
    make: Callable[[], Any] = app._get_backend  # noqa: SLF001  # each thread may have a backend of its own

    def calm_backend() -> Any:
        return _calm(make())

    app._get_backend = calm_backend  # noqa: SLF001
    _calm(app.backend)


def _calm(backend: Any) -> Any:
    consumer = getattr(backend, "result_consumer", None)
    pending = getattr(consumer, "_pending_unsubscribe", None)
    if consumer is not None and pending is not None:
        backend.on_task_call = _no_subscription
        consumer.cancel_for = lambda task_id: pending.add(consumer._get_key_for_task(task_id))  # noqa: SLF001
    return backend


def _no_subscription(producer: Any, task_id: str) -> None:
    """Stand for `on_task_call`."""


# --- a connection to Redis that is lost


def poll_open_sockets_only(poller: Any) -> None:
    """Take closed sockets out of a green worker's poller (``kombu.utils.eventio._select``, 5.7) before each look.

    kombu does so by waiting for each of them once the wait for all has failed. On eventlet (0.41, ``green.select``) a wait that
    fails leaves its listeners behind. The next socket that gets the number of the closed one has an error thrown
    into the greenlet that had waited, whatever that does by then: a worker that sleeps between two tries to connect ends.
    """
    poll = poller.poll

    def poll_open(timeout: float | None) -> Any:
        for descriptor in [*poller._rfd, *poller._wfd, *poller._efd]:  # noqa: SLF001
            try:
                os.fstat(descriptor)
            except OSError:
                poller.unregister(descriptor)
        return poll(timeout)

    poller.poll = poll_open


def running_tags() -> set[str]:
    """Return the delivery tags of all messages that run and are not acknowledged, whichever connection brought them."""
    return {str(one.message.delivery_tag) for one in active_requests() if not one.acknowledged}


def held_tags(qos: Any) -> list[str]:
    """Return the tags of all messages that a virtual channel holds: ``_delivered`` without ``_dirty`` (kombu 5.7)."""
    while True:
        try:
            return [tag for tag in list(qos._delivered) if tag not in qos._dirty]  # noqa: SLF001
        except RuntimeError:  # changed meanwhile
            continue


def outlive_connection(channel: Any, *, successor: Callable[[], Any]) -> None:
    """Let a Redis channel ack and give back messages after its connection was closed.

    kombu (5.7) makes new clients from `_get_pool`, which asks the connection for its address, and finds a message's
    queue through the connection's state. Of a closed one it gets an AttributeError, which ends the worker's main process
    or, in `_do_restore_message`, drops the message. Instead: the pool of the living channel, and the bindings that
    ``successor()``, the channel of the next connection, knows.
    """
    make_pool, look_up = channel._get_pool, channel._lookup  # noqa: SLF001
    pools = {False: channel.pool}

    def get_pool(asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  # kombu's signature
        if is_connected(channel):
            pools[asynchronous] = make_pool(asynchronous)
        return pools[asynchronous]

    def lookup(exchange: str, routing_key: str, default: str | None = None) -> Any:
        if is_connected(channel):
            return look_up(exchange, routing_key, default)
        heir = successor()
        if not is_connected(heir):
            raise ConnectionError("no connection to the broker; the message stays with it until there is one")
        return heir._lookup(exchange, routing_key, default)  # noqa: SLF001

    channel._get_pool, channel._lookup = get_pool, lookup  # noqa: SLF001


def reuse_client(channel: Any, *, prepare: Callable[[Any], None] | None = None) -> None:
    """Let a Redis channel keep one client of its pool; other channels are left as they are.

    kombu (5.7, ``conn_or_acquire``) makes a `redis.Redis` for each command, twice a message in a worker: a sixth of what
    its main process does. A client holds no connection of its own, only the pool, and may be shared by threads.
    ``prepare`` is called with each that is made.
    """
    make = getattr(channel, "_create_client", None)
    if make is None or "_create_client" in vars(channel):
        return
    kept: list[Any] = []

    def create_client(asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  # kombu's signature
        if asynchronous:
            return make(asynchronous=True)
        if not kept or kept[0].connection_pool is not channel.pool:
            kept[:] = [make()]
            if prepare is not None:
                prepare(kept[0])
        return kept[0]

    channel._create_client = create_client  # noqa: SLF001


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
        """Publish, once asked."""
        if self._ask is not None:
            self._asked(self._ask)
        wanted = _Undeclared(declare or ())
        wanted.producer = self._producer
        return self._producer.publish(*args, declare=wanted, **options)

    def _asked(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except BaseException:
            self.refused = True
            raise

    def __getattr__(self, name: str) -> Any:
        """Return what else the producer has."""
        return getattr(self._producer, name)


Sign = Callable[[Mapping[str, Any], Any, tuple[str, str]], str | None]
"""Returns the signature of a message by its headers, body, content type and encoding; None for none."""


def sign_messages(app: Celery, *, header: str, sign: Sign) -> None:
    """Let ``sign`` write a header into each task message that this process publishes, whoever sends it. Twice is once.

    All of them go through ``AMQP.send_task_message`` (5.7), which is made once from ``_create_task_sender``. It hands the body
    to ``Producer.publish`` after the receivers of ``before_task_publish``, so what these change is signed, too.
    """
    amqp: Any = app.amqp
    if "_create_task_sender" in vars(amqp):
        return
    make = amqp._create_task_sender  # noqa: SLF001

    def create_task_sender() -> Any:
        send = make()

        def send_signed(producer: Any, name: str, message: Any, **options: Any) -> Any:
            return send(_SigningProducer(producer, message[2], header=header, sign=sign), name, message, **options)

        return send_signed

    amqp._create_task_sender = create_task_sender  # noqa: SLF001
    vars(amqp).pop("send_task_message", None)


class _SigningProducer:
    """Stand for a producer while one task message is sent; an event of the same sending goes through unsigned."""

    def __init__(self, producer: Any, body: Any, *, header: str, sign: Sign) -> None:
        self._producer, self._body, self._header, self._sign = producer, body, header, sign

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *, headers: Any = None, serializer: Any = None, **options: Any) -> Any:
        """Serialise as ``Producer._prepare`` (5.7) would, and sign what goes on the wire, compression apart."""
        if body is not self._body:
            return self._producer.publish(body, headers=headers, serializer=serializer, **options)
        content_type, encoding, raw = serialization.dumps(body, serializer or self._producer.serializer)
        signature = self._sign(headers, raw, (content_type, encoding))
        signed = {name: value for name, value in headers.items() if name != self._header}
        if signature is not None:
            signed[self._header] = signature
        return self._producer.publish(
            raw, headers=signed, content_type=content_type, content_encoding=encoding, **options
        )


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


def hide_settings(*words: str) -> None:
    """Have Celery hide settings whose names hold one of these words in ``celery report`` and ``celery inspect conf``.

    ``celery.app.utils.HIDDEN_SETTINGS`` (5.7) knows the names of Celery's own, for this process alone.
    """
    known: re.Pattern[str] = app_utils.HIDDEN_SETTINGS
    missing = [word for word in words if word not in known.pattern]
    if missing:
        app_utils.HIDDEN_SETTINGS = re.compile("|".join([known.pattern, *missing]), known.flags)


def is_connected(channel: Any) -> bool:
    """Tell whether a virtual channel still belongs to a connection: kombu (5.7) takes away both references."""
    return getattr(getattr(channel, "connection", None), "client", None) is not None


def restore_only_at_the_end(qos: Any) -> None:
    """Take ``restore_unacked_once`` (kombu 5.7) of a Redis channel out of the way of a lost connection.

    It is called at each close of the channel, also of one whose server is away or hangs, and gives back what still
    runs. Instead: nothing while the worker goes on; all when it ends, without an error.
    """
    restore = qos.restore_unacked_once

    def restore_unacked_once(stderr: Any = None) -> None:
        qos._on_collect.cancel()  # noqa: SLF001
        if state.should_stop is None and state.should_terminate is None:
            return
        try:
            restore(stderr)
        except qos.channel.connection_errors:
            return  # the sweep of silent messages brings back what could not be given back

    qos.restore_unacked_once = restore_unacked_once


def give_back_left_over(old: Any, new: Any, *, but: Collection[str]) -> int:
    """Give back, through a new channel, what an old one held, except for the tags in ``but``. Returns how many."""
    left = [tag for tag in held_tags(old) if tag not in but]
    for tag in left:
        new.restore_by_tag(tag, leftmost=False)
        VirtualQoS.ack(old, tag)
    return len(left)


def set_prefetch_by_the_loop(qos: Any) -> None:
    """Let only the thread that calls this tell the broker a prefetch count: another's waits for the loop's next turn.

    After a reconnect Celery (5.7, ``Consumer._restore_prefetch_count_after_connection_restart``) calls ``QoS.set`` in the
    thread, or greenlet, in which a task ended. On AMQP that waits for an answer on the connection from which the loop
    reads too: if the loop gets it, the thread waits on, with the lock for which the loop waits next.
    """
    loop, tell = get_ident(), qos.set

    def tell_from_the_loop(count: int) -> int:
        return int(tell(count)) if get_ident() == loop else count

    qos.set = tell_from_the_loop


def mark_deliveries(qos: Any, *, name: str, mark: Callable[[], str]) -> None:
    """Write ``mark()`` into the properties of each message that a Redis channel notes as out.

    ``QoS.append`` (kombu 5.7) stores ``message._raw`` among the unacked, so that whoever looks there sees whose it is;
    its properties are those of the message.
    """
    append = qos.append

    def marked(message: Any, delivery_tag: str) -> None:
        message._raw["properties"][name] = mark()  # noqa: SLF001
        append(message, delivery_tag)

    qos.append = marked


def is_redelivered(message: Message) -> bool:
    """Tell whether a message was out before: AMQP says so in the delivery, kombu's Redis transport (5.7) in the headers."""
    return bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered"))


def return_late_replies(channel: Any) -> None:
    """Put back at once the message that answers a BRPOP which was sent before the prefetch count was used up.

    When a message that waited (ETA, hold) starts to run, the prefetch count falls and the BRPOP that it had allowed is
    still pending. kombu (5.7, ``MultiChannelPoller._pause_brpop``) leaves its answer in the socket until there is room:
    a message in no queue and not among the unacked, for as long as a task runs, and lost if the worker is killed.
    """

    def put_back(asked: Any, _fileno: int) -> None:
        connection = asked.client.connection
        if not _socket_readable(connection._sock):  # noqa: SLF001
            return  # no answer yet: it goes on being polled
        try:
            reply = asked.client.parse_response(connection, "BRPOP")
        except asked.connection_errors:
            connection.disconnect()
            raise
        finally:
            asked._in_poll = None  # noqa: SLF001
        if reply:
            with asked.conn_or_acquire() as client:
                client.rpush(*reply)

    channel.connection.cycle._pause_brpop = put_back  # noqa: SLF001


# --- messages that cannot run


def is_moment(value: object) -> bool:
    """Tell an ``eta`` or ``expires`` that a worker can count towards: what ``Request`` and the strategy (5.7) do with it.

    A time that the strategy cannot convert is rejected there, which deletes the message on Redis.
    """
    try:
        moment = maybe_iso8601(value) if isinstance(value, str | datetime) else None
    except (ValueError, TypeError, OverflowError):
        return False
    return moment is not None and 1 < moment.year < 9999  # noqa: PLR2004  # in any zone it is still a year


def is_taken(message: Message) -> bool:
    """Tell whether Celery has made a request of a message already: then an error is not the message's."""
    requests = (*state.reserved_requests, *state.scheduled_requests, *state.active_requests)
    return any(request.message is message for request in requests)


def place_of(message: Message) -> Any:
    """Return what a message says of where it came from: the same for all messages of a queue on one connection."""
    info = message.delivery_info
    return info.get("consumer_tag") or (info.get("exchange"), info.get("routing_key"))


def queues_by_tag(task_consumer: Any) -> dict[str, str]:
    """Return the queues that are consumed by the tag of their consumer: kombu's ``Consumer._active_tags`` (5.7)."""
    return {tag: name for name, tag in getattr(task_consumer, "_active_tags", {}).items()}


def queue_of(message: Message, task_consumer: Any, *, cancelled: Mapping[str, str] | None = None) -> str:
    """Return the queue that a message was received from; ``cancelled`` has queues by tag that are not consumed any more.

    AMQP tells the consumer's tag; virtual transports tell exchange and routing key, which lead to the queue as in kombu's
    own ``_restore``.
    """
    info = message.delivery_info
    names = {**(cancelled or {}), **queues_by_tag(task_consumer)}
    if info.get("consumer_tag") in names:
        return str(names[info["consumer_tag"]])
    lookup = getattr(message.channel, "_lookup", None)
    found = lookup(info.get("exchange"), info.get("routing_key")) if lookup else ()
    return str(next(iter(found), None) or info.get("routing_key") or "")


def cancel_without_answer(consumer: Any, queue: str) -> None:
    """Cancel the consumer of one queue as Celery's ``cancel_task_queue`` (5.7) does, where another greenlet reads the answer."""
    consumer.app.amqp.queues.deselect(queue)
    known = consumer.task_consumer
    tag = known._active_tags.pop(queue)  # noqa: SLF001
    known._active_queue_no_ack.pop(queue, None)  # noqa: SLF001
    known._queues.pop(queue, None)  # noqa: SLF001
    known.channel.basic_cancel(tag, nowait=True)


def keep_late_arrivals_near(channel: Any) -> None:
    """Give back, at the near end, what a BRPOP still brings of a queue whose consumer was cancelled meanwhile.

    kombu (5.7, ``Transport._reject_inbound_message``) puts it behind the whole backlog.
    """
    transport = channel.connection
    if not hasattr(transport, "_reject_inbound_message"):
        return

    def give_back_late(raw: Any) -> None:
        message = channel.Message(raw, channel=channel)
        channel.qos.append(message, message.delivery_tag)
        give_back(message)

    transport._reject_inbound_message = give_back_late  # noqa: SLF001


def forget_waiting(consumer: Any, gone: Collection[int]) -> None:
    """Take requests, by the ids of their messages, out of what would begin them later: a free slot, or their rate limit.

    A slot of a prefork pool calls ``LaxBoundedSemaphore._waiting`` (kombu 5.7), the rate limit ``TokenBucket.contents``. In
    the consumer's own thread.
    """
    semaphore = getattr(consumer.controller, "semaphore", None)
    waiting: Any = getattr(semaphore, "_waiting", ())
    for entry in [entry for entry in waiting if entry[1] and id(getattr(entry[1][0], "message", None)) in gone]:
        waiting.remove(entry)
    for bucket in list(consumer.task_buckets.values()):
        for entry in [entry for entry in (bucket.contents if bucket else ()) if id(entry[0].message) in gone]:
            bucket.contents.remove(entry)


def raised_prefetch(consumer: Any, request: Any) -> bool:
    """Tell whether the prefetch count is one higher while a request waits: for its ETA, or held as if it had one (5.7).

    The timers of green pools give a greenlet that has the entry.
    """
    entry = getattr(request._eta_timer_entry, "entry", request._eta_timer_entry)  # noqa: SLF001
    return entry is not None and entry.fun in (consumer.apply_eta_task, consumer._limit_post_eta)  # noqa: SLF001


def raw_parts(message: Message) -> dict[str, Any]:
    """Return body, content and headers of a message as `RawMessage` keeps them: the message, not its journey.

    kombu's ``Message`` (5.7) has decompressed the body already unless that failed; AMQP's own fields of the same
    message are left out, and ``user_id``, which the broker checks against whoever publishes.
    """
    headers = dict(message.headers) if isinstance(message.headers, Mapping) else {}
    if not message.errors:
        headers.pop("compression", None)
    properties = {name: value for name, value in dict(message.properties).items() if name not in _OF_THE_JOURNEY}
    body = message.body
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else _bytes(body)
    return {
        "body": base64.b64encode(content).decode(),
        "content_type": str(message.content_type or ""),
        "content_encoding": str(message.content_encoding or ""),
        "headers": json.loads(kombu_json.dumps(headers)),
        "properties": json.loads(kombu_json.dumps(properties)),
    }


_OF_THE_JOURNEY = (
    "application_headers",
    "content_type",
    "content_encoding",
    "delivery_tag",
    "delivery_info",
    "body_encoding",
    "user_id",
)


_CONFIRM_TIMEOUT = 30.0


def _bytes(body: Any) -> bytes:
    """Return what a broker gave for a body as bytes; a Redis item may hold any JSON there."""
    if body is None:
        return b""
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else json.dumps(body).encode()


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


def context_of(fields: Mapping[str, Any], embed: Mapping[str, Any] | None) -> Context:
    """Return the request of a message that makes none here: headers and the third part of the body, as ``Request`` does."""
    return Context({"delivery_info": {}, **fields, **(embed or {})})


def away() -> tuple[type[Exception], ...]:
    """Return what is raised while broker or result backend are away: OSError, and what is none in redis, amqp and kombu."""
    from amqp.exceptions import AMQPError  # noqa: PLC0415  # the drivers are imported where they are used
    from kombu.exceptions import OperationalError  # noqa: PLC0415
    from redis.exceptions import RedisError  # noqa: PLC0415

    return (OSError, AMQPError, RedisError, OperationalError)


def fail(app: Celery, context: Context, exc: Exception) -> None:
    """Store a failure and tell chord, chain and errbacks of a request, as a worker does for an unregistered task.

    ``Backend.mark_as_failure`` (5.7). Raises what backend and broker raise.
    """
    keep = not context.ignore_result
    app.backend.mark_as_failure(context.id, exc, request=context, store_result=keep)


@contextmanager
def current(task: Task) -> Iterator[None]:
    """Make a task ``celery.current_task`` for a block of code, as the tracer (5.7) does with ``_state._task_stack``."""
    _task_stack.push(task)
    try:
        yield
    finally:
        _task_stack.pop()


@contextmanager
def changed_settings(app: Celery, settings: Mapping[str, Any]) -> Iterator[None]:
    """Give an app other settings for a block of code, servers among them; after it, all are as they were.

    ``Settings.changes`` (5.7) holds what was set, once the configuration has been read. Connections are made anew at
    both ends.
    """
    _ = app.conf.broker_url  # reads it
    changes = app.conf.changes
    before = dict(changes)
    app.conf.update(settings)
    _forget_connections(app)
    try:
        yield
    finally:
        _forget_connections(app)
        changes.clear()
        changes.update(before)


def _forget_connections(app: Celery) -> None:
    """Close what an app keeps open, and forget it, as ``Celery._after_fork`` (5.7) does; the backend it keeps two ways."""
    if app._pool is not None:  # noqa: SLF001
        app._pool.force_close_all()  # noqa: SLF001
    app._after_fork()  # noqa: SLF001
    backend = app._backend  # noqa: SLF001
    # A result that is collected later would look for a server that is gone (Redis, ``AsyncResult.__del__``).
    getattr(getattr(backend, "result_consumer", None), "subscribed_to", set()).clear()
    app._backend_cache = None  # noqa: SLF001
    vars(app._local).pop("backend", None)  # noqa: SLF001
