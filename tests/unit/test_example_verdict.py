"""The verdict holds for a story in which every promise was kept, and for no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from example_project.ledger import Event, Row
from example_project.payments import Answer
from example_project.verdict import Bounds, Line, judge, overlaps, runs

SECTIONS = 6
BOUNDS = Bounds(stop=5.0, handover=5.0, recovery=10.0, sections=SECTIONS)
WHOLE = list(range(1, SECTIONS + 1))
MAIN_PIDS = {"alpha": 100, "bravo": 200}


@dataclass
class Tale:
    """A story as it would stand in the ledger; time goes on by a second with each row."""

    rows: list[Row] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    now: float = 1000.0
    fence: int = 0

    def row(self, event: Event, key: str, *, worker: str = "", pid: int = 0, fence: int = 0, **detail: Any) -> None:
        """Write one row."""
        self.now += 1
        row = Row(event, key.partition(":")[0], key, fence, 1, worker, pid, "host", self.now, 0.0, detail)
        self.rows.append(replace(row, number=len(self.rows) + 1))

    def run(
        self, key: str, *, worker: str, sections: Sequence[int] = (), effect: str = "", outcome: str = "done"
    ) -> None:
        """Let a task run; outcome "" leaves it without an end."""
        self.fence += 1
        common: dict[str, Any] = {"worker": worker, "pid": MAIN_PIDS[worker] + 1, "fence": self.fence}
        self.row("start", key, **common)
        for section in sections:
            self.row("checkpoint", key, **common, section=section)
        if effect == "report":
            self.row("effect", key, **common, kind=effect, path="x", sections=WHOLE)
        elif effect:
            self.row("effect", key, **common, kind=effect, order_id=key.partition(":")[2], charge_id="c")
        if outcome:
            self.row("end", key, **common, outcome=outcome)

    def answer(self, key: str, status: int) -> None:
        """Let the payment service answer."""
        self.now += 0.1
        order_id = key.partition(":")[2]
        answer = Answer(order_id, "1.00", key, status, "c", charged=status == 200, monotonic=self.now)
        self.answers.append(answer)

    def charge(self, key: str, *statuses: int) -> None:
        """Let an order be tried until the last status."""
        for status in statuses:
            self.answer(key, status)
            kept = status == 200
            self.run(key, worker="alpha", effect="charge" if kept else "", outcome="done" if kept else "HTTPError")
        if statuses[-1] == 200:
            self.run(f"invoice:{key.partition(':')[2]}", worker="bravo", effect="invoice")

    def gone(self, worker: str, *, code: int) -> None:
        """See a worker leave."""
        self.row("gone", "", worker=worker, pid=MAIN_PIDS[worker], exit=code, left_behind=0)


def good_tale() -> Tale:
    """Tell the story of the demo as it should go."""
    tale = Tale()
    for _ in range(3):
        tale.row("submit", "report:1")
    tale.run("report:1", worker="alpha", sections=[1, 2], outcome="")
    tale.row("signal", "report:1", worker="alpha", pid=100, signal="SIGTERM")
    tale.row("end", "report:1", worker="alpha", pid=101, fence=1, outcome="Draining")
    tale.gone("alpha", code=0)
    tale.run("report:1", worker="bravo", sections=[3, 4, 5, 6], effect="report")
    tale.row("submit", "report:2")
    tale.run("report:2", worker="bravo", sections=[1, 2, 3], outcome="")
    tale.row("signal", "report:2", worker="bravo", pid=200, signal="SIGKILL")
    tale.gone("bravo", code=-9)
    tale.run("report:2", worker="alpha", sections=[4, 5, 6], effect="report")
    for _ in range(5):
        tale.row("submit", "charge:A-1", task_id="one")
    tale.charge("charge:A-1", 200)
    tale.row("submit", "charge:A-2", task_id="two")
    tale.charge("charge:A-2", 429, 429, 200)
    tale.row("submit", "charge:A-3", task_id="three")
    tale.charge("charge:A-3", 503, 200)
    tale.row("submit", "charge:A-4", task_id="four")
    tale.charge("charge:A-4", 402)
    tale.row("letter", "charge:A-4", letter_id="L", reason="permanent", error="HTTPError: 402")
    tale.row("replay", "charge:A-4", letter_id="L")
    tale.charge("charge:A-4", 200)
    return tale


def verdict(tale: Tale) -> list[Line]:
    """Judge a tale."""
    return judge(tale.rows, tale.answers, bounds=BOUNDS)


def broken(tale: Tale) -> set[str]:
    """Return the claims that do not hold."""
    return {line.claim for line in verdict(tale) if not line.ok}


def test_a_story_in_which_every_promise_was_kept_holds() -> None:
    """All lines hold, and each act has some."""
    lines = verdict(good_tale())
    assert [line for line in lines if not line.ok] == []
    assert {line.act for line in lines} == {"a", "b", "c", "d", "all"}


def test_nothing_holds_of_an_empty_ledger() -> None:
    """Nothing is proven by what nobody saw, so every act has only broken lines."""
    lines = judge([], [], bounds=BOUNDS)
    assert {line.act for line in lines} == {"a", "b", "c", "d", "all"}
    assert not any(line.ok for line in lines)


@pytest.mark.parametrize(
    "missing", ["signal", "gone", "submit", "start", "end", "checkpoint", "effect", "letter", "replay"]
)
def test_a_story_without_one_kind_of_row_does_not_hold(missing: str) -> None:
    """Every kind of row is evidence for something."""
    tale = good_tale()
    tale.rows = [row for row in tale.rows if row.event != missing]
    assert broken(tale)


# --- what must break the verdict


def two_artifacts(tale: Tale) -> None:
    """Let the report come out twice."""
    tale.row("effect", "report:1", worker="alpha", pid=101, fence=1, kind="report", path="x", sections=WHOLE)


def half_an_artifact(tale: Tale) -> None:
    """Let the report lack a section."""
    _change(tale, lambda row: row.event == "effect" and row.key == "report:1", sections=[1, 2, 3, 4, 5])


def section_again(tale: Tale) -> None:
    """Let one section be rendered on both workers."""
    _change(tale, lambda row: row.detail.get("section") == 4 and row.key == "report:1", section=2)


def begins_again(tale: Tale) -> None:
    """Let the second worker begin at the beginning."""
    _change(tale, lambda row: row.detail.get("section") == 3 and row.key == "report:1", section=1)


def stops_late(tale: Tale) -> None:
    """Let the worker take its time to leave."""
    _move(tale, lambda row: row.event == "gone" and row.worker == "alpha", by=4.0)


def stops_badly(tale: Tale) -> None:
    """Let the worker leave with an error."""
    _change(tale, lambda row: row.event == "gone" and row.worker == "alpha", exit=1)


def leaves_orphans(tale: Tale) -> None:
    """Let a child outlive its worker."""
    _change(tale, lambda row: row.event == "gone" and row.worker == "alpha", left_behind=1)


def hands_over_to_itself(tale: Tale) -> None:
    """Let the report go on on the worker that was told to stop."""
    tale.rows = [replace(row, worker="alpha") if row.fence == 2 else row for row in tale.rows]


def hands_over_late(tale: Tale) -> None:
    """Let the report wait before it goes on."""
    _move(tale, lambda row: row.fence == 2, by=60.0)


def recovers_late(tale: Tale) -> None:
    """Let the killed worker's report wait."""
    _move(tale, lambda row: row.fence == 4, by=60.0)


