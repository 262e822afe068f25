"""README and documentation say what the code says."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import celery_reliable
from benchmarks.peers import report
from celery_reliable import errors
from celery_reliable.beat.facts import ZONE_HEADER
from celery_reliable.checks.catalogue import MEANINGS
from celery_reliable.cli import reliable
from celery_reliable.dead_letters import REASONS
from celery_reliable.events import EVENTS
from celery_reliable.payloads import SIGNATURE_HEADER
from celery_reliable.retries.table import RULES
from celery_reliable.settings import describe
from celery_reliable.testing import pytest_plugin
from tests.docs_scripts import DOCS, load_script

ROOT = Path(celery_reliable.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]
PICTURES = sorted((DOCS / "_static").glob("*.svg"))

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"")
SETTING_LIKE = re.compile(r"(?<!\w)reliable_[a-z_]*[a-z]")


GENERATED: dict[Path, str] = load_script("generate").pages()


def name_of(path: Path) -> str:
    """Name a page in a test's id."""
    return str(path.relative_to(ROOT))


def reference(name: str) -> str:
    """Return a page of the reference."""
    return (DOCS / "reference" / f"{name}.md").read_text("utf-8")


def examples(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in one language, in order."""
    return [body for found, body in FENCE.findall(page.read_text("utf-8")) if found == language]


def command_lines() -> Iterator[list[str]]:
    """Iterate over the shell commands on all pages, as words; comments and redirections are the shell's."""
    for page in PAGES:
        for block in examples(page, "sh"):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                yield words[: words.index(">")] if ">" in words else words


# --- the reference is complete


@pytest.mark.parametrize("page", sorted(GENERATED), ids=name_of)
def test_a_generated_page_is_what_the_code_says(page: Path) -> None:
    """After a change of the code, `make docs` writes the pages again."""
    assert page.read_text("utf-8") == GENERATED[page], f"{name_of(page)} is out of date: run `python docs/generate.py`"


@pytest.mark.parametrize("setting", [one.name for one in describe()])
def test_every_setting_has_a_row(setting: str) -> None:
    """Built or reserved."""
    assert f"| `{setting}` |" in reference("settings")


def test_every_task_option_has_a_row() -> None:
    """Those of this version; the reserved ones are named below the table."""
    page = reference("task")

    for one in describe():
        option = one.name.removeprefix("reliable_")
        if one.per_task:
            assert f"| `{option}` | `{one.name}` |" in page
    assert "| `idempotency_key` |  |" in page
    assert "| `fingerprint_args` |  |" in page


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_has_a_row_with_its_fields(event: str) -> None:
    """Level, message and every field."""
    row = next(line for line in reference("events").splitlines() if line.startswith(f"| `{event}` |"))

    assert EVENTS[event].message in row
    assert all(f"`{field}`" in row for field in EVENTS[event].fields)


def test_every_exception_has_a_row() -> None:
    """In the tree and in the table."""
    page = reference("exceptions")
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, BaseException)]

    assert classes
    for one in classes:
        assert f"| `{one.__name__}` |" in page
        assert re.search(rf"^[│├└─ ]*{one.__name__}\b", page, re.MULTILINE)


def test_every_retry_rule_has_a_row() -> None:
    """With every class it knows."""
    page = reference("retry-rules")

    for rule in RULES:
        assert f"| `{rule.name}` |" in page
        assert all(f"`{name.rpartition('.')[2]}`" in page for name in rule.classes)


def test_every_public_name_has_a_row() -> None:
    """As they are pinned in `__all__`."""
    rows = reference("api")

    for name in celery_reliable.__all__:
        assert f"`{name}`" in rows or f"`~celery_reliable.{name}`" in rows


def test_every_command_and_option_is_described() -> None:
    """Whatever is added to the command line."""
    page = reference("cli")
    generate = sys.modules["docs_generate"]
    found = list(generate.commands(reliable, ("reliable",)))

    assert ("reliable", "dlq", "replay") in [path for path, _ in found]
    for path, command in found:
        section = page.partition(f"## `{' '.join(path)}`\n")[2].partition("\n## ")[0]
        assert section, path
        for option in command.params:
            assert isinstance(option, click.Argument) or all(f"`{name}" in section for name in option.opts), option


def test_the_reasons_that_this_version_gives_are_explained() -> None:
    """With what an operator does about each."""
    page = (DOCS / "how-to" / "dead-letters.md").read_text("utf-8")
    later = {"expired"}

    assert {reason for reason in REASONS if f"| `{reason}` |" in page} == set(REASONS) - later


