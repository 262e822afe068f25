"""The front of the package: its names, and what importing it costs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import celery_reliable
import celery_reliable.django
from celery_reliable.contrib import sqlalchemy

ROOT = Path(celery_reliable.__file__).parents[1]

PUBLIC = {
    "ConfigurationError": "celery_reliable.errors",
    "DeadLetter": "celery_reliable.dead_letters",
    "Draining": "celery_reliable.errors",
    "DuplicateTask": "celery_reliable.errors",
    "LeaseLost": "celery_reliable.errors",
    "PayloadMismatch": "celery_reliable.errors",
    "Permanent": "celery_reliable.errors",
    "QueueFull": "celery_reliable.errors",
    "ReliableError": "celery_reliable.errors",
    "ReliableTask": "celery_reliable.task",
    "Snooze": "celery_reliable.errors",
    "StoreError": "celery_reliable.errors",
    "StoreUnavailable": "celery_reliable.errors",
    "Transient": "celery_reliable.errors",
    "Verdict": "celery_reliable.retries",
    "install": "celery_reliable.wiring",
    "scope": "celery_reliable.keys",
}


def imported_by(statement: str) -> set[str]:
    """Return the names of all modules that a fresh interpreter has after a statement."""
    program = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_the_public_names_are_exactly_these() -> None:
    """A name added or lost is a promise made or broken."""
    assert celery_reliable.__all__ == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there(name: str) -> None:
    """As an attribute, in dir(), and as an object of the module that makes it."""
    made = getattr(celery_reliable, name)

    assert name in dir(celery_reliable)
    assert made.__module__.startswith(PUBLIC[name])


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """As in any module, so that hasattr and pickle work."""
    assert not hasattr(celery_reliable, "Relaible")


def test_importing_the_package_imports_neither_celery_nor_a_driver() -> None:
    """The health probe starts in milliseconds, and a settings module may import us."""
    heavy = {"celery", "kombu", "redis", "billiard", "click", "django"}

    assert not heavy & imported_by("import celery_reliable")
    assert not heavy & imported_by("from celery_reliable import Transient, ConfigurationError, presets, settings")


def test_type_checkers_see_every_public_name() -> None:
    """The imports under TYPE_CHECKING and the names at run time are the same."""
    front = ast.parse(Path(celery_reliable.__file__).read_text())
    guarded = next(statement for statement in front.body if isinstance(statement, ast.If))
    imports = [statement for statement in guarded.body if isinstance(statement, ast.ImportFrom)]

    assert {alias.name: statement.module for statement in imports for alias in statement.names} == PUBLIC


def test_the_version_is_the_distribution_s() -> None:
    """Written twice, equal."""
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert declared
    assert celery_reliable.__version__ == declared[1]


def test_the_names_for_databases_are_exactly_these() -> None:
    """What tasks call around their own statements, for SQLAlchemy and for Django."""
    assert sqlalchemy.__all__ == ["fenced_update", "insert_once", "metadata", "outbox", "transaction", "transition"]
    assert celery_reliable.django.__all__ == ["fenced_update", "insert_once", "transition"]
    with pytest.raises(AttributeError, match="no attribute 'fence'"):
        _ = celery_reliable.django.fence
