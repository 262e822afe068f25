"""What we rely on of Celery 5.7 and kombu 5.7 without their documenting it. A failure here means: read their changes."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import threading
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, Task, current_task
from celery.app import trace
from celery.backends.base import Backend, BaseBackend, DisabledBackend
from celery.backends.redis import ResultConsumer
from celery.exceptions import Retry
from celery.worker import loops, state
from celery.worker import request as celery_request
from celery.worker.consumer import Consumer
from kombu import Connection, Queue, common
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.asynchronous.timer import Timer
from kombu.common import QoS as CommonQoS
from kombu.transport import redis as redis_transport
from kombu.transport import virtual
from kombu.transport.redis import Channel, MultiChannelPoller, QoS
from kombu.utils import eventio
from kombu.utils.limits import TokenBucket

from celery_reliable import ReliableTask, internals
from celery_reliable.payloads import RawMessage
from celery_reliable.worker.waker import Waker


@pytest.fixture
def task() -> Any:
    """A bound task with a request, as inside a worker."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"

    def body(self: ReliableTask, x: int) -> None: ...

    made: Any = app.task(base=ReliableTask, bind=True, name="unit.job", queue="fast", time_limit=9, shared=False)(body)
    made.push_request(id="i", args=(1,), kwargs={}, retries=0, called_directly=False, is_eager=False, delivery_info={})
    yield made
    made.pop_request()


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


def test_prepared_retry_publishes_nothing(task: Any) -> None:
    """``Task.retry`` of an eager request returns its signature."""
    prepared = internals.prepared_retry(task, args=(2,), countdown=7, max_retries=99, exc=ValueError("x"))
    assert isinstance(prepared, Retry)
    assert (prepared.sig.args, prepared.sig.options["countdown"]) == ((2,), 7)
    assert task.request.is_eager is False


def test_result_is_kept_unless_ignored_or_without_a_backend(task: Any) -> None:
    """``get_actual_ignore_result`` and ``DisabledBackend``."""
    assert isinstance(task.backend, DisabledBackend)
    assert internals.keeps_result(task) is False


def test_failure_can_be_marked_with_another_state(task: Any) -> None:
    """``mark_as_failure`` takes the state, and hands it to chord and chain."""
    parameters = inspect.signature(Backend.mark_as_failure).parameters
    assert {"request", "store_result", "call_errbacks", "state"} <= set(parameters)
    source = inspect.getsource(Backend.mark_as_failure)
    assert "self.on_chord_part_return(request, state, exc)" in source
    assert "store_result=store_result, state=state" in source


def test_create_request_cls_overrides_what_we_keep_out_of_our_request() -> None:
    """``execute_using_pool`` and ``on_success``; everything else of ours must survive."""
    source = inspect.getsource(celery_request.create_request_cls)
    overridden = {
        line.strip().split("(")[0].removeprefix("def ")
        for line in source.splitlines()
        if line.strip().startswith("def ")
    }
    assert overridden - {"create_request_cls"} == {"execute_using_pool", "on_success"}


# --- messages that cannot run


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-01", True),
        ("2026-01-01T00:00:00Z", True),
        ("20260101T000000+0100", True),
        (datetime(2026, 1, 1), True),  # noqa: DTZ001  # naive on purpose
        ("", False),
        ("soon", False),
        (5, False),
        ({}, False),
        (None, False),
        (b"2026", False),
        ("9999-12-31T23:59:59+00:00", False),
        ("0001-01-01", False),
    ],
)
def test_moments_are_those_that_a_request_takes(value: Any, *, expected: bool) -> None:
    """``maybe_iso8601``, and the years that survive a change of zone."""
    assert internals.is_moment(value) is expected


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