def test_the_list_for_production_ticks_off_every_finding() -> None:
    """Each code once: a new check belongs to a promise."""
    page = (DOCS / "how-to" / "production.md").read_text("utf-8")
    points = [line for line in page.splitlines() if line.startswith("| ☐")]
    named = [code for point in points for code in re.findall(r"`([a-z_]+)`", point.rpartition(" | ")[2])]

    assert sorted(named) == sorted(MEANINGS)


def test_the_table_of_other_queues_is_what_was_found() -> None:
    """It is written from the data of the runs."""
    page = report.PAGE.read_text("utf-8")
    written = page.partition(report.BEGIN)[2].partition(report.END)[0]

    assert written.strip() == report.table(json.loads(report.DATA.read_text("utf-8"))).strip()


def test_the_picture_of_the_costs_shows_what_was_measured() -> None:
    """Drawn from the results; every bar is kept, or the picture says so."""
    costs = load_script("draw_costs")
    results = costs.RESULTS.read_text("utf-8")

    assert costs.PICTURE.read_text("utf-8") == costs.drawn(results), (
        "run python docs/draw_costs.py, then docs/generate.py"
    )
    assert len(costs.figures(results)) > 20
    missed = costs.drawn(
        "| probe | 300 ms | at most 100 | missed |\n| replays | 2.5e+03 a second | at least 1000 | kept |"
    )
    assert re.findall(r'class="(kept|missed)"', missed) == ["missed", "kept"]
    assert "1 of 2 bars are kept" in missed


# --- what the pages say is so


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_example_compiles(page: Path) -> None:
    """They are run against a real Redis by the integration tests."""
    for body in examples(page, "python"):
        ast.parse(body, filename=name_of(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    """A mistyped name in the documentation is a mistyped name in somebody's project."""
    attributes = {field for event in EVENTS.values() for field in event.fields} | {"event"}
    known = (
        {one.name for one in describe()}
        | {f"reliable_{field}" for field in attributes}
        | {ZONE_HEADER, SIGNATURE_HEADER}
    )
    known |= {name for name in vars(pytest_plugin) if name.startswith("reliable_")}

    assert set(SETTING_LIKE.findall(page.read_text("utf-8"))) <= known


def test_every_reliable_command_on_the_pages_is_accepted() -> None:
    """Sub-command, options and their values; nothing is run."""
    lines = [words[words.index("reliable") + 1 :] for words in command_lines() if "reliable" in words]

    assert lines
    for words in lines:
        command: click.Command = reliable
        while isinstance(command, click.Group):
            name, found, words = command.resolve_command(click.Context(command), words)  # noqa: PLW2901
            assert found, name
            command = found
        command.make_context(command.name, words)


def test_every_make_target_on_the_pages_exists() -> None:
    """README promises two; some pages name others."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    texts = " ".join(page.read_text("utf-8") for page in PAGES)
    wanted = {words[1] for words in command_lines() if words[0] == "make"} | set(re.findall(r"`make (\w+)`", texts))

    assert {"demo", "test"} <= wanted
    assert [target for target in sorted(wanted) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    """On the web page of the repository, too."""
    links = ["".join(found) for found in LINK.findall(FENCE.sub("", page.read_text("utf-8")))]

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("picture", PICTURES, ids=name_of)
def test_a_picture_is_whole_and_needs_nothing_else(picture: Path) -> None:
    """Well-formed, with a title and a description for those who cannot see it, without anything remote."""
    text = picture.read_text("utf-8")
    names = {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}

    assert {"title", "desc"} <= names
    assert "image" not in names
    assert re.findall(r"(?:href|src|url)\W+(?!#)\w+:", text) == []


def test_the_readme_names_the_versions_that_the_package_declares() -> None:
    """Python and Celery."""
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    pythons = re.findall(r"Python :: (3\.\d+)", declared)

    assert pythons
    assert f"| Python | {', '.join(pythons)} |" in readme
    assert re.search(r"celery>=5\.7,<6", declared)
    assert "| Celery | 5.7 |" in readme


@pytest.mark.parametrize("promise", ["G1", "G2", "G3", "G4", "G5", "G6"])
def test_every_promise_says_what_is_so_today(promise: str) -> None:
    """No promise stands without its present state."""
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme.partition(f"**{promise} ")[2].partition("\n**G")[0]

    assert "*Today*" in section.partition("## ")[0]
