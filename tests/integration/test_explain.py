"""``celery reliable explain``: what happened to a job, told from what real workers noted."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from celery_reliable.cli import reliable
from celery_reliable.runtime import runtime_of
from celery_reliable.trails import Place, lines_of
from tests.integration.apps.jobs import letter
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.integration.apps.stage import Stage
    from tests.integration.workers import Workers

pytestmark = [pytest.mark.integration]


@pytest.fixture(scope="module", autouse=True)
def _worker(stage: Stage, module_workers: Workers) -> None:
    module_workers.start("tests.integration.apps.worker", concurrency=2, env=stage.environment())


def run(app: Celery, *words: str, code: int = 0) -> str:
    """Run a command of ``celery reliable`` in this process; return what it prints."""
    found = CliRunner().invoke(reliable, words, obj=SimpleNamespace(app=app, no_color=True))
    assert found.exit_code == code, found.output
    return found.output


def told(app: Celery, asked: str) -> dict[str, Any]:
    """Return a life as JSON."""
    life: dict[str, Any] = json.loads(run(app, "explain", asked, "--json"))
    return life


def events(life: dict[str, Any]) -> list[str]:
    """Return what happened, in order."""
    assert [one["at"] for one in life["moments"]] == sorted(one["at"] for one in life["moments"])
    return [moment["event"] for moment in life["moments"]]


def test_lost_child_is_told_with_its_evidence(app: Celery, stage: Stage, label: str) -> None:
    """The parent saw it die, another child did it: both are in one trail."""
    result = app.tasks["suicidal"].delay(label, 1)
    stage.wait_event("recovered", result.id)
    wait_until(lambda: told(app, result.id)["state"] == "done", 10, "told as done")
    life = told(app, result.id)
    assert events(life) == ["submitted", "evidence", "claimed_again", "recovered"]
    assert (life["task"], life["key"]) == ("suicidal", result.id)
    [claim] = [moment for moment in life["moments"] if moment["event"] == "claimed_again"]
    assert claim["facts"]["delivery"] == 2
    assert claim["facts"]["fence"] == stage.entries(label)[-1]["fence"]


def test_retries_and_snoozes_are_told_with_reason_and_delay(app: Celery, stage: Stage, label: str) -> None:
    """Attempt by attempt."""
    flaky = app.tasks["flaky"].delay(label, 2)
    snoozed = app.tasks["later"].delay(f"{label}:later", 1)
    stage.wait_event("recovered", flaky.id)
    stage.wait_entries(f"{label}:later", 2)
    retried = [moment for moment in told(app, flaky.id)["moments"] if moment["event"] == "retried"]
    assert [(moment["facts"]["attempt"], moment["facts"]["error"]) for moment in retried] == [
        (1, "Transient"),
        (2, "Transient"),
    ]
    assert all(moment["facts"]["delay"] >= 0 for moment in retried)
    assert "snoozed" in events(told(app, snoozed.id))


def test_dead_job_and_its_replay_are_one_life(app: Celery, stage: Stage, label: str, tmp_path: Path) -> None:
    """Found by the old id and by the new one; shown on a terminal and as a page."""
    result = app.tasks["hopeless"].delay(label)
    letter_id = letter(app, stage, result.id).id
    replayed = json.loads(run(app, "dlq", "replay", letter_id, "--json"))["new_id"]
    stage.wait_event("buried", replayed)
    for asked in (result.id, replayed):
        life = told(app, asked)
        # The worker may be quicker than whoever submits or replays, who tells so when it is done.
        assert sorted(events(life)[:2]) == ["buried", "submitted"]
        assert sorted(events(life)[2:]) == ["buried", "letter_replayed"]
        assert life["state"] == "dead"
    screen = run(app, "explain", result.id)
    assert "became dead letter" in screen
    assert "replayed from dead letter" in screen
    page = tmp_path / "life.html"
    run(app, "explain", result.id, "--html", str(page))
    assert "became dead letter" in page.read_text("utf-8")


def test_declared_key_is_found_by_both_names_and_tells_its_duplicates(app: Celery, stage: Stage, label: str) -> None:
    """The second submission of a key, by its task id too."""
    key = f"explain:{label}"
    first = app.tasks["held"].apply_async((label, label), idempotency_key=key)
    stage.wait_entries(label, 1)
    running = told(app, key)
    assert running["state"] == "running"
    assert "worker1" in running["now"]
    assert app.tasks["held"].apply_async((label, label), idempotency_key=key).id == first.id
    stage.open(label)
    wait_until(lambda: told(app, key)["state"] == "done", 10, "told as done")
    assert events(told(app, key))[0] == "existing"


def test_ordinary_job_leaves_no_trail(app: Celery, stage: Stage, label: str) -> None:
    """It is told from its record and its result; nothing was written for it."""
    result = app.tasks["add"].delay(1, label)
    assert result.get(timeout=15) == 2
    assert events(told(app, result.id)) == ["done"]
    store = runtime_of(app).store
    assert lines_of(store.notes, [result.id]) == []
    assert Place.of(result.id).name not in store.notes.read("trails", [Place.of(result.id).name])


def test_waiting_job_is_told_from_the_ledger(app: Celery, label: str) -> None:
    """Also in a queue that nobody consumes."""
    result = app.tasks["add"].apply_async((1, label), queue="nobody")
    life = told(app, result.id)
    assert (life["state"], events(life)) == ("waiting", ["submitted"])


def test_unknown_job_is_said_to_be_unknown(app: Celery, label: str) -> None:
    """Exit code 1, and why that may be."""
    assert "nothing is known" in run(app, "explain", label, code=1)
