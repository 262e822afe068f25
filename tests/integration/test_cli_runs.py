"""``dlq replay`` as a managed run, ``runs``, ``resume``, ``groups`` and ``silence``, with a real worker."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from celery_reliable.cli import reliable
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery import Celery

    from tests.integration.apps.stage import Stage
    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration]


def dlq(app: Celery, *words: str, code: int = 0) -> str:
    """Run a command of ``dlq`` in this process; return what it prints on standard output."""
    context = SimpleNamespace(app=app, no_color=True)
    found = CliRunner(env={"COLUMNS": "160"}).invoke(reliable, ("dlq", *words), obj=context)
    assert found.exit_code == code, found.output
    return found.stdout


def test_replay_stops_at_its_canaries_and_goes_on_once_it_is_mended(
    app: Celery, stage: Stage, module_workers: Workers, label: str
) -> None:
    """Two go first and die again; after the repair the same run is resumed; the group is one, and can be silenced."""
    module_workers.start("tests.integration.apps.worker", pool="threads", concurrency=4, env=stage.environment())
    gate = f"{label}:gate"
    stage.open(gate)
    jobs = [app.tasks["held_then_failing"].delay(f"{label}:{number}", gate) for number in range(6)]
    for job in jobs:
        stage.wait_event("buried", job.id)
    [group] = [json.loads(line) for line in dlq(app, "groups", "--json").splitlines()]
    assert (group["count"], group["tasks"], group["error_type"]) == (6, ["held_then_failing"], "LookupError")
    stopped = dlq(app, "replay", "--group", group["group"], "--canary", "2", code=1)
    assert "2 of 2 died again" in stopped
    [run] = [json.loads(line) for line in dlq(app, "runs", "--json").splitlines()]
    assert (run["state"], run["replayed"], run["failed"], run["total"]) == ("stopped", 2, 2, 6)
    assert "stopped" in dlq(app, "runs")
    assert "Would replay 6" in dlq(app, "replay", "--group", group["group"], "--dry-run")
    dlq(app, "resume", run["id"])
    wait_until(lambda: len(stage.events("buried")) == 12, 20, "all six died again")
    [run] = [json.loads(line) for line in dlq(app, "runs", "--json").splitlines()]
    assert (run["state"], run["replayed"]) == ("done", 6)
    assert "has ended" in dlq_error(app, "resume", run["id"])
    dlq(app, "silence", group["group"], "--until", "9.9")
    assert "1 silenced" in dlq(app, "groups")
    assert json.loads(dlq(app, "groups", "--silenced", "--json"))["silenced_by"]
    dlq(app, "unsilence", group["group"])
    assert group["group"] in dlq(app, "groups")


def dlq_error(app: Celery, *words: str) -> str:
    """Run a command that must fail; return all that it prints."""
    found = CliRunner().invoke(reliable, ("dlq", *words), obj=SimpleNamespace(app=app, no_color=True))
    assert found.exit_code == 1, found.output
    return found.output
