"""What the demo shows: a picture drawn from the ledger, on a screen of any size, and the verdict in words."""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from celery_reliable.testing.processes import process_table
from example_project.demo.__main__ import holds_good, main
from example_project.demo.fleet import Fleet, StoryBroken, wait_for
from example_project.demo.narrator import Narrator
from example_project.demo.picture import Picture, Process, Said, picture
from example_project.demo.screen import draw, plain_sentence, plain_verdict, show_verdict
from example_project.verdict import Line
from tests.unit.test_example_verdict import SECTIONS, Tale, good_tale

GOOD = Line("a", "worker gone", "within 5.0 s", "0.71 s", ok=True)
BAD = Line("all", "runs at the same time", "0", "1", ok=False)


def look(tale: Tale) -> Picture:
    """Draw what the tale's ledger shows."""
    processes = [Process("alpha", 100, "working"), Process("beat", 101, "left"), Process("bravo", 200, "killed")]
    said = [Said(float(number), "a", f"sentence {number}") for number in range(30)]
    return picture(tale.rows, seconds=12.0, act="b", processes=processes, said=said, sections=SECTIONS)


def text_of(shown: Picture, *, width: int, height: int) -> str:
    """Render as on a terminal of that size."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(draw(shown, width=width, height=height), height=height)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- the picture


def test_a_key_shows_how_often_it_was_asked_for_ran_and_took_effect() -> None:
    """One order, five submissions, one run, one effect."""
    (key,) = [key for key in look(good_tale()).keys if key.key == "charge:A-1"]
    assert (key.asked, key.runs, key.effects, key.state) == (5, 1, 1, "done")


def test_a_submitted_key_waits_until_it_runs() -> None:
    """It shows before anything ran."""
    tale = Tale()
    tale.row("submit", "charge:A-1", task_id="one")
    (key,) = look(tale).keys
    assert (key.state, key.runs) == ("waiting", 0)
    tale.run("charge:A-1", worker="alpha", outcome="")
    assert [key.state for key in look(tale).keys] == ["running"]
    tale.row("end", "charge:A-1", worker="alpha", pid=101, fence=1, outcome="HTTPError")
    assert [key.state for key in look(tale).keys] == ["waiting"]


def test_a_key_is_a_dead_letter_until_its_letter_is_replayed() -> None:
    """Then it waits, runs and is done like any other."""
    tale = Tale()
    tale.run("charge:A-4", worker="alpha", outcome="HTTPError")
    tale.row("letter", "charge:A-4", letter_id="L", reason="permanent", error="HTTPError: 402")
    assert [key.state for key in look(tale).keys] == ["dead letter"]
    assert [letter.replayed for letter in look(tale).letters] == [False]
    tale.row("replay", "charge:A-4", letter_id="L")
    assert [key.state for key in look(tale).keys] == ["waiting"]
    assert [letter.replayed for letter in look(tale).letters] == [True]


def test_a_job_shows_its_progress_and_how_it_ended() -> None:
    """A report that was handed over keeps the share it had."""
    jobs = [job for job in look(good_tale()).jobs if job.run.key == "report:1"]
    assert [(job.state, job.progress) for job in jobs] == [("handed over", pytest.approx(2 / 6)), ("done", 1.0)]


def test_a_worker_shows_what_it_works_on() -> None:
    """Only while it does."""
    tale = Tale()
    tale.run("report:1", worker="alpha", sections=[1], outcome="")
    assert look(tale).busy == {"alpha": "report:1"}
    tale.row("end", "report:1", worker="alpha", pid=101, fence=1, outcome="done")
    assert look(tale).busy == {}


# --- the screen


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (40, 12)])
def test_a_picture_fits_the_terminal(width: int, height: int) -> None:
    """Every line and column, whatever the size."""
    lines = text_of(look(good_tale()), width=width, height=height).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_picture_shows_every_panel_and_the_newest_of_each(width: int, height: int) -> None:
    """What scrolls out is the oldest."""
    text = text_of(look(good_tale()), width=width, height=height)
    for words in ("processes", "jobs", "keys", "dead letters", "what happens", "12.0 s", "sentence 29", "charge:A-4"):
        assert words in text
    assert "sentence 0 " not in text


def test_an_empty_picture_can_be_drawn() -> None:
    """Before anything happened."""
    nothing = picture([], seconds=0.0, act="open", processes=[], said=[], sections=SECTIONS)
    assert "none" in text_of(nothing, width=80, height=24)


def test_a_verdict_in_plain_text_says_of_every_line_whether_it_holds() -> None:
    """Aligned, so that it can be read and searched."""
    good, bad = plain_verdict([GOOD, BAD])
    assert good == "ok   a    worker gone            expected within 5.0 s  found 0.71 s"
    assert bad == "FAIL all  runs at the same time  expected 0             found 1"


def test_a_verdict_on_a_terminal_is_a_table_with_every_line() -> None:
    """And with a mark for each."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    show_verdict(console, [GOOD, BAD])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "worker gone" in text
    assert text.count("✔") == text.count("✘") == 1


