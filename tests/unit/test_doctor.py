"""What `reliable check` finds: the real dangers of a plain project, and nothing in one that is well."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import Queue

import celery_reliable
from celery_reliable import ReliableTask
from celery_reliable.beat.leadership import Member
from celery_reliable.checks import Finding, configuration_findings
from celery_reliable.checks.at_start import Findings, found_by, tell
from celery_reliable.checks.catalogue import MEANINGS, link
from celery_reliable.checks.live import fleet_findings
from celery_reliable.checks.of_stores import store_finding
from celery_reliable.cli import reliable
from celery_reliable.events import Events
from celery_reliable.fleet import Deaths, Fleet, QueueState, WorkerState
from celery_reliable.heartbeats import LifeSign, Process
from celery_reliable.runtime import replaced_runtime
from celery_reliable.stores.memory import MemoryStore
from tests.waiting import wait_until

ROOT = Path(celery_reliable.__file__).parents[1]
REDIS = "redis://127.0.0.1:1/0"


def plain(**conf: Any) -> Celery:
    """A project as one finds them."""
    app = Celery("shop", broker=conf.pop("broker", REDIS), backend=REDIS, set_as_current=False)
    app.conf.update(conf)

    @app.task(name="shop.charge", max_retries=None, shared=False)
    def charge(order: int) -> int:
        return order

    return app


def reliable_app(broker: str = REDIS, **conf: Any) -> Celery:
    """A project that uses the preset."""
    app = Celery("shop", broker=broker, backend=REDIS, set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(conf)
    celery_reliable.install(app)
    return app


def codes(app: Celery) -> set[str]:
    """Return what is found."""
    return {finding.code for finding in configuration_findings(app)}


PLAIN_PROJECT = f"""
import requests
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="{REDIS}", backend="{REDIS}")
app.conf.update(accept_content=["json", "pickle"], timezone="Europe/Berlin")
app.conf.beat_schedule = {{"nightly": {{"task": "shop.report", "schedule": crontab(hour=2, minute=30)}}}}


@app.task(shared=False, name="shop.charge", bind=True, max_retries=None)
def charge(self, order):
    try:
        requests.post("https://payments.example/charge", json=order, timeout=5)
    except requests.ConnectionError as exc:
        raise self.retry(exc=exc)


@app.task(shared=False, name="shop.report")
def report():
    return 1
