"""See what a worker's consumer holds, and change it."""

from __future__ import annotations

from collections.abc import Collection
from threading import get_ident
from typing import Any

from celery.worker import state


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


def raised_prefetch(consumer: Any, request: Any) -> bool:
    """Tell whether the prefetch count is one higher while a request waits: for its ETA, or held as if it had one (5.7).

    The timers of green pools give a greenlet that has the entry.
    """
    entry = getattr(request._eta_timer_entry, "entry", request._eta_timer_entry)  # noqa: SLF001
    return entry is not None and entry.fun in (consumer.apply_eta_task, consumer._limit_post_eta)  # noqa: SLF001


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


def cancel_without_answer(consumer: Any, queue: str) -> None:
    """Cancel the consumer of one queue as Celery's ``cancel_task_queue`` (5.7) does, where another greenlet reads the answer."""
    consumer.app.amqp.queues.deselect(queue)
    known = consumer.task_consumer
    tag = known._active_tags.pop(queue)  # noqa: SLF001
    known._active_queue_no_ack.pop(queue, None)  # noqa: SLF001
    known._queues.pop(queue, None)  # noqa: SLF001
    known.channel.basic_cancel(tag, nowait=True)


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
