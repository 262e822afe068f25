"""What a worker says at its start about the store's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis

from celery_reliable.checks.live import live_findings
from celery_reliable.stores import open_store
from celery_reliable.testing import servers
from tests.integration.apps.jobs import QUICK, client
from tests.integration.apps.stage import Stage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.integration.workers import Workers

pytestmark = pytest.mark.integration


def test_worker_tells_of_an_evicting_store(workers: Workers, tmp_path: Path) -> None:
    """Redis may evict done markers then, and a job would run twice."""
    with servers.start_redis(config={"maxmemory-policy": "allkeys-lru"}) as server:
        broker, backend, store = (f"{server.url.removesuffix('/0')}/{number}" for number in range(3))
        stage = Stage(tmp_path, broker=broker, backend=backend, store=store)
        workers.start("tests.integration.apps.worker", concurrency=1, env=stage.environment(), arguments=QUICK)
        event, *_ = wait_until(lambda: stage.events("finding"), 20, "a finding")
    assert (event["code"], event["severity"]) == ("store_evicts", "error")
    assert "maxmemory-policy is allkeys-lru: Redis may evict done markers and run jobs twice" in event["finding"]


def test_live_check_finds_what_is_wrong_with_a_fleet(workers: Workers, tmp_path: Path) -> None:
    """Two fleets on one prefix, a store beside a cache and nearly full, messages that nobody takes, workers without a probe."""
    with servers.start_redis() as server:
        bare = server.url.removesuffix("/0")
        stages = [Stage(tmp_path, broker=f"{bare}/{one}", backend=f"{bare}/1", store=f"{bare}/2") for one in (0, 3)]
        for number, stage in enumerate(stages):
            workers.start(
                "tests.integration.apps.worker",
                name=f"w{number}",
                pool="solo",
                env=stage.environment(),
                arguments=QUICK,
            )
        with Redis.from_url(f"{bare}/2") as redis:
            redis.set(":1:views.page", "x")
            redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] * 1.05))
        with client(stages[0]) as app:
            app.loader.import_default_modules()
            wait_until(lambda: {"two_fleets", "no_probe"} <= codes(app), 20, "both fleets give their signs")
            found = codes(app)
    assert {"two_fleets", "no_probe", "store_is_cache", "store_nearly_full"} <= found, found
    assert not found & {"clock_skew", "mixed_versions", "worker_stuck", "no_leader", "store_down", "broker_down"}


def codes(app: Celery) -> set[str]:
    """Return what a look at servers and fleet finds."""
    return {finding.code for finding in live_findings(app)}


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
