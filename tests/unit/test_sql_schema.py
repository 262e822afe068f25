"""The tables of the SQL store: one description, in three forms."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

from celery_reliable.stores.records import Record
from celery_reliable.stores.sql import ddl, open_sql_store, schema
from celery_reliable.stores.sql.rows import COLUMNS, record_of, row_of
from celery_reliable.stores.sql.statements import DIALECTS, load

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_are_those_of_the_metadata(dialect: str) -> None:
    """The file is what Django and the command run; the metadata is what Alembic reads."""
    made = [text.replace("\t", "    ") for text in schema.statements(dialect)]
    assert ddl.statements(dialect) == made


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_of_the_inbox_are_those_of_its_metadata(dialect: str) -> None:
    """Likewise."""
    inbox = [text.replace("\t", "    ") for text in schema.statements(dialect, of=schema.inbox_metadata)]
    assert ddl.statements(dialect, version="inbox_0001") == inbox


def test_columns_of_a_record_are_those_of_its_row() -> None:
    """Nothing is read by position that is not there."""
    assert set(COLUMNS) == {column.name for column in schema.record.columns} - {"prefix", "digest"}


def test_every_dialect_has_all_statements() -> None:
    """No brace is left for what a dialect has to say; what is filled in at a call is known."""
    for dialect in DIALECTS.values():
        for name, text in load(dialect).texts.items():
            left = text.partition("{")[2].partition("}")[0]
            assert left in ("", "changes", "rows", "digests", "names", "task_ids", "numbers"), name


def test_a_record_is_read_as_it_was_written() -> None:
    """Every field, and the dead life that a new one may fall back to."""
    saved = {"state": b"\x00half", "step:mail": b""}
    dead = Record("dead", "A", 1, 1_800_000_000.25, fingerprint="f", token="t", letter_id="L", checks=2, saved=saved)
    record = Record(
        "waiting",
        'B "\x00|é',
        2,
        1_800_000_001.5,
        withdrawn_stamp=7,
        spent_life=3,
        due_at=1_800_000_002.0,
        joined=True,
        published_at=1_800_000_000.5,
        republish_after=1200.0,
        envelope=b"\xff\x00call",
        fence=1_800_000_000_123_456,
        lease_until=1_800_000_000.75,
        revoke_ttl=60.0,
        checks=2,
        saved=saved,
        evidence=(b'{"signal":9}', b"\xff"),
        outcome=b"\x00",
        fallback=dead,
    )
    row = row_of(record)
    assert record_of([row[name] for name in COLUMNS], read_saved=lambda: saved) == record


APP = """
from celery import Celery
from celery_reliable import ReliableTask

app = Celery("shop", broker="memory://", task_cls=ReliableTask)
app.config_from_object("celery_reliable.presets")
app.conf.reliable_store_url = "sqlite:///{path}/store.db"
"""


def test_the_command_makes_the_tables_and_shows_what_it_would_do(tmp_path: Path) -> None:
    """``--print`` changes nothing; the command may be run again."""
    (tmp_path / "shop.py").write_text(APP.format(path=tmp_path))

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "celery", "-A", "shop", "reliable", "schema", *words]
        environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("--print").count("CREATE TABLE") == len(schema.metadata.tables)
    assert not (tmp_path / "store.db").exists()
    assert run() == "The tables are there.\n"
    with contextlib.closing(open_sql_store(f"sqlite:///{tmp_path}/store.db")) as store:
        store.create_tables()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/store.db")
    assert set(sqlalchemy.inspect(engine).get_table_names()) == set(schema.metadata.tables)
    engine.dispose()