def test_request_of_a_message_tells_its_canvas() -> None:
    """``Context`` takes headers and the third part of the body; ``as_execution_options`` gives what a call was sent with."""
    context = internals.context_of({"id": "i", "task": "t", "group": "g", "mine": 1}, {"chord": {"task": "body"}})
    options = context.as_execution_options()
    assert (options["task_id"], options["group_id"], options["chord"]) == ("i", "g", {"task": "body"})
    assert options["headers"] == {"mine": 1}


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (celery_request.Request, ["_announce_revoked", "on_failure", "on_timeout", "revoked", "_eta_timer_entry"]),
        (Task, ["_get_exec_options", "signature_from_request", "on_bound"]),
        (Consumer, ["apply_eta_task", "call_soon", "call_soon_ack", "create_task_handler", "on_decode_error"]),
        (Consumer, ["on_unknown_message", "on_unknown_task", "on_invalid_task"]),
        (BaseBackend, ["mark_as_failure"]),
        (Channel, ["_brpop_read", "conn_or_acquire", "Message", "sep"]),
        (
            state,
            [
                "active_requests",
                "reserved_requests",
                "scheduled_requests",
                "task_reserved",
                "task_ready",
                "task_scheduled",
            ],
        ),
        (QoS, ["restore_by_tag", "ack", "reject", "restore_unacked_once", "_flush"]),
        (MultiChannelPoller, ["_pause_brpop", "_update_brpop_polling", "on_readable"]),
        (redis_transport, ["_socket_readable"]),
        (Channel, ["_get_pool", "_lookup", "_do_restore_message", "pool", "close"]),
        (
            Channel,
            ["_lookup", "_q_for_pri", "_get_message_priority", "conn_or_acquire", "unacked_key", "global_keyprefix"],
        ),
    ],
)
def test_names_we_use_are_still_there(owner: Any, names: list[str]) -> None:
    """By name; the integration tests show that they still do the same."""
    assert [name for name in names if not hasattr(owner, name)] == []


def test_restore_by_tag_still_takes_the_end_of_the_list() -> None:
    """``leftmost=False`` is the near end."""
    assert inspect.signature(QoS.restore_by_tag).parameters["leftmost"].default is False


def test_channel_makes_its_clients_of_its_pool() -> None:
    """So that a closed channel with a pool can still ack: ``outlive_connection``."""
    assert "self.pool" in inspect.getsource(Channel._create_client)
    assert "_get_pool()" in inspect.getsource(Channel.pool.fget)
    assert "self._lookup(" in inspect.getsource(Channel._do_restore_message)


class _Pooled:
    """What `internals.reuse_client` touches of a Redis channel."""

    conn_or_acquire, _create_client = Channel.conn_or_acquire, Channel._create_client
    Client = staticmethod(redis.Redis)

    def __init__(self) -> None:
        self.pool, self.async_pool = redis.ConnectionPool(), redis.ConnectionPool()


def test_a_redis_channel_makes_a_client_for_each_command_unless_told_to_keep_it() -> None:
    """``Channel.conn_or_acquire`` and ``_create_client``; a new pool gets a new client."""
    channel: Any = _Pooled()

    def client() -> Any:
        with channel.conn_or_acquire() as found:
            return found

    assert client() is not client()
    internals.reuse_client(channel)
    first = client()
    assert first is client()
    channel.pool = redis.ConnectionPool()
    assert client() is not first
    assert client().connection_pool is channel.pool
    assert channel._create_client(asynchronous=True).connection_pool is channel.async_pool


def test_a_pooled_producer_is_lent_with_a_channel_that_keeps_its_client(task: Any) -> None:
    """``Connection._default_channel``; on other transports nothing changes, and a producer that is given is used."""
    with internals.publishing(task.app, None) as producer:
        assert producer.channel is producer.connection._default_channel
    with task.app.connection() as connection, task.app.amqp.Producer(connection) as mine:
        connection._default_channel = channel = _Pooled()
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


def test_closing_a_channel_restores_what_it_holds() -> None:
    """By the method that ``restore_only_at_the_end`` replaces on the instance."""
    assert "self._qos.restore_unacked_once()" in inspect.getsource(virtual.Channel.close)
    qos = virtual.QoS(None)
    qos._on_collect.cancel()
    assert {"_delivered", "_dirty", "_on_collect"} <= set(vars(qos))