def asked_once(tale: Tale) -> None:
    """Let the schedule ask for the report only once."""
    tale.rows = tale.rows[2:]


def no_next_report(tale: Tale) -> None:
    """Let the schedule forget the next day."""
    tale.rows = [row for row in tale.rows if row.key != "report:2"]


def runs_overlap(tale: Tale) -> None:
    """Let the next worker begin before the first has left the task."""
    end = next(row for row in tale.rows if row.event == "end" and row.key == "report:1")
    _move(tale, lambda row: row.event == "start" and row.fence == 2, by=end.monotonic - tale.now)
    _move(tale, lambda row: row is end, by=9.0)


def orphan_goes_on(tale: Tale) -> None:
    """Let a child of the killed worker work on after its report went on elsewhere."""
    tale.row("checkpoint", "report:2", worker="bravo", pid=201, fence=3, section=4)


def fence_stands_still(tale: Tale) -> None:
    """Let a later run have the fence of the first."""
    tale.rows = [replace(row, fence=1) if row.fence == 2 else row for row in tale.rows]


def charged_twice(tale: Tale) -> None:
    """Let the payment service see the order again."""
    tale.answer("charge:A-1", 200)


def effect_twice(tale: Tale) -> None:
    """Let the task run again."""
    tale.run("charge:A-1", worker="bravo", effect="charge")


def two_jobs_for_one_key(tale: Tale) -> None:
    """Let one of five submissions be a job of its own."""
    _change(tale, lambda row: row is tale.rows[_first(tale, "charge:A-1")], task_id="other")


def retried_order_charged_twice(tale: Tale) -> None:
    """Let a retry charge again."""
    tale.answer("charge:A-2", 200)


def no_refusals(tale: Tale) -> None:
    """Let the payment service never refuse: then retries are not shown."""
    tale.answers = [answer for answer in tale.answers if answer.status not in {429, 503}]


def two_letters(tale: Tale) -> None:
    """Let the poison order be buried twice."""
    tale.row("letter", "charge:A-4", letter_id="M", reason="permanent", error="HTTPError: 402")


def charged_before_replay(tale: Tale) -> None:
    """Let the declined order be charged behind everybody's back."""
    tale.answers = [replace(answer, charged=True) if answer.status == 402 else answer for answer in tale.answers]


def replayed_twice(tale: Tale) -> None:
    """Let the replay charge twice."""
    tale.answer("charge:A-4", 200)


