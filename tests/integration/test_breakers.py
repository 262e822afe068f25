"""A dependency that fails and recovers, seen by real workers that share its breaker."""

from __future__ import annotations

import json
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from celery_reliable.cli import reliable
from celery_reliable.runtime import runtime_of
from tests.integration.apps.flow_jobs import CONF, add_tasks
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration

APP = "tests.integration.apps.flow_jobs"
DEADLINE = 40.0
OPEN_FOR = 2.0
SEEN_BY_ALL = 1.5  # seconds after which every process knows what one has written


@pytest.fixture(scope="module")
def stage(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Breakers that open soon, and not for long."""
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=CONF)


@pytest.fixture(scope="module")
def app(stage: Stage) -> Iterator[Celery]:
    """The app of the stage, with the tasks behind breakers."""
    with client(stage) as app:
        yield add_tasks(app)


@pytest.fixture(scope="module", autouse=True)
def fleet(stage: Stage, module_workers: Workers) -> None:
    """Two workers, five processes that run tasks."""
    for pool, concurrency in (("prefork", 2), ("threads", 3)):
        module_workers.start(
            APP, pool=pool, concurrency=concurrency, env=stage.environment(), arguments=QUICK, ready=False
        )
    for worker in module_workers._started:
        worker.wait_ready()


def breaker(app: Celery, *words: str) -> str:
    """Run ``celery reliable breaker`` and return what it prints."""
    done = CliRunner().invoke(reliable, ["breaker", *words], obj=SimpleNamespace(app=app, no_color=True))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_failing_dependency_is_probed_and_nothing_is_lost(app: Celery, stage: Stage, label: str) -> None:
    """Once open, all wait in every process, with no attempt spent; one at a time probes; then every job ends well."""
    results = [app.tasks["calling_bank"].delay(label, str(number)) for number in range(12)]
    opened = wait_until(lambda: stage.events("breaker_opened"), DEADLINE, "breaker open")[0]
    wait_until(lambda: len(stage.events("breaker_opened")) > 2, DEADLINE, "two failed probes")
    down_until = time.monotonic()
    stage.open(f"{label}:well")
    assert sorted(result.get(timeout=DEADLINE) for result in results) == sorted(map(str, range(12)))

    probes = [entry for entry in stage.entries(label) if opened["at"] + SEEN_BY_ALL < entry["at"] < down_until]
    assert 1 <= len(probes) <= 1 + (down_until - opened["at"]) / OPEN_FOR
    runs = Counter(entry["name"] for entry in stage.entries(label))
    last = {entry["name"]: entry["attempt"] for entry in stage.entries(label)}
    assert last == dict(runs)
    assert len({event["pid"] for event in stage.events("breaker_waits")}) > 1
    assert [event["by"] for event in stage.events("breaker_closed")] == ["probes"]
    stage.wait_no_message()


def test_an_operator_opens_and_closes_a_breaker(app: Celery, stage: Stage, label: str) -> None:
    """Its tasks wait for as long as he wants."""
    assert "shop is open until it is closed" in breaker(app, "open", "shop")
    stage.open(f"{label}:well")
    result = app.tasks["calling_shop"].delay(label, "a")
    stage.wait_event("breaker_waits", result.id, count=2, timeout=DEADLINE)
    assert stage.entries(label) == []
    listed = {one["breaker"]: one for one in map(json.loads, breaker(app, "list", "--json").splitlines())}
    assert (listed["shop"]["state"], listed["shop"]["tasks"]) == ("held_open", ["calling_shop"])
    assert listed["bank"]["state"] == "closed"
    table = breaker(app, "list")
    assert "held open" in table
    assert "opened by hand" in table
    assert "shop is closed" in breaker(app, "close", "shop")
    assert result.get(timeout=DEADLINE) == "a"
    assert runtime_of(app).breakers.known() == {}
