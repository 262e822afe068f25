"""Thousands of malformed messages: the worker lives, and every one is accounted for. 100,000: `python -m tests.fuzz`."""

from __future__ import annotations

import dataclasses
import os
import uuid
from typing import TYPE_CHECKING

import pytest

from celery_reliable.runtime import runtime_of
from tests.fuzz.run import fuzz
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

APP = "tests.integration.apps.rolling"
COUNT = int(os.environ.get("CR_TEST_FUZZ", "800"))
SEED = 8


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_malformed_messages_are_all_accounted_for(
    broker: str, request: pytest.FixtureRequest, module_redis: RedisServer, workers: Workers, tmp_path: Path
) -> None:
    """As letters, or parked for a worker that may know better; what is left of the queue is nothing."""
    module_redis.flush()
    conf = {"task_default_queue": f"fuzz-{uuid.uuid4().hex}", "reliable_dead_letter_max": 10 * COUNT}
    stage = Stage.on(module_redis.url, directory=tmp_path, conf=conf)
    if broker == "rabbitmq":
        stage = dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url)
    worker = workers.start(APP, pool="solo", env=stage.environment(), arguments=QUICK)
    with client(stage) as app:
        account = fuzz(app, worker, count=COUNT, seed=SEED)
        assert account.missing == 0, account
        assert set(account.letters) == {"undecodable", "invalid"}
        assert account.parked > COUNT // 10
        assert worker.stop() == 0
        assert list(runtime_of(app).store.ledger()) == []
