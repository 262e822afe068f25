"""Finding the changes of signatures that break messages on their way."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_reliable import ReliableTask
from celery_reliable.cli import reliable
from celery_reliable.compat import Change, TaskSignature, compare, read_snapshot, snapshot
from celery_reliable.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def signature(body: Callable[..., Any], *, version: int = 1) -> TaskSignature:
    """Return the signature of a body."""
    return TaskSignature.of(inspect.signature(body), version=version)


def changes(before: Callable[..., Any], after: Callable[..., Any], **versions: int) -> list[tuple[str, str]]:
    """Return code and severity of what a deploy from one body to the other does."""
    old, new = signature(before), signature(after, version=versions.get("version", 1))
    return [(one.code, one.severity) for one in compare({"shop.charge": old}, {"shop.charge": new})]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda a: a, lambda a: a),
        (lambda a: a, lambda a, b=1: (a, b)),
        (lambda a, b=1: (a, b), lambda a, b=1, *, c=None: (a, b, c)),
        (lambda a: a, lambda a, **more: (a, more)),
        (lambda a, b: (a, b), lambda a, **more: (a, more)),
        (lambda a: a, lambda a=1: a),
    ],
)
def test_changes_that_take_every_old_message_are_no_errors(
    before: Callable[..., Any], after: Callable[..., Any]
) -> None:
    """What is optional may come, at the end; ``**kwargs`` takes what is gone."""
    assert [severity for _, severity in changes(before, after) if severity == "error"] == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (lambda a: a, lambda a, b: (a, b), ["required-parameter-added"]),
        (lambda a: a, lambda a, *, b: (a, b), ["required-parameter-added"]),
        (lambda a, b: (a, b), lambda a: a, ["parameter-removed"]),
        (lambda a, b: (a, b), lambda a, c: (a, c), ["parameter-renamed"]),
        (lambda a, b: (a, b), lambda b: b, ["order-changed", "parameter-removed"]),
        (lambda a, b: (a, b), lambda b, a: (a, b), ["order-changed"]),
        (lambda a, b=1: (a, b), lambda a, c=2, b=1: (a, b, c), ["order-changed"]),
        (lambda a, b: (a, b), lambda a, *, b: (a, b), ["order-changed"]),
        (lambda a, b=1: (a, b), lambda a, b: (a, b), ["parameter-became-required"]),
    ],
)
def test_changes_that_break_messages_are_named(
    before: Callable[..., Any], after: Callable[..., Any], expected: list[str]
) -> None:
    """Each by its code."""
    assert sorted(code for code, severity in changes(before, after) if severity == "error") == expected


def test_another_type_breaks_and_another_default_warns() -> None:
    """Types that are not written down are not compared."""

    def before(amount: int, currency: str = "EUR", note="") -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # on purpose
        """Take a whole amount."""

    def after(amount: str, currency: str = "USD", note: str = "") -> None:
        """Take an amount as a text."""

    assert changes(before, after) == [("type-changed", "error"), ("default-changed", "warning")]


def test_a_raised_payload_version_excuses_no_change() -> None:
    """It parks new messages at old workers; old ones come to the new worker all the same. A lowered one is an error."""
    old, new = signature(lambda a: a, version=2), signature(lambda b: b, version=3)
    assert [one.code for one in compare({"t": old}, {"t": new})] == ["parameter-renamed"]
    (change,) = compare({"t": new}, {"t": old})
    assert change.code == "version-lowered"


def test_upgrades_from_the_old_version_on_excuse_its_changes() -> None:
    """Old messages are lifted, new ones wait for new workers. A chain that begins too late, or has a gap, excuses nothing."""
    old = signature(lambda a: a, version=2)

    def new(*upgrades: int) -> TaskSignature:
        return TaskSignature.of(inspect.signature(lambda b: b), version=4, upgrades=upgrades)

    assert compare({"t": old}, {"t": new(2, 3)}) == compare({"t": old}, {"t": new(1, 2, 3)}) == []
    for known in ((), (3,), (2,)):
        assert [one.code for one in compare({"t": old}, {"t": new(*known)})] == ["parameter-renamed"]
    same = TaskSignature.of(inspect.signature(lambda b: b), version=2, upgrades=(1,))
    assert [one.code for one in compare({"t": old}, {"t": same})] == ["parameter-renamed"]


def test_a_removed_task_names_its_likely_new_name() -> None:
    """A task that moved to another module."""
    old, new = {"shop.charge": signature(lambda a: a)}, {"billing.charge": signature(lambda a: a)}
    (change,) = compare(old, new)
    assert isinstance(change, Change)
    assert (change.code, change.severity) == ("task-removed", "error")
    assert "billing.charge" in change.message
    assert compare(old, {**old, **new}) == []


def test_a_snapshot_is_read_as_it_was_written() -> None:
    """Sorted and line by line, so that a review sees what changed."""

    def body(a: int, b: list[str] | None = None, /, *rest: Any, c: float = 1.5, **more: Any) -> None:
        """Have every kind of parameter."""

    tasks = {"t": signature(body), "s": signature(lambda: None, version=3)}
    text = snapshot(tasks)
    assert read_snapshot(text, name="signatures.json") == tasks
    assert text.index('"s"') < text.index('"t"')


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "tasks": {}}', '{"format": 1, "tasks": {"t": {}}}'])
def test_what_is_no_snapshot_is_refused_with_the_remedy(text: str) -> None:
    """Empty, foreign, of another format, half a record."""
    with pytest.raises(ConfigurationError, match=r"signatures\.json: expected a snapshot.*compat snapshot >"):
        read_snapshot(text, name="signatures.json")


# --- the command


def make_app(**bodies: Callable[..., Any]) -> Celery:
    """Return an app with these reliable tasks, and a plain one."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.reliable_store_url = "memory://"
    for name, body in bodies.items():
        app.task(body, base=ReliableTask, name=f"shop.{name}", shared=False)
    app.task(plain, name="shop.plain", shared=False)
    return app


