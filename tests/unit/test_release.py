"""What is released says of itself what is so."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

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


def test_what_runs_at_night_is_there() -> None:
    """Targets of the Makefile, files of the suite, and a budget that the walks read."""
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    proofs = re.findall(r"target: \[(.*)\]", nightly)[0].split(", ")
    targets = [*proofs, *re.findall(r"run: make (\w+)", nightly)]
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    walks = re.findall(r"tests/\w+/\w+\.py", nightly)
    assert walks
    assert all("CR_TEST_EXAMPLES" in (ROOT / path).read_text("utf-8") for path in walks)


def test_no_address_is_made_up() -> None:
    """Neither in the metadata nor in the policy: there is no site of the project yet."""
    for name in ("pyproject.toml", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert not re.search("https?://", (ROOT / name).read_text("utf-8")), name


def test_the_extras_that_are_promised_are_there() -> None:
    """Whoever installs one gets what it says."""
    extras = PYPROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    found = set(re.findall(r"^([a-z-]+) = \[", extras, re.MULTILINE))
    assert {"django", "sql", "sentry", "prometheus", "claim-check", "test", "demo", "docs"} <= found


def test_the_licence_is_the_one_that_is_declared() -> None:
    """Three clauses, in the file as in the metadata."""
    licence = (ROOT / "LICENSE").read_text("utf-8")
    assert 'license = "BSD-3-Clause"' in PYPROJECT
    assert licence.startswith("BSD 3-Clause License\n")
    assert [licence.count(f"\n{number}. ") for number in (1, 2, 3, 4)] == [1, 1, 1, 0]


def test_ci_runs_lint_documentation_and_tests_and_nothing_else() -> None:
    """So that nobody needs more than the targets of the Makefile to see what it sees."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert lines == ["set -eu", 'cd "$(dirname "$0")/.."', "make lint docs test </dev/null"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_a_commit_is_checked_by_what_ci_runs() -> None:
    """Style, types and imports: pre-commit has no versions of its own."""
    assert re.findall("entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text("utf-8")) == ["make lint"]
    lint = _recipe("lint")
    assert ["ruff check ." in lint, "ruff format --check ." in lint] == [True, True]
    assert re.search(r"\$\(MAKE\) types imports", lint)
    assert ("/mypy" in _recipe("types"), "/lint-imports" in _recipe("imports")) == (True, True)


@pytest.mark.parametrize(("target", "program"), [("demo", "-m example_project.demo"), ("test", "-m pytest")])
def test_a_newcomer_s_two_commands_set_themselves_up(target: str, program: str) -> None:
    """In an environment of the project's own, made behind a stamp."""
    recipe = _recipe(target)
    assert f"$(VENV)/.{target}" in recipe.splitlines()[0]
    assert program in recipe


def _recipe(target: str) -> str:
    """Return a target's rule: its first line, and those that begin with a tab."""
    found = re.search(rf"^{target}:.*\n(\t.*\n)+", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert found, target
    return found[0]