"""


class TestConfiguration:
    """Settings and tasks; nothing is connected to."""

    def test_dangers_of_a_plain_project_are_found(self) -> None:
        """Those that its defaults are."""
        assert codes(plain()) == {"not_wired", "early_ack", "retries_unbounded"}

    def test_dangers_of_a_plain_project_with_late_acks_are_found(self) -> None:
        """Late acks alone bring others: two workers with one message, and a hoard behind a long task."""
        found = codes(plain(task_acks_late=True, worker_cancel_long_running_tasks_on_connection_loss=True))
        others = {"lost_child_acked", "runs_cancelled", "visibility_short", "prefetch_hoards", "retries_unbounded"}
        assert found == {"not_wired", *others}

    def test_a_fairness_key_without_lanes_is_found(self) -> None:
        """It does nothing, in silence."""

        def report(tenant: int) -> int:
            return tenant

        for fair, found in ((None, {"fairness_without_lanes"}), ({"reports": {}}, set())):
            app = reliable_app(reliable_fair_queues=fair)
            app.task(base=ReliableTask, name="shop.report", fairness_key="{tenant}", shared=False)(report)
            assert codes(app) == found

    def test_first_check_of_a_plain_project_finds_its_real_dangers(self, tmp_path: Path) -> None:
        """As a fresh user runs it, on the project that every tutorial has; each comes with its page."""
        (tmp_path / "shop.py").write_text(PLAIN_PROJECT)
        command = (sys.executable, "-m", "celery", "-A", "shop", "reliable", "check", "--json")
        here = {**os.environ, "TZ": "Europe/Berlin"}
        done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60, check=False)
        found = {one["code"]: one for one in map(json.loads, done.stdout.splitlines())}
        assert done.returncode == 1, done.stderr
        assert {code: one["severity"] for code, one in found.items()} == {
            "not_wired": "warning",
            "early_ack": "error",
            "pickle_accepted": "error",
            "retries_unbounded": "warning",
            "no_time_limit": "info",
            "crontab_in_local_night": "warning",
        }
        assert all(one["docs"].endswith(f"/{code}.html") for code, one in found.items())

    def test_example_project_has_no_finding(self) -> None:
        """No false alarm. In a process of its own: its tasks would come to every app of this one."""
        command = (
            sys.executable,
            "-m",
            "celery",
            "-A",
            "example_project.app",
            "reliable",
            "check",
            "--strict",
            "--json",
        )
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert (found.returncode, found.stdout) == (0, ""), found.stderr

    def test_preset_alone_has_no_finding(self) -> None:
        """On either broker."""
        assert codes(reliable_app()) == codes(reliable_app("amqp://guest@127.0.0.1:1//")) == set()

    @pytest.mark.parametrize(
        ("conf", "code"),
        [
            ({"accept_content": ["json", "pickle"]}, "pickle_accepted"),
            ({"task_always_eager": True}, "eager"),
            ({"reliable_lease_ttl": "long"}, "settings_wrong"),
            ({"worker_cancel_long_running_tasks_on_connection_loss": True}, "runs_cancelled"),
        ],
    )
    def test_setting_that_endangers_a_promise_is_found(self, conf: dict[str, Any], code: str) -> None:
        """Whatever the preset says, the project wins; so it must be told."""
        assert codes(reliable_app(**conf)) == {code}

    @pytest.mark.parametrize(
        ("conf", "found"),
        [
            ({}, set()),
            ({"reliable_signing": "warn"}, set()),
            ({"reliable_signing_keys": ["k" * 32]}, set()),
            ({"reliable_signing_keys": ["k" * 32, "secret"]}, {"signing_key_short"}),
            ({"reliable_signing_keys": ["k" * 32], "reliable_signing": "warn"}, {"signing_not_enforced"}),
        ],
    )
    def test_signing_that_protects_little_is_found(self, conf: dict[str, Any], found: set[str]) -> None:
        """Not signing at all is no finding; no key is shown."""
        findings = configuration_findings(reliable_app(**conf))

        assert {finding.code for finding in findings} == found
        assert "secret" not in "".join(finding.message for finding in findings).replace(
            "import secrets; print(secrets.", ""
        )

    def test_rabbitmq_that_drops_or_forgets_is_found(self) -> None:
        """Quorum queues without a dead-letter exchange, and publishes that nobody confirms."""
        quorum = Queue("orders", queue_arguments={"x-queue-type": "quorum"})
        kept = Queue("mails", queue_arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "dead"})
        app = reliable_app("amqp://guest@127.0.0.1:1//", task_queues=[quorum, kept])
        [finding] = configuration_findings(app)
        assert finding.code == "quorum_drops"
        assert "orders" in finding.message
        assert "mails" not in finding.message
        app = reliable_app("amqp://guest@127.0.0.1:1//", broker_transport_options={"confirm_publish": False})
        assert codes(app) == {"publish_unconfirmed"}

    def test_task_that_talks_outside_without_a_key_is_found(self) -> None:
        """By what its body calls; one with a key is well."""
        app = reliable_app()

        @app.task(base=ReliableTask, name="shop.pay", shared=False)
        def pay(order: int) -> None:
            import requests  # noqa: PLC0415

            requests.post("https://example.org", json=order, timeout=5)

        @app.task(base=ReliableTask, name="shop.pay_once", idempotency_key="pay:{order}", shared=False)
        def pay_once(order: int) -> None:
            import requests  # noqa: PLC0415

            requests.post("https://example.org", json=order, timeout=5)

        [finding] = configuration_findings(app)
        assert finding.code == "no_key_talks_outside"
        assert "shop.pay:" in finding.message


class Session:
    """Stand for a client of a package."""

    __module__ = "requests.sessions"


session = Session()


def post(order: int) -> None:
    """Call through a helper, as most projects do."""
    session.post(order)  # type: ignore[attr-defined]


def count(order: int) -> int:
    """Call nobody."""
    return order


class TestOutside:
    """Tasks that talk to other systems, however they name what they talk with."""

    def found(self, body: Any) -> set[str]:
        """Return what is found of a task with this body."""
        app = reliable_app()
        app.task(base=ReliableTask, name="shop.task", shared=False)(body)
        return codes(app)

    def test_client_by_another_name_and_behind_a_helper_is_found(self) -> None:
        """By the package that it is of."""

        def direct(order: int) -> None:
            session.post(order)  # type: ignore[attr-defined]

        def behind(order: int) -> None:
            post(order)

        assert self.found(direct) == self.found(behind) == {"no_key_talks_outside"}

    def test_what_stays_inside_is_not_found(self) -> None:
        """Helpers of its own module, the standard library, Celery."""

        def inside(order: int) -> str:
            return json.dumps([count(order), re.escape("."), sys.executable])

        assert self.found(inside) == set()


@pytest.mark.parametrize(
    ("broker", "found"),
    [
        ("amqp://guest:guest@rabbit.internal:5672//", {"broker_open"}),
        ("amqp://shop:secret@rabbit.internal:5672//", set()),
        ("amqp://guest:guest@127.0.0.1:5672//", set()),
        ("redis://redis.internal:6379/0", {"broker_open"}),
        ("redis://:secret@redis.internal:6379/0", set()),
        ("redis://localhost:6379/0", set()),
    ],
)
def test_broker_that_anybody_may_enter_is_told_and_fails_nothing(broker: str, found: set[str]) -> None:
    """A user that was left as it came, or none at all; not on this host alone."""
    app = reliable_app(broker)
    findings = configuration_findings(app)
    assert {one.code for one in findings} == found
    assert {one.severity for one in findings} <= {"info"}
    assert CliRunner().invoke(reliable, ("check", "--strict"), obj=SimpleNamespace(app=app)).exit_code == 0


def sign(node: str, **changes: Any) -> WorkerState:
    """A worker that is well."""
    made = LifeSign(
        role="worker", node=node, state="consuming", owner=node, process=Process(node, "", "", 1, ""), at=1000.0,
        clock=0.0, interval=5.0, queues=("celery",), versions={"celery": "5.7.0", "celery_reliable": "0.1.0"},
    )  # fmt: skip
    return WorkerState(replace(made, **changes), 1.0)


FLEET = Fleet(
    at=1001.0,
    workers=(sign("a"), sign("b")),
    queues=(QueueState("celery", 7, 3.0),),
    held=0,
    leader=Member("t", "h", 1, 0.0, 1.0),
    followers=(),
    schedule=(),
    breakers={},
    deaths=Deaths({}),
)


MIXED = {"celery": {"export": (3, 240.0, 300.0), "mail": (50, 0.2, 0.9), "report": (9, 12.5, 13.0)}}


class TestLive:
    """What the fleet and the servers tell."""

    def test_fleet_that_is_well_has_no_finding(self) -> None:
        """No false alarm."""
        assert fleet_findings(FLEET) == []

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"workers": (sign("a"), sign("b", at=970.0))}, "clock_skew"),
            ({"workers": (sign("a"), sign("b", versions={"celery": "5.6.2"}))}, "mixed_versions"),
            ({"workers": (sign("a"), sign("b", state="stuck"))}, "worker_stuck"),
            ({"workers": (sign("a", broker="redis://one//"), sign("b", broker="redis://two//"))}, "two_fleets"),
            ({"workers": (sign("a"), sign("b", probed=False))}, "no_probe"),
            ({"queues": (QueueState("lost", 7),)}, "queue_unconsumed"),
            ({"workers": (sign("a", runtimes=MIXED), sign("b"))}, "slow_beside_fast"),
            ({"leader": None, "followers": (Member("t", "h", 1, 0.0, 1.0),)}, "no_leader"),
        ],
    )
    def test_trouble_of_the_fleet_is_found(self, changes: dict[str, Any], code: str) -> None:
        """One code each."""
        assert [finding.code for finding in fleet_findings(replace(FLEET, **changes))] == [code]

    def test_slow_and_fast_tasks_are_named_with_their_medians(self) -> None:
        """Of a queue that both share."""
        (found,) = fleet_findings(replace(FLEET, workers=(sign("a", runtimes=MIXED),)))
        assert "in queue celery export takes 240 s, report takes 12.5 s and mail takes 0.2 s" in found.message

    @pytest.mark.parametrize(
        "runtimes",
        [
            {"long": {"export": (9, 240.0, 300.0)}, "fast": {"mail": (50, 0.2, 0.9)}},
            {"celery": {"export": (2, 240.0, 300.0), "mail": (50, 0.2, 0.9)}},
            {"celery": {"export": (9, 8.0, 300.0), "mail": (50, 0.2, 0.9)}},
            {"celery": {"export": (9, 240.0, 300.0), "import": (50, 20.0, 30.0)}},
        ],
        ids=["apart", "too few runs", "not so slow", "none is fast"],
    )
    def test_other_mixtures_are_no_finding(self, runtimes: dict[str, Any]) -> None:
        """No false alarm."""
        assert fleet_findings(replace(FLEET, workers=(sign("a", runtimes=runtimes),))) == []

    def test_workers_that_differ_are_judged_by_their_middle(self) -> None:
        """One that is slow for a reason of its own is not the task."""
        slow = {"celery": {"export": (9, 90.0, 90.0), "mail": (9, 0.2, 0.9)}}
        usual = {"celery": {"export": (9, 2.0, 3.0), "mail": (9, 0.2, 0.9)}}
        workers = (sign("a", runtimes=slow), sign("b", runtimes=usual), sign("c", runtimes=usual))
        assert fleet_findings(replace(FLEET, workers=workers)) == []

    def test_a_queue_that_a_kill_switch_stopped_is_not_taken_for_unconsumed(self) -> None:
        """It goes on by itself."""
        workers = (sign("a", queues=(), stopped=("celery",)),)
        assert fleet_findings(replace(FLEET, workers=workers)) == []

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("maxmemory-policy is allkeys-lru: Redis may evict", "store_evicts"),
            ("appendonly is no: a crash", "store_volatile"),
            ("20,000,001 keys lie in the database", "store_many_keys"),
            ("the server is Redis 6.2; Redis 7 or Valkey 7.2 is needed", "store_old"),
            ("keys of a cache lie beside ours (such as ':1:page')", "store_is_cache"),
            ("95% of maxmemory (512 MB) is used", "store_nearly_full"),
            ("the tables are missing", "store_no_tables"),
            ("something new", "store_finding"),
        ],
    )
    def test_finding_of_a_store_has_a_code(self, text: str, code: str) -> None:
        """Also one that this version does not know."""
        assert store_finding(text).code == code


class Told:
    """An event hook that remembers."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Remember one."""
        self.heard.append((event, fields))


