"""Time how workers that are told to stop hand over and end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.fleet.crew import Crew, Hand, crew, until
from celery_reliable.testing.servers import Server

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
_RUNS = 2.0  # seconds that the last task runs
_PREFETCHED, _LATER = 3, 2
TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Seconds: until all that had not begun was back; from the end of the last task to the exit."""

    back: float
    after_last_task: float


def hand_over(pool: str, *, broker: Server | None = None) -> Stop:
    """Stop a worker that runs one task, and holds prefetched messages and such with an ETA."""
    with crew(broker=broker) as made:
        hand = made.start(pool, arguments=("--prefetch-multiplier", "4"))
        for number in range(_LATER):
            made.submit("mark", 10 + number, countdown=600)
        until(lambda: made.waiting() == 0, "the ETA messages held")
        made.submit("nap", 1, _RUNS)
        made.wait_start(1)
        for number in range(_PREFETCHED):
            made.submit("mark", 20 + number)
        time.sleep(0.5)  # to prefetch what it may; solo and full green pools take nothing while a task runs
        told = hand.stop()
        until(lambda: made.waiting() == _LATER + _PREFETCHED, "all back")
        back = time.monotonic() - told
        gone = hand.wait()
        (end,) = made.entries(1, "end")
        return Stop(back, gone - end.at)


def at_the_timeout(pool: str, *, task: str = "stubborn", broker: Server | None = None) -> float:
    """Return the seconds between SIGTERM and exit of a worker whose task swallows every interruption."""
    with crew(broker=broker, reliable_drain_timeout=TIMEOUT) as made:
        hand = made.start(pool)
        made.submit(task, 1)
        made.wait_start(1)
        told = hand.stop()
        return hand.wait() - told


def child_recoveries(*, rounds: int) -> Iterator[float]:
    """Yield the seconds from SIGKILL of a pool child until its task runs again in the next one."""
    with crew() as made:
        made.start()
        for number in range(rounds):
            made.submit("nap", number, 1.0)
            first = made.wait_start(number)
            killed = _kill(first.pid)
            yield made.wait_start(number, times=2).at - killed
            until(lambda number=number: made.entries(number, "end"), "the end")  # type: ignore[misc]  # binds the variable


def worker_recovery(*, lease_ttl: float) -> float:
    """Return the seconds from SIGKILL of a whole worker until its task runs again in another one."""
    with crew(reliable_lease_ttl=lease_ttl) as made:
        hands = [made.start(), made.start()]
        time.sleep(lease_ttl / 3)  # the fleet has worked for a while
        made.submit("nap", 1, 60.0)
        first = made.wait_start(1)
        time.sleep(lease_ttl / 2)  # the lease has been renewed
        killed = _holder(hands, first.pid).kill()
        return made.wait_start(1, times=2).at - killed


def starts_of_a_long_job(*, seconds: float) -> int:
    """Return how often a job starts that runs for twelve visibility timeouts beside two idle workers."""
    options = {"visibility_timeout": seconds / 12, "unacked_restore_interval": 1}
    with crew(broker_transport_options=options) as made:
        for _ in range(3):
            made.start()
        made.submit("nap", 1, seconds)
        until(lambda: made.entries(1, "end"), "the end")
        _settled(made)
        return len(made.entries(1))


def _settled(made: Crew) -> None:
    with made.app.connection_for_read() as connection:
        client = connection.default_channel.client
        until(lambda: (client.hlen("unacked"), made.waiting()) == (0, 0), "no message left")


def _holder(hands: list[Hand], pid: int) -> Hand:
    (found,) = [hand for hand in hands if pid in hand.pids]
    return found


def _kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()
