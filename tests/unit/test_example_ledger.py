"""The ledger keeps every row, in order, and lets nobody change one."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from example_project.ledger import Ledger, Row, main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Name a file that is not there yet."""
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def ledger(file: Path) -> Ledger:
    """Make an empty ledger."""
    return Ledger(f"sqlite:///{file}").create()


def test_a_row_comes_back_as_it_was_written(ledger: Ledger) -> None:
    """Every field survives, the fence at its full size too."""
    fence = 1_764_439_000_123_456
    row = Row("checkpoint", "render", "report:1", fence, 2, "alpha", detail={"section": 7, "text": "ä"})
    ledger.append(row)
    assert ledger.rows() == [_numbered(row, 1)]


def test_rows_come_back_in_the_order_in_which_they_were_written(ledger: Ledger) -> None:
    """The order is that of the commits, and reading can go on after a known row."""
    for section in range(5):
        ledger.append(Row("checkpoint", detail={"section": section}))
    assert [row.detail["section"] for row in ledger.rows()] == [0, 1, 2, 3, 4]
    assert [row.detail["section"] for row in ledger.rows(after=3)] == [3, 4]


def test_a_row_says_who_wrote_it_and_when(ledger: Ledger) -> None:
    """Process, host and both clocks are filled in."""
    ledger.append(Row("start"))
    (row,) = ledger.rows()
    assert row.pid == os.getpid()
    assert row.host
    assert row.monotonic > 0
    assert row.wall > 1_600_000_000


@pytest.mark.parametrize("statement", ["UPDATE ledger SET key = 'other'", "DELETE FROM ledger"])
def test_a_row_can_be_neither_changed_nor_deleted(ledger: Ledger, file: Path, statement: str) -> None:
    """The database itself refuses."""
    ledger.append(Row("start", key="report:1"))
    with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    assert [row.key for row in ledger.rows()] == ["report:1"]


def test_creating_a_ledger_again_keeps_its_rows(ledger: Ledger) -> None:
    """Every process may create."""
    ledger.append(Row("start"))
    ledger.create()
    assert len(ledger.rows()) == 1


def test_rows_written_at_the_same_time_are_all_kept(ledger: Ledger) -> None:
    """Writers wait for each other, none is refused."""
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda number: ledger.append(Row("effect", detail={"number": number})), range(80)))
    assert sorted(row.detail["number"] for row in ledger.rows()) == list(range(80))


def test_a_url_of_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    """The text names the setting."""
    with pytest.raises(ValueError, match=r"sqlite:///FILE or postgresql.*found 'mysql://x/y'.*SHOP_LEDGER_URL"):
        Ledger("mysql://x/y").create()


def test_printing_a_ledger_shows_every_row_and_makes_one_where_there_is_none(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the seconds since the first, who wrote it, and what it says."""
    url = f"sqlite:///{file}"
    main([url])
    assert capsys.readouterr().out == ""
    Ledger(url).append(Row("start", key="report:1", worker="alpha", pid=7, monotonic=10.0))
    Ledger(url).append(Row("checkpoint", key="report:1", worker="alpha", pid=7, monotonic=12.5, detail={"section": 3}))
    main([url])
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["0.000", "start", "alpha", "7"]
    assert second.split() == ["2.500", "checkpoint", "alpha", "7", "report:1", "0", '{"section":', "3}"]


def _numbered(row: Row, number: int) -> Row:
    return Row(**{**{name: getattr(row, name) for name in Row.__slots__}, "number": number})
