"""What the commands of dead letters say of dependencies and versions, from a store in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_reliable import ReliableTask, internals
from celery_reliable.cli import reliable
from celery_reliable.dead_letters import DeadLetter, Filter
from celery_reliable.dead_letters.runs import Plan, Runs
from celery_reliable.payloads import VERSION_HEADER, Envelope
from celery_reliable.runtime import forget_runtime, runtime_of

Dlq = Callable[..., str]


def charge(order: int) -> None:
    """Charge."""


def mail(to: str) -> None:
    """Mail."""


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app of which one task depends on something."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_store_url="memory://")
    app.task(charge, name="shop.charge", base=ReliableTask, shared=False, breaker="card-processor", payload_version=2)
    app.task(mail, name="shop.mail", base=ReliableTask, shared=False)
    yield app
    forget_runtime(app)


@pytest.fixture
def dlq(app: Celery) -> Dlq:
    """Run a command of ``dlq``; return what it prints."""

    def run(*words: str, code: int = 0) -> str:
        shown = CliRunner(env={"COLUMNS": "160"}).invoke(
            reliable, ["dlq", *words], obj=internals.command_context(app), catch_exceptions=False
        )
        assert shown.exit_code == code, shown.output
        return shown.stdout

    return run


def bury(app: Celery, task: str, number: int, *, version: int = 1) -> str:
    """Keep a letter."""
    options: dict[str, Any] = {"queue": "celery", "headers": {VERSION_HEADER: version}}
    call = Envelope(task, f"t{number}", json.dumps([[number], {}, {}]), options=options)
    letter = DeadLetter.of(
        ConnectionError(task), envelope=call, reason="exhausted", now=1.0, letter_id=f"{number:016x}"
    )
    runtime_of(app).store.keep_letter(
        letter.id, letter=letter.to_bytes(), label=letter.label, letter_ttl=60.0, letter_max=9
    )
    return letter.id


class TestDryRun:
    """`dlq replay --dry-run`."""

    @pytest.mark.parametrize("state", ["open", "closed"])
    def test_says_what_the_breaker_is_that_the_letters_would_meet(self, app: Celery, dlq: Dlq, state: str) -> None:
        """One line for each breaker, with how many letters: those of other tasks are not counted."""
        for number, task in enumerate(["shop.charge", "shop.charge", "shop.mail"], start=1):
            bury(app, task, number)
        getattr(runtime_of(app).breakers, "open" if state == "open" else "close")("card-processor")
        lines = dlq("replay", "--all", "--dry-run").splitlines()
        assert lines[0] == "Would replay 3 of 3 dead letters."
        [line] = [one for one in lines if "Breaker" in one]
        waits = ": what is sent waits until it lets calls pass" if state == "open" else ""
        assert (
            line == f"Breaker card-processor of 2 dead letters is {'held open' if state == 'open' else state}{waits}."
        )
        records = [json.loads(one) for one in dlq("replay", "--all", "--dry-run", "--json").splitlines()]
        phase = "held_open" if state == "open" else state
        assert records[3:] == [{"breaker": "card-processor", "state": phase, "letters": 2}]

    def test_says_nothing_of_breakers_where_no_task_has_one(self, app: Celery, dlq: Dlq) -> None:
        """Nor asks the store."""
        bury(app, "shop.mail", 1)
        assert dlq("replay", "--all", "--dry-run") == "Would replay 1 of 1 dead letter.\n"

    def test_letter_sent_to_another_task_meets_that_ones_breaker(self, app: Celery, dlq: Dlq) -> None:
        """As it would on its way."""
        bury(app, "shop.mail", 1)
        assert "Breaker card-processor of 1 dead letter is closed." in dlq(
            "replay", "--all", "--to-task", "shop.charge", "--dry-run"
        )

    def test_call_of_a_newer_payload_version_is_refused(self, app: Celery, dlq: Dlq) -> None:
        """This code cannot read it; what it can read is ready."""
        known, newer = bury(app, "shop.charge", 1, version=2), bury(app, "shop.charge", 2, version=3)
        records = [json.loads(one) for one in dlq("replay", "--all", "--dry-run", "--json", code=1).splitlines()]
        found = {one["letter_id"]: one for one in records if "letter_id" in one}
        assert found[known]["outcome"] == "ready"
        assert (found[newer]["outcome"], found[newer]["reason"]) == ("refused", "no_task")
        assert "payload version 3, and this code knows up to 2" in found[newer]["message"]
        assert "Would replay 1 of 2" in dlq("replay", "--all", "--dry-run", code=1)


class TestRuns:
    """`dlq pause`, `resume`, `cancel`: told from anywhere to whoever works on a run."""

    def test_run_is_paused_goes_on_and_is_cancelled_from_elsewhere(self, app: Celery, dlq: Dlq) -> None:
        """Whoever works on it hears each word; its end is the last one."""
        bury(app, "shop.mail", 1)
        runs = Runs(runtime_of(app).store)
        run = runs.begin(Plan(wanted=Filter()), who="ann@ops", total=1)
        assert f"{run.id} pauses. Go on with it:" in dlq("pause", run.id)
        assert runs.wished(run.id) == "pause"
        assert f"{run.id} goes on where ann@ops works on it." in dlq("resume", run.id)
        assert runs.wished(run.id) == "run"
        assert dlq("cancel", run.id) == f"{run.id} is cancelled.\n"
        assert runs.wished(run.id) == "cancel"
        assert json.loads(dlq("runs", "--json"))["state"] == "running", "it ends when its operator hears of it"

    def test_run_that_its_operator_left_is_cancelled_at_once(self, app: Celery, dlq: Dlq) -> None:
        """Nobody is there to hear it."""
        runs = Runs(runtime_of(app).store)
        run = runs.begin(Plan(wanted=Filter()), who="ann@ops", total=0)
        runs.write(replace(run, state="stopped"))
        dlq("cancel", run.id)
        assert json.loads(dlq("runs", "--json"))["state"] == "cancelled"
        for word in ("pause", "resume", "cancel"):
            dlq(word, run.id, code=1)


class TestShow:
    """`dlq show`."""

    def test_links_to_the_letter_s_page_where_the_project_has_one(self, app: Celery, dlq: Dlq) -> None:
        """For people and for programs."""
        letter = bury(app, "shop.mail", 1)
        assert "page" not in dlq("show", letter)
        assert json.loads(dlq("show", letter, "--json"))["link"] == ""
        forget_runtime(app)
        app.conf.reliable_letter_url = "https://shop.example/letters/{letter_id}/"
        bury(app, "shop.mail", 1)
        page = f"https://shop.example/letters/{letter}/"
        assert f"page     {page}" in dlq("show", letter)
        assert json.loads(dlq("show", letter, "--json"))["link"] == page


class TestGroups:
    """`dlq groups`."""

    def test_names_the_dependency_of_each_group(self, app: Celery, dlq: Dlq) -> None:
        """The breaker of its tasks."""
        bury(app, "shop.charge", 1)
        [group] = [json.loads(one) for one in dlq("groups", "--json").splitlines()]
        assert group["breakers"] == ["card-processor"]
        titles, row, *_ = dlq("groups").splitlines()
        assert row[titles.index("BREAKER") :].startswith("card-processor ")

    def test_has_no_column_for_what_no_group_has(self, app: Celery, dlq: Dlq) -> None:
        """Room is scarce."""
        bury(app, "shop.mail", 1)
        assert "BREAKER" not in dlq("groups")
