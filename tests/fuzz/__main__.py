"""Send malformed messages to workers on Redis and RabbitMQ: ``python -m tests.fuzz --count 100000``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path

from celery_reliable.testing import servers
from tests.fuzz.run import fuzz
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.integration.workers import Workers

APP = "tests.integration.apps.rolling"


def main() -> int:
    """Print an account for each broker; the exit code is 1 when a message is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="messages for each broker (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", nargs="+", choices=["redis", "rabbitmq"], default=["redis", "rabbitmq"])
    wanted = parser.parse_args()
    missing = [_fuzz(broker, count=wanted.count, seed=wanted.seed) for broker in wanted.brokers]
    return 1 if any(missing) else 0


def _fuzz(broker: str, *, count: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as directory, servers.start_redis() as redis:
        conf = {"task_default_queue": "fuzz", "reliable_dead_letter_max": 2 * count}
        stage = Stage.on(redis.url, directory=Path(directory), conf=conf)
        if broker == "redis":
            return _attack(stage, broker, count=count, seed=seed)
        with servers.start_rabbitmq() as rabbitmq:
            return _attack(dataclasses.replace(stage, broker=rabbitmq.url), broker, count=count, seed=seed)


def _attack(stage: Stage, broker: str, *, count: int, seed: int) -> int:
    fleet = Workers(stage.directory)
    try:
        worker = fleet.start(APP, pool="solo", env=stage.environment(), arguments=QUICK)
        began = time.monotonic()
        with client(stage) as app:
            account = fuzz(app, worker, count=count, seed=seed)
        seconds = time.monotonic() - began
        sys.stdout.write(f"{broker}: {account}, missing {account.missing}, {seconds:.0f} s\n")
        return abs(account.missing)
    finally:
        for worker in fleet._started:
            worker.kill()


if __name__ == "__main__":
    sys.exit(main())
