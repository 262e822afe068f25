"""Tests share a process with others, in an order that changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
BY_THEMSELVES = {"packaging.py", "shop.py"}  # run in processes of their own, as a user would write them


def sharing(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of tasks that Celery would give to every app of the process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (
                one.lineno for one in node.decorator_list if isinstance(one, ast.Attribute) and one.attr == "task"
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "task":
            names = {keyword.arg for keyword in node.keywords}  # None: of a mapping
            if not names & {"shared", None}:
                yield node.lineno


def test_no_app_of_a_test_gives_its_tasks_to_others() -> None:
    """``app.task`` shares unless told not to: a name of one test would be a task of every app that is made later."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.name not in BY_THEMSELVES
        for line in sharing(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []
