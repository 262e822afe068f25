"""The judge of slots: it finds a doubled, a lost and a late one, and excuses what the policy passes over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.chaos.beats import publish
from tests.chaos.ledger import Row
from tests.chaos.slots import ENTRIES, Fault, judge

ROOT = Path(__file__).parents[2]
START, END = 1_780_315_200, 1_780_315_500
KILL = Fault("kill", START + 100.5, START + 110.0)
TTL = 15.0


def run_of(entry: str, slot: int) -> Row:
    """A run of a slot, a moment after it was due."""
    text = datetime.fromtimestamp(slot, timezone.utc).isoformat()
    return Row("start", entry, wall=slot + 0.2, facts={"slot": text})


def tale(drop: Callable[[str, int], bool] = lambda _entry, _slot: False) -> list[Row]:
    """Everything runs as it should, but for what is dropped."""
    return [
        run_of(name, slot)
        for slot in range(START, END)
        for name, entry in ENTRIES.items()
        if slot % entry.seconds == 0 and not drop(name, slot)
    ]


def test_all_is_well() -> None:
    """No violation, and the figures."""
    verdict = judge(tale(), [], ttl=TTL)
    assert verdict.violations == []
    assert verdict.figures["slots that ran"] == verdict.figures["runs"] == len(tale())


def test_a_slot_that_ran_twice_is_found() -> None:
    """Whatever was broken meanwhile."""
    (found,) = judge([*tale(), run_of("minute", START + 60)], [Fault("freeze", START, START + 9.0)], ttl=TTL).violations
    assert "minute" in found
    assert "ran 2 times" in found


@pytest.mark.parametrize(
    ("entry", "at", "faults", "lost"),
    [
        ("latest", 104, [KILL], False),
        ("latest", 104, [], True),
        ("latest", 200, [KILL], True),
        ("skip", 105, [KILL], False),
        ("each-second", 104, [KILL], True),
        ("plain", 105, [KILL], True),
        ("minute", 180, [], True),
    ],
)
def test_a_lost_slot_is_excused_by_policy_in_the_take_over_alone(
    entry: str, at: int, faults: list[Fault], *, lost: bool
) -> None:
    """And never with ``all``."""
    rows = tale(lambda name, slot: (name, slot) == (entry, START + at))
    if faults:
        rows.append(Row("gone", facts={"target": "b1"}))
    assert bool(judge(rows, faults, ttl=TTL).violations) is lost


def test_an_entry_that_never_ran_is_found() -> None:
    """All of its slots are lost."""
    assert len(judge(tale(lambda name, _: name == "minute"), [], ttl=TTL).violations) >= 2


def test_a_late_take_over_and_a_beat_that_ended_are_found() -> None:
    """A frozen one must not end; a killed one must be replaced within the ttl."""
    late = Fault("freeze", START + 100.0, START + 116.0)
    rows = [*tale(), Row("gone", facts={"target": "b2"})]
    assert [one.split(",")[0] for one in judge(rows, [late], ttl=TTL).violations] == [
        "taken over 16.0 s after the freeze",
        "1 beats ended",
    ]


def test_a_published_report_stands_in_the_index(tmp_path: Path) -> None:
    """Beside the cells, which alone have a row."""
    out, into = tmp_path / "out", tmp_path / "into"
    shutil.copytree(ROOT / "docs" / "chaos", into)
    out.mkdir()
    verdict = judge(tale(), [], ttl=TTL)
    (out / "report.md").write_text(verdict.as_markdown(title="Two beats"))
    (out / "report.json").write_text(json.dumps(verdict.figures))
    publish(out, into=into)
    page = (into / "index.md").read_text()
    assert "\nbeats\n" in page
    assert "| [redis-prefork-redis](redis-prefork-redis.md) |" in page
    assert "| [beats]" not in page
