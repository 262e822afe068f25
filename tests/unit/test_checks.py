"""Whether a worker has left before its supervisor kills it: budgets, manifests, findings, and the command."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from celery import Celery
from click.testing import CliRunner

from celery_reliable.checks import Budget, ManifestError, Supervised, budget_of, fit, read_manifest
from celery_reliable.cli import reliable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

BUDGET = Budget(drain_timeout=30.0, longest_time_limit=None)

POD = """
kind: Pod
metadata: {name: shop}
spec:
  containers:
    - {name: proxy, command: [nginx]}
    - {name: worker, command: [celery], args: [-A, shop, worker]}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., Path]:
    """Write a file."""

    def write(text: str, name: str = "shop.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def codes(supervised: Supervised, budget: Budget = BUDGET) -> list[str]:
    """Return what is found."""
    return [finding.code for finding in fit(budget, supervised)]


def supervised(**facts: Any) -> Supervised:
    """A worker whose supervisor waits long enough, but for what is said."""
    return Supervised(**{"where": "here", "setting": "stop_grace_period", "grace": 32.0, "is_set": True, **facts})


class TestFit:
    """What is compared."""

    @pytest.mark.parametrize(
        ("drain_timeout", "grace", "fits"),
        [(30, 32, True), (30, 31.9, False), (29.5, 32, True), (0, 2, True), (0, 1, False), (30, float("inf"), True)],
    )
    def test_timeout_and_exit_must_fit_into_the_grace_period(
        self, drain_timeout: float, grace: float, *, fits: bool
    ) -> None:
        """The process is gone two seconds after the drain timeout, whatever it is."""
        budget = Budget(drain_timeout=drain_timeout, longest_time_limit=None)
        assert codes(supervised(grace=grace), budget) == ([] if fits else ["grace_too_short"])

    def test_a_finding_says_what_is_wrong_what_comes_of_it_and_what_to_do(self) -> None:
        """In the supervisor's own words."""
        (finding,) = fit(BUDGET, supervised(grace=10.0, is_set=False, unit="s"))
        assert finding.severity == "error"
        assert "here: stop_grace_period is not set and means 10 s, but a stop may take 32 s" in finding.message
        assert "kills the worker before" in finding.message
        assert "Set stop_grace_period to at least 32s, or reliable_drain_timeout to at most 8." in finding.message

    def test_a_timeout_that_cannot_be_short_enough_is_not_proposed(self) -> None:
        """Even one of zero needs two seconds."""
        (finding,) = fit(BUDGET, supervised(grace=1.0))
        assert "reliable_drain_timeout to at most" not in finding.message

    def test_what_passes_before_the_signal_is_counted(self) -> None:
        """A preStop hook uses up the same time."""
        (finding,) = fit(BUDGET, supervised(spent_before=5.0))
        assert "of which 5 s pass before the worker is told" in finding.message
        assert "to at least 37, or reliable_drain_timeout to at most 25." in finding.message

    def test_a_signal_that_is_no_order_to_drain_is_found(self) -> None:
        """SIGQUIT is Celery's cold shutdown."""
        assert codes(supervised(stop_signal="SIGQUIT")) == ["stop_signal_wrong"]
        assert codes(supervised(stop_signal="SIGINT")) == []

    def test_a_shell_that_keeps_the_signal_is_found(self) -> None:
        """It is a warning: some shells pass it on."""
        (finding,) = fit(BUDGET, supervised(behind_shell=True))
        assert (finding.code, finding.severity) == ("stop_signal_lost", "warning")


class TestKubernetes:
    """What a pod gives."""

    @pytest.mark.parametrize(
        "wrapped",
        [
            "{pod}",
            "kind: Deployment\nmetadata: {{name: shop}}\nspec: {{template: {{spec: {spec}}}}}",
            "kind: CronJob\nmetadata: {{name: shop}}\nspec: {{jobTemplate: {{spec: {{template: {{spec: {spec}}}}}}}}}",
            "kind: List\nitems: [{{kind: StatefulSet, metadata: {{name: shop}}, spec: {{template: {{spec: {spec}}}}}}}]",
            "kind: Service\nmetadata: {{name: shop}}\n---\n{pod}",
        ],
    )
    def test_a_worker_is_found_wherever_its_pod_is(self, manifest: Callable[..., Path], wrapped: str) -> None:
        """The default is 30 s; a neighbour that is no worker does not matter."""
        spec = json.dumps(yaml.safe_load(POD)["spec"])
        (worker,) = read_manifest(manifest(wrapped.format(pod=POD, spec=spec)))
        assert (worker.grace, worker.is_set, worker.setting) == (30.0, False, "terminationGracePeriodSeconds")
        assert worker.where.endswith("shop, container worker")

    @pytest.mark.parametrize(
        ("hook", "seconds"),
        [
            ("{sleep: {seconds: 5}}", 5.0),
            ("{exec: {command: [sleep, '7']}}", 7.0),
            ("{exec: {command: [/bin/sh, -c, 'sleep 2.5; true']}}", 2.5),
            ("{httpGet: {path: /, port: 80}}", 0.0),
        ],
    )
    def test_a_hook_that_sleeps_uses_time_up(self, manifest: Callable[..., Path], hook: str, seconds: float) -> None:
        """Kubernetes starts the clock before it."""
        text = POD.replace("args:", f"lifecycle: {{preStop: {hook}}}, args:")
        assert read_manifest(manifest(text))[0].spent_before == seconds

    def test_a_container_whose_image_runs_the_worker_is_named(self, manifest: Callable[..., Path]) -> None:
        """Its command is not in the file."""
        path = manifest(POD.replace(", command: [celery], args: [-A, shop, worker]", ""))
        assert read_manifest(path) == []
        assert [one.grace for one in read_manifest(path, named=["worker"])] == [30.0]


@pytest.mark.parametrize(
    ("command", "behind"),
    [
        ("[celery, -A, shop, worker]", False),
        ("celery -A shop worker", False),
        ("[sh, -c, 'celery -A shop worker']", False),
        ("[sh, -c, 'migrate && celery -A shop worker']", True),
        ("[/bin/bash, -lc, 'migrate; celery -A shop worker']", True),
        ("[sh, -c, 'migrate && exec celery -A shop worker']", False),
    ],
)
def test_a_shell_stays_between_when_it_has_more_to_do(
    manifest: Callable[..., Path], command: str, *, behind: bool
) -> None:
    """Of a single command it becomes the process itself."""
    (worker,) = read_manifest(manifest(f"services:\n  worker:\n    command: {command}\n"))
    assert worker.behind_shell is behind


@pytest.mark.parametrize(
    ("given", "grace"),
    [
        ("", 10.0),
        ("stop_grace_period: 1m30s", 90.0),
        ("stop_grace_period: 500ms", 0.5),
        ("stop_grace_period: 40", 40.0),
    ],
)
def test_compose_gives_ten_seconds_unless_told(manifest: Callable[..., Path], given: str, grace: float) -> None:
    """In its own way of writing durations."""
    (worker,) = read_manifest(manifest(f"services:\n  worker:\n    command: celery -A shop worker\n    {given}\n"))
    assert (worker.grace, worker.is_set) == (grace, bool(given))


@pytest.mark.parametrize(
    ("given", "grace"),
    [("", 90.0), ("TimeoutStopSec=1min 30s", 90.0), ("TimeoutSec=20", 20.0), ("TimeoutStopSec=infinity", float("inf"))],
)
def test_systemd_gives_ninety_seconds_unless_told(manifest: Callable[..., Path], given: str, grace: float) -> None:
    """``TimeoutSec`` sets it too."""
    text = f"[Service]\nExecStart=/srv/celery -A shop \\\n  worker\n{given}\n"
    assert read_manifest(manifest(text, "shop.service"))[0].grace == grace


def test_supervisord_gives_ten_seconds_unless_told(manifest: Callable[..., Path]) -> None:
    """Programs that are no workers are left alone."""
    text = (
        "[program:web]\ncommand=gunicorn shop\n[program:worker]\ncommand=celery -A shop worker\nstopsignal=QUIT ; why\n"
    )
    (worker,) = read_manifest(manifest(text, "shop.conf"))
    assert (worker.grace, worker.stop_signal) == (10.0, "SIGQUIT")


class TestBadFiles:
    """What cannot be read is said, with the remedy."""

    @pytest.mark.parametrize(
        ("text", "name", "said"),
        [
            ("a: [", "shop.yaml", "expected YAML, found"),
            ("{{ .Values }}", "shop.yaml", "expected YAML, found"),
            ("kind: Pod\nspec: [1]", "shop.yaml", "expected a Kubernetes or Compose file"),
            ("services: {worker: {command: celery worker, stop_grace_period: soon}}", "shop.yaml", "such as 1m30s"),
            ("no section", "shop.service", "expected sections"),
        ],
    )
    def test_a_file_of_another_shape(self, manifest: Callable[..., Path], text: str, name: str, said: str) -> None:
        """Never a traceback."""
        with pytest.raises(ManifestError, match=said):
            read_manifest(manifest(text, name))

    def test_a_missing_file(self, tmp_path: Path) -> None:
        """Named in the text."""
        with pytest.raises(ManifestError, match=r"nowhere\.yaml: cannot be read"):
            read_manifest(tmp_path / "nowhere.yaml")

    def test_without_pyyaml_the_extra_is_named(
        self, manifest: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is needed for YAML only."""
        monkeypatch.setitem(sys.modules, "yaml", None)
        with pytest.raises(ManifestError, match=r"pip install 'celery-reliable\[manifests\]'"):
            read_manifest(manifest(POD))
        text = "[Service]\nExecStart=celery worker\n"
        assert len(read_manifest(manifest(text, "shop.service"))) == 1


# --- the command


def charge() -> None:
    """Be a task."""


@pytest.fixture
def app() -> Celery:
    """An app with a task that has a time limit."""
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.update(reliable_store_url="memory://", reliable_drain_timeout=30)
    made.task(name="charge", time_limit=50, shared=False)(charge)
    return made


def run(app: Celery, *arguments: str) -> Result:
    """Run ``celery reliable check``."""
    return CliRunner().invoke(reliable, ["check", *arguments], obj=SimpleNamespace(app=app))


def test_the_budget_is_that_of_the_app(app: Celery) -> None:
    """Drain timeout, longest time limit, and what they need."""
    budget = budget_of(app)
    assert (budget.drain_timeout, budget.longest_time_limit, budget.grace) == (30.0, 50, 32)


def test_what_fits_passes(app: Celery) -> None:
    """With one line about the budget."""
    result = run(app, "--grace", "32")
    assert result.exit_code == 0
    assert result.output == (
        "shutdown budget: drain timeout 30 s, longest time limit 50 s, needs a grace period of 32 s\n"
    )


def test_what_does_not_fit_fails(app: Celery, manifest: Callable[..., Path]) -> None:
    """Each finding on a line of its own, for people and for programs."""
    arguments = ("--grace", "30", "--manifest", str(manifest(POD)))
    result = run(app, *arguments)
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.output.splitlines()] == [
        "shutdown budget",
        "error grace_too_short",
        "error grace_too_short",
    ]
    found = [json.loads(line) for line in run(app, *arguments, "--json").output.splitlines()]
    assert [(one["code"], one["severity"]) for one in found] == [("grace_too_short", "error")] * 2


def test_a_file_without_a_worker_does_not_pass_unseen(app: Celery, manifest: Callable[..., Path]) -> None:
    """Else a renamed command would switch the check off."""
    result = run(app, "--manifest", str(manifest("services:\n  web:\n    command: gunicorn\n")))
    assert result.exit_code == 1
    assert "error no_worker_found" in result.output
    assert "--container" in result.output


def test_a_file_that_cannot_be_read_fails_in_one_line(app: Celery, tmp_path: Path) -> None:
    """No traceback."""
    result = run(app, "--manifest", str(tmp_path / "nowhere.yaml"))
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), float("inf")])
def test_a_drain_timeout_that_is_none_fails_in_one_line(app: Celery, timeout: Any) -> None:
    """As a worker would refuse to start."""
    app.conf.reliable_drain_timeout = timeout
    result = run(app, "--grace", "32")
    assert result.exit_code == 1
    assert "reliable_drain_timeout" in result.output
