"""Numbers for Prometheus: of workers with all their children, of beats, of the fleet; rules and dashboard that use them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from celery_reliable.contrib.metrics import PREFIX
from celery_reliable.contrib.prometheus import METRICS, FleetCollector
from celery_reliable.contrib.prometheus.cells import Cells
from celery_reliable.testing import servers
from celery_reliable.testing.servers.ports import free_port
from celery_reliable.testing.servers.prometheus import promtool, start_prometheus
from tests.integration.apps.jobs import client
from tests.integration.apps.stage import Stage
from tests.integration.beats import Beats, every
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from prometheus_client.core import Metric

    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration]

FILES = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "files"
RULES, RULE_TESTS, DASHBOARD = (
    FILES / name for name in ("prometheus-rules.yaml", "prometheus-rules-test.yaml", "grafana-dashboard.json")
)


@pytest.fixture(scope="module")
def port() -> int:
    """Where the module's worker answers."""
    return free_port()


@pytest.fixture(scope="module")
def stage(module_redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory, port: int) -> Stage:
    """A fleet that counts; its workers give a sign each second. No beat of another module's tests leads it."""
    module_redis.flush()
    conf = {"reliable_metrics_port": port, "reliable_heartbeat_interval": 1, "worker_max_tasks_per_child": 3}
    return Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("stage"), conf=conf)


@pytest.fixture(scope="module")
def worker(stage: Stage, module_workers: Workers) -> None:
    """A worker whose children are replaced after three tasks each."""
    module_workers.start("tests.integration.apps.worker", concurrency=2, env=stage.environment())


@pytest.fixture(scope="module")
def exporter(stage: Stage) -> Iterator[str]:
    """The fleet's exporter, as an operator starts it."""
    command = (
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tests.integration.apps.worker",
        "reliable",
        "exporter",
        "--port",
        "0",
    )
    environment = {**os.environ, **stage.environment()}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Serving" in line)
        yield re.findall(r"http://\S+:\d+", line)[0]
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(10) == 0


def families(url: str) -> dict[str, Metric]:
    """Scrape."""
    answer = requests.get(f"{url}/metrics", timeout=10)
    answer.raise_for_status()
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(url: str, name: str, **labels: str) -> float:
    """Return one value of a scrape; 0 when it is not told."""
    found = (sample for family in families(url).values() for sample in family.samples)
    fitting = [
        sample.value for sample in found if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
    ]
    return sum(fitting)


def count(cells: Cells, times: int) -> None:
    """Add one, again and again."""
    for _ in range(times):
        cells.add((("a",), 1.0))


class TestCells:
    """Numbers of several processes."""

    def test_children_count_into_their_parents_sum_and_after_their_death(self) -> None:
        """A child's file is taken over once it is gone, and counts once."""
        cells = Cells()
        cells.add((("early",), 1.0))
        cells.share()
        try:
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    for _ in range(100):
                        cells.add((("runs", "a"), 1.0), (("early",), 1.0))
                    os._exit(0)
                os.waitpid(child, 0)
            for _ in range(2):
                assert cells.total() == {("runs", "a"): 300.0, ("early",): 301.0}
            assert cells._directory is not None
            assert len(list(cells._directory.glob("*.db"))) == 1
        finally:
            cells.close()

    def test_threads_lose_no_count(self) -> None:
        """Ten at once."""
        cells = Cells()
        with ThreadPoolExecutor(10) as pool:
            for _ in range(10):
                pool.submit(count, cells, 1000)
        assert cells.total() == {("a",): 10_000.0}


class TestWorker:
    """A prefork worker's endpoint."""

    def test_every_child_is_counted_also_those_that_were_replaced(
        self, app: Celery, stage: Stage, worker: None, port: int, label: str
    ) -> None:
        """Twenty tasks over at least seven children: none is missing, none counts twice."""
        url = f"http://127.0.0.1:{port}"
        before = value(url, "runs_total", task="add", outcome="done")
        results = [app.tasks["add"].delay(number, label) for number in range(20)]
        for result in results:
            result.get(timeout=20)
        wait_until(lambda: value(url, "runs_total", task="add", outcome="done") == before + 20, 10, "twenty runs")
        assert value(url, "runtime_seconds_count", task="add") == before + 20
        assert value(url, "latency_seconds_count", queue="celery") >= before + 20
        assert len({entry["pid"] for entry in stage.entries(label)}) >= 7

    def test_outcomes_and_letters_are_told_by_task(
        self, app: Celery, stage: Stage, worker: None, port: int, label: str
    ) -> None:
        """Retries, snoozes and deaths, and what only the parent sees."""
        url = f"http://127.0.0.1:{port}"
        flaky = app.tasks["flaky"].delay(label, 1)
        app.tasks["later"].delay(f"{label}:later", 1)
        dead, lost = app.tasks["hopeless"].delay(label), app.tasks["suicidal"].delay(f"{label}:lost", 1)
        stage.wait_event("recovered", flaky.id)
        stage.wait_entries(f"{label}:later", 2)
        stage.wait_event("buried", dead.id)
        stage.wait_event("recovered", lost.id)
        assert value(url, "runs_total", task="flaky", outcome="retried") == 1
        assert value(url, "runs_total", task="later", outcome="snoozed") == 1
        assert value(url, "dead_letters_total", task="hopeless", reason="permanent") == 1
        assert value(url, "events_total", event="evidence") >= 1

    def test_labels_are_of_closed_sets(self, app: Celery, stage: Stage, worker: None, port: int) -> None:
        """A task that nobody knows is not a label, and no metric is undocumented."""
        app.send_task("no.such.task." + "x" * 20, task_id="unknown-1")
        stage.wait_event("parked", "unknown-1")
        found = families(f"http://127.0.0.1:{port}")
        names = {label for family in found.values() for sample in family.samples for label in sample.labels.values()}
        assert not any("no.such" in name for name in names)
        told = {name for name, metric in METRICS.items() if metric.source == "process"}
        assert {family.removeprefix(PREFIX) for family in found} == told
        for name in told:
            assert all(
                set(sample.labels) - {"le"} == set(METRICS[name].labels) for sample in found[PREFIX + name].samples
            )