def test_closed_connection_leaves_its_channels_without_client() -> None:
    """``is_connected``: the transport of a closed kombu connection has no client, a closed channel no transport."""
    with Connection("memory://") as connection:
        channel = connection.channel()
        assert internals.is_connected(channel)
    assert not internals.is_connected(channel)
    assert not internals.is_connected(None)


def test_held_tags_are_those_delivered_and_not_acked() -> None:
    """``_delivered`` and ``_dirty``."""
    qos = virtual.QoS(None)
    qos._on_collect.cancel()
    qos.append("message", "one")
    qos.append("message", "two")
    qos.ack("one")
    assert internals.held_tags(qos) == ["two"]


def test_answer_to_a_late_question_is_paused_by_one_method() -> None:
    """Which ``return_late_replies`` replaces on the instance."""
    for method in (MultiChannelPoller._update_brpop_polling, MultiChannelPoller.on_readable):
        assert "self._pause_brpop(" in inspect.getsource(method)


def lone() -> None:
    """Be a body."""


def test_alias_is_a_task_of_its_own_to_workers() -> None:
    """They keep a tracer on each entry of ``app.tasks``; ``app._tasks`` can be added to while a task is bound."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    present: Any = app.task(name="present", shared=False, lazy=False)(lone)
    app.task(name="taken", shared=False, lazy=False)(lone)
    assert [internals.register_alias(app, type(present), name) for name in ("former", "former", "taken")] == [
        True,
        True,
        False,
    ]
    assert not app.finalized
    former = app.tasks["former"]
    assert (former.name, former is present, type(former) is type(present)) == ("present", False, True)


def test_prefetch_count_is_told_by_the_loop_alone() -> None:
    """``QoS.set`` and ``update``; another thread's count is told at the loop's next turn, when it differs from ``prev``."""
    told: list[int] = []

    def tell(*, prefetch_count: int) -> None:
        told.append(prefetch_count)

    qos = CommonQoS(tell, 1)
    qos.update()
    internals.set_prefetch_by_the_loop(qos)
    qos.value = 2
    other = threading.Thread(target=qos.set, args=(2,))
    other.start()
    other.join()
    assert (told, qos.prev, qos.value) == ([1], 1, 2)
    qos.update()
    assert (told, qos.prev) == ([1, 2], 2)
    assert "self.qos.set(self.qos.value)" in inspect.getsource(
        Consumer._restore_prefetch_count_after_connection_restart
    )
    for loop in (loops.asynloop, loops.synloop):
        assert "if qos.prev != qos.value:" in inspect.getsource(loop)


def test_current_task_is_the_top_of_a_stack() -> None:
    """``current`` pushes on it, as the tracer does."""
    task: Any = Celery("shop", set_as_current=False).tasks["celery.backend_cleanup"]
    with internals.current(task):
        assert current_task.name == task.name
    assert not current_task
    assert "push_task = _task_stack.push" in inspect.getsource(trace)


# --- other settings for a while


def test_settings_are_changed_for_a_block_and_connections_made_anew() -> None:
    """``Settings.changes``, ``_pool``, ``amqp._producer_pool``, ``_backend_cache`` and ``_local.backend``."""
    app = Celery("unit", broker="memory://one", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_priority = 3
    pool, backend, producers, before = app.pool, app.backend, app.producer_pool, dict(app.conf)
    with internals.changed_settings(app, {"broker_url": "memory://two", "result_backend": "rpc://"}):
        assert (app.conf.broker_url, app.connection_for_write().hostname) == ("memory://two", "two")
        assert app.pool is not pool
        assert app.producer_pool is not producers
        assert type(app.backend).__name__ == "RPCBackend"
    assert (dict(app.conf), app.conf.task_default_priority) == (before, 3)
    assert app.connection_for_write().hostname == "one"
    assert type(app.backend) is type(backend)


def test_the_app_that_celery_makes_up_is_told_from_a_project_s() -> None:
    """In a process of its own: what is asked for is the process's app."""
    program = "from celery_reliable.internals import loaded_app; print(loaded_app())"
    made = program + "; from celery import Celery; app = Celery('default'); print(loaded_app() is app)"
    run = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["None", "True"]


