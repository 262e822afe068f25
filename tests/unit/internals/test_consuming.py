"""What a worker's consumer holds."""

from __future__ import annotations

import inspect
import threading
from types import SimpleNamespace
from typing import Any

from celery.worker import loops
from celery.worker.consumer import Consumer
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.asynchronous.timer import Timer
from kombu.common import QoS as CommonQoS
from kombu.utils.limits import TokenBucket

from celery_reliable import internals


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