class TestStart:
    """What a worker says of its configuration."""

    def told(self, app: Celery) -> list[dict[str, Any]]:
        """Return the findings that a start tells; the store in memory has none."""
        told = Told()
        tell(Events([told]), found_by(app))
        assert {event for event, _ in told.heard} <= {"finding"}
        return [fields for _, fields in told.heard]

    def test_errors_and_warnings_are_told_in_short_errors_first(self) -> None:
        """With settings, schedule and what is kept; what is only information is left out."""
        keys = {"reliable_signing_keys": ["k" * 32], "reliable_signing": "warn"}
        app = reliable_app("redis://redis.internal:6379/0", reliable_store_url="memory://", result_expires=None, **keys)
        assert "broker_open" in codes(app)
        found = self.told(app)
        assert [(one["severity"], one["code"]) for one in found] == [
            ("error", "results_kept_for_ever"),
            ("warning", "signing_not_enforced"),
        ]
        assert found[0]["finding"].startswith(
            "results_kept_for_ever: result_expires is None: results are never removed"
        )
        assert all(len(one["finding"]) < 240 and "\n" not in one["finding"] for one in found)

    def test_no_worker_is_ready_later_for_it(self) -> None:
        """A store that takes its time is asked from a thread."""
        told, answers = Told(), threading.Event()

        class Slow(MemoryStore):
            def findings(self) -> list[str]:
                answers.wait(5)
                return ["appendonly is no"]

        app = reliable_app(reliable_store_url="memory://")
        with replaced_runtime(app, store=Slow(), events=Events([told])):
            Findings(SimpleNamespace(app=app)).start(None)
            assert told.heard == []
            answers.set()
            [(_, fields)] = wait_until(lambda: told.heard, 10, "what was found")
        assert (fields["code"], fields["severity"]) == ("store_volatile", "warning")

    def test_what_is_well_configured_says_nothing(self) -> None:
        """No false alarm."""
        assert self.told(reliable_app(reliable_store_url="memory://")) == []

    def test_only_ten_are_told_and_how_many_more_there_are(self) -> None:
        """However much is wrong."""
        told = Told()
        tell(Events([told]), [Finding(f"code{number}", "warning", "Wrong.") for number in range(25)])
        assert [event for event, _ in told.heard] == ["finding"] * 10 + ["findings_left_out"]
        assert told.heard[-1][1] == {"count": 15}

    def test_line_of_the_log_has_the_finding(self, caplog: pytest.LogCaptureFixture) -> None:
        """Who reads it without the fields has to act on it."""
        tell(Events(), [Finding("early_ack", "error", "shop.pay: acknowledged before it has run. Set it.")])
        [line] = caplog.messages
        assert line.endswith("endangers a promise: early_ack: shop.pay: acknowledged before it has run")