_CLOSED_ON_EVENTLET = """
import eventlet
eventlet.monkey_patch()
import socket
from eventlet.hubs import get_hub
from kombu.utils import eventio
from celery_reliable import internals

def left_behind(prepare):
    poller, (closed, _) = eventio._select(), socket.socketpair()
    prepare(poller)
    poller.register(closed.fileno(), eventio.READ)
    closed.close()
    try:
        poller.poll(0)
    except RuntimeError:  # eventlet: a second wait for the same descriptor
        pass
    return len(get_hub().listeners["read"])

print(left_behind(internals.poll_open_sockets_only), left_behind(lambda poller: None))
"""


def test_closed_socket_in_a_poller_leaves_waits_behind_on_eventlet_unless_it_is_taken_out() -> None:
    """``kombu.utils.eventio._select`` and ``eventlet.green.select``; if nothing is left behind, look whether ours is needed."""
    run = subprocess.run([sys.executable, "-c", _CLOSED_ON_EVENTLET], capture_output=True, text=True, check=True)
    ours, stock = map(int, run.stdout.split())
    assert ours == 0
    assert stock > 0


def test_waker_takes_closed_sockets_out_on_eventlet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for all is never given a closed one."""
    poller, (closed, _) = eventio._select(), socket.socketpair()
    pool = type("TaskPool", (), {"__module__": "celery.concurrency.eventlet", "is_green": True})()
    transport = SimpleNamespace(driver_type="redis", cycle=SimpleNamespace(poller=poller, handle_event=None))
    qos = SimpleNamespace(ack=None, reject=None, increment_eventually=None)
    consumer = SimpleNamespace(channel=SimpleNamespace(qos=qos))
    parent = SimpleNamespace(
        pool=pool, connection=SimpleNamespace(transport=transport), task_consumer=consumer, qos=qos
    )
    waker = Waker(parent)
    waker.start(parent)
    descriptor = closed.fileno()
    poller.register(descriptor, eventio.READ)
    closed.close()
    waited: list[set[int]] = []

    def select(read: set[int], *_: Any) -> tuple[list[int], ...]:
        waited.append(set(read))
        return [], [], []

    monkeypatch.setattr(eventio, "_selectf", select)
    poller.poll(0)
    waker.stop(parent)
    assert len(waited) == 1
    assert descriptor not in waited[0]


# --- turns over queues and priorities


def test_a_channel_looks_in_the_order_of_its_turns() -> None:
    """``_brpop_start`` asks the cycle, then goes through the steps; a step is found by its number whatever their order."""
    source = inspect.getsource(Channel._brpop_start)
    assert "self._queue_cycle.consume(len(self.active_queues))" in source
    assert "for pri in self.priority_steps\n                for queue in queues]" in source
    assert "self._queue_cycle.rotate(dest)" in inspect.getsource(Channel._brpop_read)

    class Turning:
        consumed: Any = ()

        def update(self, queues: Any) -> None:
            self.consumed = list(queues)

        def steps(self, steps: Any) -> list[int]:
            return list(reversed(steps))

    turning = Turning()
    channel: Any = SimpleNamespace(priority_steps=[0, 3, 6, 9], active_queues={"q"}, _queue_cycle=None)
    for _ in range(2):  # as a reconnect may do: the order is of the steps as they were
        internals.take_turns(channel, turning)
        assert (channel._queue_cycle, turning.consumed) == (turning, ["q"])
        assert list(channel.priority_steps) == [9, 6, 3, 0]
        assert [Channel.priority(channel, number) for number in (0, 2, 3, 7, 9)] == [0, 0, 3, 6, 9]


def test_a_worker_consumes_more_queues_than_it_was_told() -> None:
    """``Queues.select_add``, with ``-Q`` and without; an app that only knows them consumes none."""
    for chosen in (["fast"], None):
        app = Celery("unit", broker="memory://", set_as_current=False)
        app.conf.task_default_queue = "fast"
        internals.declare_like(app, "fast", ["fast.1", "fast.2"])
        internals.declare_like(app, "slow", ["slow.1"])
        app.amqp.queues.select(chosen)
        assert list(app.amqp.queues.consume_from) == ["fast"]
        internals.consume_also(app, lambda name: [f"{name}.1", f"{name}.2"])
        assert list(app.amqp.queues.consume_from) == ["fast", "fast.1", "fast.2"]


# --- results on green pools


@pytest.fixture
def subscriptions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where a result consumer of Celery would talk to Redis: on subscribing, and on unsubscribing."""
    asked: list[str] = []
    monkeypatch.setattr(ResultConsumer, "consume_from", lambda _, task_id: asked.append(f"subscribe {task_id}"))
    monkeypatch.setattr(ResultConsumer, "_flush_pending_unsubscribe", lambda _: asked.append("unsubscribe"))
    return asked


