"""What a worker says at its start about the store's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_reliable.stores import open_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration


def test_worker_tells_of_an_evicting_store(workers: Workers, tmp_path: Path) -> None:
    """Redis may evict done markers then, and a job would run twice."""
    with servers.start_redis(config={"maxmemory-policy": "allkeys-lru"}) as server:
        broker, backend, store = (f"{server.url.removesuffix('/0')}/{number}" for number in range(3))
        stage = Stage(tmp_path, broker=broker, backend=backend, store=store)
        workers.start("tests.integration.apps.worker", concurrency=1, env=stage.environment(), arguments=QUICK)
        (event,) = wait_until(lambda: stage.events("finding"), 20, "a finding")
    assert "noeviction" in event["finding"]


def test_well_configured_store_has_no_findings() -> None:
    """Append-only, not evicting, new enough."""
    with servers.start_redis() as server:
        store = open_store(server.url)
        assert store.findings() == []
        store.close()


def test_certificate_rule_in_celery_s_spelling_is_understood(redis_tls: servers.RedisTlsServer) -> None:
    """``ssl_cert_reqs=CERT_NONE``, as a broker URL has it."""
    url = redis_tls.url.partition("?")[0]
    store = open_store(f"{url}?ssl_cert_reqs=CERT_NONE&ssl_check_hostname=false")
    assert store.now() > 0
    store.close()