class TestCommand:
    """Exit codes and output."""

    def run(self, app: Celery, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Return the exit code and the findings."""
        found = CliRunner().invoke(reliable, ("check", "--json", *words), obj=SimpleNamespace(app=app, no_color=True))
        return found.exit_code, [json.loads(line) for line in found.stdout.splitlines()]

    def test_error_is_exit_code_1_a_warning_only_with_strict(self) -> None:
        """For CI."""
        assert self.run(reliable_app())[0] == 0
        assert self.run(reliable_app(task_always_eager=True))[0] == 1
        quorum = Queue("orders", queue_arguments={"x-queue-type": "quorum"})
        warned = reliable_app("amqp://guest@127.0.0.1:1//", task_queues=[quorum])
        assert self.run(warned)[0] == 0
        assert self.run(warned, "--strict")[0] == 1

    def test_servers_that_are_away_are_a_finding(self) -> None:
        """Not a traceback."""
        code, found = self.run(reliable_app(), "--live")
        assert (code, [one["code"] for one in found]) == (1, ["store_down"])
        assert found[0]["docs"] == link("store_down")

    def test_every_code_is_in_the_catalogue_and_in_the_documentation(self) -> None:
        """A code is stable, and each has its page."""
        package = ROOT / "celery_reliable"
        paths = [*(package / "checks").glob("*.py"), package / "cli" / "check.py"]
        sources = "".join(path.read_text("utf-8") for path in paths)
        used = set(re.findall(r'(?:code=|[Ff]inding\(\s*)"(\w+)"', sources))
        assert used - {"store_finding"} <= MEANINGS.keys()
        pages = ROOT / "docs" / "reference"
        assert {link(path.stem) for path in (pages / "findings").glob("*.md")} == {link(code) for code in MEANINGS}
