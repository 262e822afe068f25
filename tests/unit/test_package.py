"""What importing the package costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
