"""Compare a large argument that is kept aside with the same in its message: ``python -m benchmarks.claim_check``.

One submission, one solo worker in this process, Redis for broker and store, a local folder; the quickest of some rounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_reliable import ReliableTask
from celery_reliable.runtime import forget_runtime
from celery_reliable.testing.servers import start_redis

if TYPE_CHECKING:
    from celery_reliable.testing.servers import RedisServer

_SIZES = (1_000_000, 5_000_000, 20_000_000)
_ROUNDS = 7
_MOST = 2048


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes of the message as the broker has it, and of the store's memory beside; seconds to submit and until the result."""

    message: int
    submit: float
    total: float


def main() -> int:
    """Print a table; the exit code is 1 when a message with a reference is above 2 KB."""
    sys.stdout.write("| argument | way | message | submit | submit to result |\n|---|---|---|---|---|\n")
    kept = True
    with start_redis(config={"appendonly": "no"}) as redis, tempfile.TemporaryDirectory() as folder:
        for size in _SIZES:
            for way, url in (("inline", None), ("aside", f"file://{folder}")):
                figure = _measured(redis, size=size, blob_url=url)
                kept = kept and (url is None or figure.message <= _MOST)
                sys.stdout.write(
                    f"| {size / 1e6:g} MB | {way} | {figure.message:,} B | {figure.submit * 1e3:.0f} ms | {figure.total * 1e3:.0f} ms |\n"
                )
    return 0 if kept else 1


def _measured(redis: RedisServer, *, size: int, blob_url: str | None) -> Figure:
    redis.flush()
    app = Celery("claim_check", broker=redis.url, backend=redis.url, set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_blob_url=blob_url, worker_hijack_root_logger=False)
    task: Any = app.task(base=ReliableTask, name="weigh", shared=False)(weigh)
    document = "x" * size
    waiting = task.delay(document)
    message = _length_of_message(redis)
    times = []
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR", shutdown_timeout=30):
        waiting.get(timeout=60)
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            result = task.delay(document)
            submitted = time.perf_counter()
            result.get(timeout=60, interval=0.001)
            times.append((time.perf_counter() - begin, submitted - begin))
    forget_runtime(app)
    app.close()
    return Figure(message, min(submit for _, submit in times), min(total for total, _ in times))


def weigh(document: str) -> int:
    """Be a body."""
    return len(document)


def _length_of_message(redis: RedisServer) -> int:
    import redis as driver  # noqa: PLC0415  # the server of this benchmark has the name

    with driver.Redis.from_url(redis.url) as client:
        (raw,) = client.lrange("celery", 0, -1)
    return len(raw)


if __name__ == "__main__":
    sys.exit(main())
