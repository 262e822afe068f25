"""What importing the package costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import celery_reliable

ROOT = Path(celery_reliable.__file__).parents[1]
LIST_MODULES = (
    "import json, sys; before = set(sys.modules); import {module}; print(json.dumps([*sys.modules.keys() - before]))"
)
HEAVY = {"amqp", "billiard", "celery", "click", "django", "kombu", "redis", "rich"}


def _imported_by(module: str) -> set[str]:
    code = LIST_MODULES.format(module=module)
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name.partition(".")[0] for name in json.loads(output)}


@pytest.mark.parametrize("module", ["celery_reliable", "celery_reliable.presets", "celery_reliable.errors"])
def test_importing_the_package_imports_neither_celery_nor_redis(module: str) -> None:
    """A probe and a settings module start in milliseconds."""
    assert not _imported_by(module) & HEAVY


@pytest.mark.parametrize("module", ["celery_reliable.testing.servers", "celery_reliable.testing.faultproxy"])
def test_the_servers_of_the_tests_need_only_the_standard_library(module: str) -> None:
    """The demo starts its servers before anything else is imported."""
    assert _imported_by(module) - {"celery_reliable"} <= set(sys.stdlib_module_names)


def test_the_pytest_plugin_costs_nothing_until_a_fixture_is_asked_for() -> None:
    """It is loaded in every project whose environment has celery_reliable."""
    code = LIST_MODULES.format(module="celery_reliable.testing.pytest_plugin").replace(
        "import json", "import json, pytest"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    found = {name for name in json.loads(output) if name.partition(".")[0] not in sys.stdlib_module_names}
    assert found == {"celery_reliable", "celery_reliable.testing", "celery_reliable.testing.pytest_plugin"}


def test_the_pytest_plugin_is_declared() -> None:
    """Under the name that `-p` takes as well, so that it is never loaded twice."""
    declared = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.entry-points.pytest11]")[2]
    assert '"celery_reliable.testing.pytest_plugin" = "celery_reliable.testing.pytest_plugin"' in declared