def test_celery_subscribes_when_a_green_worker_sends_and_unsubscribes_in_the_collector(
    subscriptions: list[str],
) -> None:
    """What must not happen in a green worker (5.7). If this fails Celery has changed: look whether we still need ours."""
    app = Celery("results", backend="redis://localhost:1/0", set_as_current=False)
    result = app.AsyncResult("a")
    app.backend.on_task_call(None, "a")
    result.__del__()
    assert subscriptions == ["subscribe a", "unsubscribe"]


def test_a_green_worker_subscribes_only_to_wait_and_never_talks_in_the_collector(subscriptions: list[str]) -> None:
    """In every thread of it: the collector only notes what is no longer wanted."""
    app = Celery("results", backend="redis://localhost:1/0", set_as_current=False)
    internals.subscribe_only_to_wait(app)
    for backend in (app.backend, app._get_backend()):
        backend.on_task_call(None, "a")
        app.AsyncResult("a", backend=backend).__del__()
        assert subscriptions == []
        assert backend.result_consumer._pending_unsubscribe == {backend.get_key_for_task("a")}
        backend.add_pending_result(app.AsyncResult("b", backend=backend), start_drainer=False)  # somebody waits
        assert subscriptions.pop() == "subscribe b"


def test_a_backend_without_subscriptions_is_left_alone() -> None:
    """Databases, for one, are asked by polling."""
    app = Celery("results", backend="cache+memory://", set_as_current=False)
    before = app.backend.on_task_call
    internals.subscribe_only_to_wait(app)
    assert app.backend.on_task_call == before


def test_requests_are_taken_out_of_what_would_begin_them_later() -> None:
    """``LaxBoundedSemaphore._waiting`` and ``TokenBucket.contents``: those whose messages are gone, and no others."""
    requests = [SimpleNamespace(message=object(), name=name) for name in "abcd"]
    semaphore, bucket = LaxBoundedSemaphore(1), TokenBucket(1)
    begun: list[Any] = []
    semaphore.acquire(begun.append, None)
    for one in requests[:2]:
        semaphore.acquire(begun.append, one)
    for one in requests[2:]:
        bucket.add((one, 1))
    consumer = SimpleNamespace(
        controller=SimpleNamespace(semaphore=semaphore), task_buckets={"limited": bucket, "other": None}
    )

    internals.forget_waiting(consumer, {id(requests[0].message), id(requests[3].message)})

    semaphore.release()
    assert begun == [None, requests[1]]
    assert [one for one, _ in bucket.contents] == [requests[2]]
    internals.forget_waiting(SimpleNamespace(controller=SimpleNamespace(), task_buckets={}), {1})


def test_what_waits_for_its_time_has_raised_the_prefetch_count() -> None:
    """The entry of a timer names its callback: ``apply_eta_task``, or ``_limit_post_eta`` of a task with a rate limit."""
    consumer, timer = Consumer.__new__(Consumer), Timer()
    for call, raised in [(consumer.apply_eta_task, True), (consumer._limit_post_eta, True), (print, False)]:
        request = SimpleNamespace(_eta_timer_entry=timer.call_after(60.0, call, ()))
        assert internals.raised_prefetch(consumer, request) is raised
        green = SimpleNamespace(_eta_timer_entry=SimpleNamespace(entry=request._eta_timer_entry))
        assert internals.raised_prefetch(consumer, green) is raised
    assert not internals.raised_prefetch(consumer, SimpleNamespace(_eta_timer_entry=None))
