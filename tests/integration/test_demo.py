"""The demo as ``make demo`` runs it, and the example's ledger on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import psycopg
import pytest

from celery_reliable.testing.processes import family, process_table
from celery_reliable.testing.servers import ExternalServer, Server
from example_project.ledger import Ledger, Row
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "example_project.demo", "--plain", "--seed", "7"]
LIMIT = 90.0
CLAIMS = 24


# --- the demo


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make the directory in which the demo makes its own."""
    made = tmp_path / "tmp"
    made.mkdir()
    return made


@pytest.mark.timeout(240)
def test_the_demo_keeps_every_promise_and_leaves_nothing_behind(home: Path) -> None:
    """Every line of the verdict holds, the exit code is 0, and no file is left."""
    began = time.monotonic()
    done = subprocess.run(COMMAND, env=_with(home), capture_output=True, text=True, timeout=220, check=False)
    took = time.monotonic() - began
    told = done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert done.returncode == 0, told
    assert [line for line in lines if line.startswith("FAIL")] == [], told
    assert len([line for line in lines if line.startswith("ok ")]) == CLAIMS, told
    assert f"{CLAIMS} of {CLAIMS} lines hold" in lines[-1]
    assert took < LIMIT, told
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_interrupted_leaves_no_process_behind(home: Path, signum: signal.Signals) -> None:
    """Whatever it is in the middle of; after SIGKILL, which nobody survives, only its directory stays."""
    demo = subprocess.Popen(COMMAND, env=_with(home), stdout=subprocess.PIPE, text=True, start_new_session=True)
    with demo, ThreadPoolExecutor(1) as readers:
        assert demo.stdout
        readers.submit(_read_until, demo.stdout, "wait for work").result(timeout=60)
        started = family(demo.pid)
        demo.send_signal(signum)
        code = demo.wait(timeout=60)
    assert len(started) > 5
    assert code == (-signal.SIGKILL if signum == signal.SIGKILL else 130)
    wait_until(lambda: not _alive(started), timeout=60, what="all processes of the demo are gone")
    assert signum == signal.SIGKILL or list(home.iterdir()) == []


def test_the_demo_explains_its_options() -> None:
    """As every command does."""
    help_text = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(option in help_text for option in ("--plain", "--keep", "--seed"))


def _with(home: Path) -> dict[str, str]:
    """Return our environment, with another place for temporary files."""
    return {**os.environ, "TMPDIR": str(home)}


def _alive(pids: list[int]) -> set[int]:
    return set(pids) & {entry.pid for entry in process_table()}


def _read_until(lines: IO[str], text: str) -> None:
    seen = []
    for line in lines:
        seen.append(line)
        if text in line:
            return
    msg = f"{text!r} was never said: {''.join(seen)}"
    raise AssertionError(msg)


# --- the ledger on PostgreSQL


@pytest.fixture
def ledger(postgres_server: Server | ExternalServer) -> Iterator[Ledger]:
    """Make a ledger in a schema of its own."""
    schema = f"shop_{os.getpid()}_{time.monotonic_ns()}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield Ledger(f"{postgres_server.url}?options=-csearch_path%3D{schema}")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def test_postgresql_returns_a_row_as_it_was_written(ledger: Ledger) -> None:
    """The fence at its full size too, and in order."""
    ledger.create()
    ledger.append(Row("start", "render", "report:1", 1_764_439_000_123_456, 2, "alpha", detail={"text": "ä"}))
    ledger.append(Row("end", "render", "report:1", 1_764_439_000_123_456, 2, "alpha", detail={"outcome": "done"}))
    first, second = ledger.rows()
    assert (first.event, first.fence, first.attempt, first.detail) == ("start", 1_764_439_000_123_456, 2, {"text": "ä"})
    assert [row.event for row in ledger.rows(after=first.number)] == ["end"]
    assert second.monotonic >= first.monotonic


@pytest.mark.parametrize("statement", ["UPDATE ledger SET key = 'x'", "DELETE FROM ledger", "TRUNCATE ledger"])
def test_postgresql_refuses_to_change_a_row(ledger: Ledger, statement: str) -> None:
    """The database itself."""
    ledger.create().append(Row("start", key="report:1"))
    with psycopg.connect(ledger.url) as connection, pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        connection.execute(statement)
    assert [row.key for row in ledger.rows()] == ["report:1"]


def test_postgresql_lets_many_create_and_write_at_once(ledger: Ledger) -> None:
    """Nobody is refused, every row is kept."""
    with ThreadPoolExecutor(6) as writers:
        list(writers.map(lambda number: ledger.create().append(Row("effect", detail={"n": number})), range(12)))
    assert sorted(row.detail["n"] for row in ledger.rows()) == list(range(12))
