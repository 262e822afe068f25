"""Green pools that do not stand still, nor end."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.backends.redis import ResultConsumer
from kombu.utils import eventio

from celery_reliable import internals
from celery_reliable.worker.waker import Waker

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

_PATCHED_BY_CELERY = """
import sys
sys.argv = ["celery", "worker", "--pool", "gevent"]
from celery import maybe_patch_concurrency
maybe_patch_concurrency()
import time
from kombu.utils import functional
stock = functional.sleep is time.sleep
from celery_reliable import internals
internals.sleep_cooperatively()
print(stock, functional.sleep is time.sleep)
"""


def test_kombu_sleeps_as_a_green_pool_does() -> None:
    """Gevent's ``patch_all`` and ``kombu.utils.functional``; if stock kombu does so too, look whether ours is needed."""
    run = subprocess.run([sys.executable, "-c", _PATCHED_BY_CELERY], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


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


@pytest.fixture
def subscriptions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where a result consumer of Celery would talk to Redis: on subscribing, and on unsubscribing."""
    gc.collect()  # results of other tests, whose collection would be counted here
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
