"""What is released says of itself what is so."""

from __future__ import annotations

import re
from pathlib import Path

import celery_reliable
from tests.oldest import constraints

ROOT = Path(celery_reliable.__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def test_oldest_versions_are_the_lower_bounds() -> None:
    """Of what the package needs, and of its features; not of tools."""
    found = dict(line.split("==") for line in constraints(PYPROJECT))
    assert {"celery", "kombu", "redis", "django", "sqlalchemy"} <= set(found)
    assert not {"pytest", "sphinx", "hatchling", "build"} & set(found)
    assert found["celery"] == "5.7"


def test_the_workflow_runs_every_python_that_is_declared() -> None:
    """And calls no target that is not there."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    declared = re.findall(r"Python :: (3\.\d+)", PYPROJECT)
    assert f"python: {declared}".replace("'", '"') in workflow
    targets = re.findall(r"run: make (\w+)", workflow)
    assert {"lint", "test", "docs", "package", "oldest"} == set(targets)
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_no_address_is_made_up() -> None:
    """Neither in the metadata nor in the policy: there is no site of the project yet."""
    for name in ("pyproject.toml", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert not re.search("https?://", (ROOT / name).read_text("utf-8")), name