def plain(note: str) -> str:
    """Be a task that is not reliable."""
    return note


def charge(order: int, amount: int = 1) -> None:
    """Charge an order."""


def charge_exactly(order: int, amount: int) -> None:
    """Charge an order; say how much."""


def call(app: Celery, *arguments: str) -> Result:
    """Run ``celery reliable compat`` in this process."""
    context = type("CLIContext", (), {"app": app, "no_color": True})()
    return CliRunner().invoke(reliable, ["compat", *arguments], obj=context)


def test_the_command_compares_code_with_the_snapshot_beside_it(tmp_path: Path) -> None:
    """Exit code 0 while nothing breaks, 1 with a table when something does, JSON for machines."""
    before = make_app(charge=charge)
    file = tmp_path / "signatures.json"
    file.write_text(call(before, "snapshot").output)
    assert set(json.loads(file.read_text())["tasks"]) == {"shop.charge", "shop.plain"}

    same = call(before, "check", str(file))
    assert (same.exit_code, "compatible" in same.output) == (0, True)
    after = make_app(charge=charge_exactly)
    broken = call(after, "check", str(file))
    assert broken.exit_code == 1
    assert "parameter-became-required" in broken.output
    (line,) = call(after, "check", str(file), "--json").output.splitlines()
    assert json.loads(line)["task"] == "shop.charge"


def test_the_command_accepts_an_upgrade_and_an_alias(tmp_path: Path) -> None:
    """A raised version with its upgrade, a renamed task with its old name; once the alias goes, the task is gone."""
    file = tmp_path / "signatures.json"
    file.write_text(call(make_app(charge=charge), "snapshot").output)
    after = make_app()
    options = {"name": "shop.bill", "aliases": ("shop.charge",), "payload_version": 2, "upgrades": {1: dict}}
    after.task(charge_exactly, base=ReliableTask, shared=False, **options)
    answer = call(after, "check", str(file))
    assert (answer.exit_code, "compatible" in answer.output) == (0, True)

    file.write_text(call(after, "snapshot").output)
    (line,) = call(make_app(bill=charge_exactly), "check", str(file), "--json").output.splitlines()[:1]
    assert json.loads(line)["code"] in {"task-removed", "version-lowered"}
    gap = make_app()
    gap.task(charge, base=ReliableTask, name="shop.charge", payload_version=3, upgrades={1: dict}, shared=False)
    refused = call(gap, "check", str(file))
    assert (refused.exit_code, "none from 2" in refused.output) == (1, True)


def test_the_command_refuses_a_file_that_is_no_snapshot(tmp_path: Path) -> None:
    """One line, no traceback."""
    file = tmp_path / "other.json"
    file.write_text("{}")
    answer = call(make_app(), "check", str(file))
    assert (answer.exit_code, "expected a snapshot" in answer.output) == (1, True)