@pytest.fixture
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave this process as it was: the demo makes a directory, and hears SIGTERM."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    heard = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, heard)


@pytest.mark.usefixtures("_own_place")
@pytest.mark.parametrize(("lines", "code"), [([GOOD, GOOD], 0), ([GOOD, BAD], 1), ([BAD, GOOD], 1)])
def test_a_line_that_does_not_hold_is_the_exit_code(
    lines: list[Line], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what the story has left is kept for whoever looks into it."""

    def tale(_directory: Path, *, console: Console, **_: object) -> bool:
        return holds_good(lines, console=console, seconds=9.0)

    assert main([], story=tale) == code
    assert f"{2 - code} of 2 lines hold" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == code


def test_a_narrator_passes_on_each_sentence_as_it_is_said() -> None:
    """With its act, and in order."""
    heard: list[Said] = []
    narrator = Narrator(heard.append)
    narrator.begin("a")
    narrator.say("alpha leaves", mood="good")
    assert [(said.act, said.text, said.mood) for said in heard] == [
        ("a", "told to stop", "act"),
        ("a", "alpha leaves", "good"),
    ]
    assert heard == narrator.said
    assert "ok: alpha leaves" in plain_sentence(heard[1])


# --- the processes


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Make a fleet without processes."""
    with closing(Fleet(tmp_path)) as made:
        yield made


def is_alive(pid: int) -> bool:
    """Tell whether there is such a process, and not only its zombie."""
    return pid in {entry.pid for entry in process_table()}


PROGRAM = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, os.environ.get("SHOP_SECTIONS"), "ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module that starts a child and then waits."""
    (tmp_path / "waits_with_child.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "waits_with_child"


def test_a_process_gets_the_shops_environment_and_is_working_once_its_log_says_so(fleet: Fleet, program: str) -> None:
    """What it prints is in its log."""
    member = fleet.start("alpha", program, ready="ready", environment={"SHOP_SECTIONS": "3"})
    member.wait_ready(timeout=20)
    assert [(each.name, each.state) for each in fleet.processes] == [("alpha", "working")]
    assert " 3 ready" in member.log.read_text()


def test_a_process_that_leaves_instead_of_getting_ready_breaks_the_story(fleet: Fleet) -> None:
    """With the place of its log."""
    member = fleet.start("alpha", "no_such_module_at_all", ready="ready")
    with pytest.raises(StoryBroken, match=r"alpha-0\.log"):
        member.wait_ready(timeout=20)


def test_closing_ends_the_children_of_a_process_too(fleet: Fleet, program: str) -> None:
    """By group, and twice is no error."""
    member = fleet.start("alpha", program, ready="ready")
    member.wait_ready(timeout=20)
    child = int(member.log.read_text().split()[1])
    fleet.close()
    fleet.close()
    wait_for(lambda: not is_alive(child), timeout=5, what="the child is gone")
    assert not is_alive(member.pid)


def test_a_process_that_left_a_child_behind_is_found_out(fleet: Fleet, program: str) -> None:
    """SIGTERM goes to the process alone."""
    member = fleet.start("alpha", program, ready="ready")
    member.wait_ready(timeout=20)
    member.ask()
    assert member.state in ("draining", "left")  # it may be gone already
    assert member.wait_gone(timeout=10) == (-signal.SIGTERM, 1)
    assert [each.state for each in fleet.processes] == ["left"]


def test_a_killed_process_takes_its_children_with_it(fleet: Fleet, program: str) -> None:
    """As the loss of a machine does."""
    member = fleet.start("alpha", program, ready="ready")
    member.wait_ready(timeout=20)
    member.kill()
    code, _ = member.wait_gone(timeout=10)
    assert (code, member.state) == (-signal.SIGKILL, "killed")
    child = int(member.log.read_text().split()[1])
    wait_for(lambda: not is_alive(child), timeout=5, what="the child is gone")


def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path, program: str) -> None:
    """Nothing is left running, not even after SIGKILL."""
    log = tmp_path / "outer"
    code = (
        f"import time, pathlib; from example_project.demo.fleet import Fleet\n"
        f"fleet = Fleet(pathlib.Path({str(tmp_path)!r}))\n"
        f"member = fleet.start('alpha', {program!r}, ready='ready'); member.wait_ready(timeout=20)\n"
        f"pathlib.Path({str(log)!r}).write_text(str(member.pid)); time.sleep(600)\n"
    )
    outer = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code])
    try:
        wait_for(lambda: log.exists() and bool(log.read_text()), timeout=30, what="the inner process is ready")
    finally:
        os.kill(outer, signal.SIGKILL)
        os.waitpid(outer, 0)
    wait_for(lambda: not is_alive(int(log.read_text())), timeout=10, what="the inner process is gone")


def test_waiting_in_vain_says_for_what() -> None:
    """After the time given."""
    began = time.monotonic()
    with pytest.raises(StoryBroken, match="in vain until pigs fly"):
        wait_for(lambda: False, timeout=0.1, what="pigs fly")
    assert 0.1 <= time.monotonic() - began < 5
