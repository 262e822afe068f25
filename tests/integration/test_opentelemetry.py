"""Numbers for OpenTelemetry: from a real worker with pool children that come and go, to a real receiver of OTLP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from celery_reliable.contrib.metrics import BUCKETS, METRICS
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.integration.opentelemetry import Collector
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration]

TASKS = 10


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A receiver of OTLP."""
    made = Collector()
    try:
        yield made
    finally:
        made.close()


def test_what_every_process_of_a_worker_counts_arrives_once(
    module_redis: servers.RedisServer, tmp_path: Path, workers: Workers, collector: Collector
) -> None:
    """Of children that were replaced, too: each sends its own at its end, none sends its parent's again."""
    conf = {
        "reliable_event_hooks": ["celery_reliable.contrib.opentelemetry:EventMeter"],
        "worker_max_tasks_per_child": 3,
    }
    stage = Stage.on(module_redis.url, directory=tmp_path, conf=conf)
    never = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000"}  # so that what arrives was sent by a process that ended
    worker = workers.start(
        "tests.integration.apps.worker",
        concurrency=2,
        env={**stage.environment(), **collector.environment, **never},
        arguments=QUICK,
    )
    with client(stage, reliable_event_hooks=()) as app:
        results = [app.tasks["add"].delay(number, "all") for number in range(TASKS)]
        flaky = app.tasks["flaky"].delay("flaky", 1)
        assert [result.get(timeout=20) for result in [*results, flaky]]
        with pytest.raises(Exception, match="never"):
            app.tasks["hopeless"].delay("hopeless").get(timeout=20)
    assert worker.stop() == 0

    done = collector.points("celery_reliable.runs", task="add", outcome="done")
    assert sum(point.as_int or point.as_double for point in done.values()) == TASKS
    assert len(done) >= TASKS / 3
    assert sum(point.count for point in collector.points("celery_reliable.runtime", task="add").values()) == TASKS
    [latency, *_] = collector.points("celery_reliable.latency", queue="celery").values()
    assert list(latency.explicit_bounds) == list(BUCKETS)
    for outcome, task in {"retried": "flaky", "dead": "hopeless"}.items():
        [point] = collector.points("celery_reliable.runs", task=task, outcome=outcome).values()
        assert point.as_int or point.as_double == 1
    assert collector.points("celery_reliable.dead_letters", task="hopeless", reason="permanent")
    assert collector.names() >= {"celery_reliable.events", "celery_reliable.runs", "celery_reliable.latency"}


def test_fleet_is_told_as_an_operator_starts_it(
    module_redis: servers.RedisServer, tmp_path: Path, collector: Collector
) -> None:
    """``exporter --otlp`` sends what it sees until Ctrl-C, and then once more."""
    stage = Stage.on(module_redis.url, directory=tmp_path)
    command = ("celery", "-A", "tests.integration.apps.worker", "reliable", "exporter", "--otlp")
    often = {"OTEL_METRIC_EXPORT_INTERVAL": "100"}
    environment = {**os.environ, **stage.environment(), **collector.environment, **often}
    with subprocess.Popen((sys.executable, "-m", *command), env=environment) as process:
        [up] = wait_until(lambda: collector.points("celery_reliable.up"), 30, "a look at the fleet").values()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert up.as_double == 1
    told = {f"celery_reliable.{name}" for name, one in METRICS.items() if one.source == "fleet" and not one.labels}
    assert told - {"celery_reliable.held"} <= collector.names()