class TestBeat:
    """A beat's endpoint."""

    def test_leader_says_that_it_leads_and_what_it_fires(self, stage: Stage, tmp_path: Path) -> None:
        """On a port of its own."""
        port = free_port()
        conf = {"beat_schedule": {"often": every(1, "add", 1, "beat")}, "reliable_leader_ttl": 3}
        alone = replace(stage, conf={**stage.conf, **conf, "reliable_metrics_port": port})
        beats = Beats(tmp_path)
        try:
            beats.start(alone)
            wait_until(lambda: _is_served(port) and value(f"http://127.0.0.1:{port}", "leads") == 1, 30, "it leads")
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: value(url, "events_total", event="slot_fired") >= 1, 20, "a slot fired")
        finally:
            beats.close()


class TestFleet:
    """The exporter."""

    def test_fleet_is_told_with_every_documented_metric(self, app: Celery, worker: None, exporter: str) -> None:
        """And no other."""
        app.tasks["add"].apply_async((1, "x"), queue="celery")
        wait_until(lambda: value(exporter, "workers", state="consuming") == 1, 10, "the worker's sign")
        wait_until(lambda: value(exporter, "leaders") == 0, 20, "the lease of the beat before has ended")
        found = families(exporter)
        told = {name for name, metric in METRICS.items() if metric.source == "fleet"}
        assert {family.removeprefix(PREFIX) for family in found} == told
        assert (value(exporter, "up"), value(exporter, "slots"), value(exporter, "leaders")) == (1, 2, 0)

    def test_load_of_a_queue_is_what_waits_and_what_runs(
        self, app: Celery, stage: Stage, worker: None, exporter: str, label: str
    ) -> None:
        """The number to scale by; a queue that is empty while its jobs run is not idle."""
        for _ in range(3):
            app.tasks["held"].delay(f"{label}:{_}", label)
        wait_until(lambda: requests.get(f"{exporter}/load/celery", timeout=5).json()["running"] == 2, 20, "two run")
        found = requests.get(f"{exporter}/load/celery", timeout=5).json()
        stage.open(label)
        assert found["load"] == found["waiting"] + found["running"]
        assert found["running"] == 2
        assert found["waiting"] in {0, 1}  # one may be prefetched
        assert requests.get(f"{exporter}/load/nobody", timeout=5).status_code == 404

    def test_store_that_is_away_is_up_0_and_no_stale_number(self, tmp_path: Path) -> None:
        """A gauge that stood still would look like a fleet that stands still."""
        stage = Stage(tmp_path, broker="memory://", backend="cache+memory://", store="redis://127.0.0.1:1/0")
        with client(stage) as app:
            [up] = FleetCollector(app).collect()
            assert (up.name, up.samples[0].value) == (f"{PREFIX}up", 0.0)


class TestRules:
    """What is shipped for Prometheus and Grafana."""

    def test_rules_are_valid_and_fire_when_they_must(self) -> None:
        """By promtool, on made-up series: each alert fires, and is silent for a fleet that is well."""
        tool = str(promtool())
        for words in (("check", "rules", str(RULES)), ("test", "rules", str(RULE_TESTS))):
            done = subprocess.run((tool, *words), capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
        tested = {
            one["alertname"]
            for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
            for one in test["alert_rule_test"]
            if one.get("exp_alerts")
        }
        assert tested == alerts

    def test_rules_and_dashboard_use_documented_metrics_only(self) -> None:
        """A renamed metric must not leave an alert that can never fire."""
        known = {sample for name, metric in METRICS.items() for sample in metric.samples(name)}
        used = set(re.findall(rf"{PREFIX}\w+", RULES.read_text() + DASHBOARD.read_text()))
        assert used <= known

    def test_every_panel_shows_something_of_a_real_fleet(
        self, app: Celery, worker: None, exporter: str, port: int, label: str
    ) -> None:
        """A real Prometheus scrapes worker and exporter; each query of the dashboard has an answer."""
        targets = [f"127.0.0.1:{port}", exporter.removeprefix("http://")]
        with start_prometheus(targets, rules=RULES) as server:
            ends = time.monotonic() + 60
            missing = queries()
            while missing and time.monotonic() < ends:
                app.tasks["add"].delay(1, label)
                app.tasks["flaky"].delay(f"{label}:{time.monotonic()}", 1)
                app.tasks["hopeless"].delay(f"{label}:{time.monotonic()}")
                app.tasks["later"].delay(f"{label}:{time.monotonic()}", 1)
                time.sleep(0.5)  # the pace of the load, not a wait for anything
                missing = [query for query in missing if not answers(server.url, query)]
        assert not missing


def _is_served(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def queries() -> list[str]:
    """Return the queries of the dashboard, with the range that Grafana would fill in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [one.replace("$__rate_interval", "10s").replace("$job", ".*") for one in found]


def answers(url: str, query: str) -> list[Any]:
    """Ask Prometheus."""
    answer = requests.get(f"{url}/api/v1/query", params={"query": query}, timeout=10).json()
    assert answer["status"] == "success", (query, answer)
    result: list[Any] = answer["data"]["result"]
    return [one for one in result if one["value"][1] != "NaN"]