def replay_fails(tale: Tale) -> None:
    """Let the replayed order fail again."""
    tale.run("charge:A-4", worker="bravo", outcome="HTTPError")


def invoice_twice(tale: Tale) -> None:
    """Let a customer get two invoices."""
    tale.run("invoice:A-2", worker="bravo", effect="invoice")


def no_invoice(tale: Tale) -> None:
    """Let a charged order have no invoice."""
    tale.rows = [row for row in tale.rows if row.key != "invoice:A-3"]


def job_is_lost(tale: Tale) -> None:
    """Let a submitted job never run."""
    tale.row("submit", "charge:A-9", task_id="nine")


@pytest.mark.parametrize(
    ("breaks", "claim"),
    [
        (two_artifacts, "final artifacts, and whole ones"),
        (half_an_artifact, "final artifacts, and whole ones"),
        (section_again, "sections rendered twice"),
        (begins_again, "section at which it goes on"),
        (stops_late, "worker gone after SIGTERM"),
        (stops_badly, "its exit code, processes left behind"),
        (leaves_orphans, "its exit code, processes left behind"),
        (hands_over_to_itself, "hand-over: report goes on elsewhere"),
        (hands_over_late, "hand-over: report goes on elsewhere"),
        (recovers_late, "recovery: report goes on elsewhere"),
        (asked_once, "times the schedule asked for it"),
        (no_next_report, "next scheduled report starts"),
        (runs_overlap, "runs of one key at the same time"),
        (orphan_goes_on, "runs of one key at the same time"),
        (fence_stands_still, "fences that did not grow"),
        (charged_twice, "its charges, by the payment service"),
        (effect_twice, "its charges, by the ledger"),
        (two_jobs_for_one_key, "task ids for 5 submissions of one order"),
        (retried_order_charged_twice, "charges per order met by 429 or 503"),
        (no_refusals, "charges per order met by 429 or 503"),
        (two_letters, "dead letters of the poison order"),
        (charged_before_replay, "its charges before the replay"),
        (replayed_twice, "its charges after the replay"),
        (replay_fails, "its end"),
        (replay_fails, "jobs that came to a good end"),
        (invoice_twice, "invoices per charged order"),
        (no_invoice, "invoices per charged order"),
        (job_is_lost, "jobs that came to a good end"),
    ],
)
def test_a_broken_promise_breaks_its_line(breaks: Callable[[Tale], None], claim: str) -> None:
    """Each promise has a line that notices."""
    tale = good_tale()
    breaks(tale)
    assert claim in broken(tale)


def test_every_line_can_be_broken() -> None:
    """No claim of the verdict holds whatever happens: the cases above cover them all."""
    (mark,) = test_a_broken_promise_breaks_its_line.pytestmark  # type: ignore[attr-defined]
    assert {line.claim for line in verdict(good_tale())} == {claim for _, claim in mark.args[1]}


# --- runs


def test_a_killed_run_is_over_when_its_worker_was_seen_gone() -> None:
    """Not earlier, although its last row is older."""
    killed = next(run for run in runs(good_tale().rows) if run.outcome == "killed")
    gone = next(row for row in good_tale().rows if row.event == "gone" and row.worker == "bravo")
    assert killed.over == gone.monotonic


def test_a_worker_that_leaves_ends_no_run_of_another() -> None:
    """Nor one that had ended before."""
    outcomes = [run.outcome for run in runs(good_tale().rows) if run.key.startswith("report:")]
    assert outcomes == ["Draining", "done", "killed", "done"]


def test_runs_of_different_keys_may_overlap() -> None:
    """Only one key at a time is promised."""
    tale = Tale()
    tale.run("report:1", worker="alpha", outcome="")
    tale.run("report:2", worker="bravo")
    tale.row("end", "report:1", worker="alpha", pid=101, fence=1, outcome="done")
    assert overlaps(runs(tale.rows)) == []


def test_overlaps_are_found_among_more_than_two_runs() -> None:
    """A long run overlaps with each of those within it."""
    tale = Tale()
    tale.run("report:1", worker="alpha", outcome="")
    tale.run("report:1", worker="bravo")
    tale.run("report:1", worker="bravo")
    tale.row("end", "report:1", worker="alpha", pid=101, fence=1, outcome="done")
    assert [(first.fence, second.fence) for first, second in overlaps(runs(tale.rows))] == [(1, 2), (1, 3)]


def _change(tale: Tale, chosen: Callable[[Row], bool], **detail: Any) -> None:
    rows = [replace(row, detail={**row.detail, **detail}) if chosen(row) else row for row in tale.rows]
    assert rows != tale.rows
    tale.rows = rows


def _move(tale: Tale, chosen: Callable[[Row], bool], *, by: float) -> None:
    rows = [replace(row, monotonic=row.monotonic + by) if chosen(row) else row for row in tale.rows]
    assert rows != tale.rows
    tale.rows = rows


def _first(tale: Tale, key: str) -> int:
    return next(number for number, row in enumerate(tale.rows) if row.key == key)
