"""Read what is given on the command line: durations, rates, JSON, filters."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from celery_reliable.dead_letters import REASONS, Filter, Status

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")
STATUSES: Final[Mapping[str, tuple[Status, ...]]] = {
    "open": ("dead", "replaying"),
    "dead": ("dead",),
    "replaying": ("replaying",),
    "replayed": ("replayed",),
    "all": ("dead", "replaying", "replayed"),
}

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output, nothing else.")


def duration(text: str) -> float:
    """Return the seconds of ``90s``, ``2h``, ``1d12h``; a bare number is seconds."""
    text = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise click.BadParameter(f"{text!r} is not a duration: write 90s, 15m, 2h, 7d or 1d12h.")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def for_option(then: str) -> Callable[[Command], Command]:
    """Return the option that says for how long a state is to hold; ``then`` says what follows it."""
    return click.option("--for", "seconds", type=duration, metavar="TIME", help=f"90s, 15m, 2h; then {then}")


def rate(text: str) -> float:
    """Return how many a second ``10/s``, ``100/m``, ``1000/h`` are; a bare number is per second."""
    found = _RATE.fullmatch(text.strip().lower())
    if not found or float(found[1]) <= 0:
        raise click.BadParameter(f"{text!r} is not a rate: write 10/s, 100/m or 1000/h.")
    return float(found[1]) / _UNITS[found[2] or "s"]


def share(text: str) -> float:
    """Return the share that ``5%`` or ``0.05`` is."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{text!r} is not a share: write 5% or 0.05.")
    return value


def json_list(text: str) -> list[Any]:
    """Return the positional arguments written as a JSON list."""
    found = _json(text)
    if not isinstance(found, list):
        raise click.BadParameter(f"""{text!r} is not a JSON list: write '[12, "EUR"]'.""")
    return found


def json_object(text: str) -> dict[str, Any]:
    """Return the keyword arguments written as a JSON object."""
    found = _json(text)
    if not isinstance(found, dict):
        raise click.BadParameter(f"""{text!r} is not a JSON object: write '{{"amount": 12}}'.""")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is not JSON: {exc}.") from exc


def filter_options(*, status: str) -> Callable[[Command], Command]:
    """Add the options that choose letters; ``status`` is which are meant when nothing is said."""
    options = (
        click.option("--task", metavar="GLOB", help="Task name, as in 'shop.*'."),
        click.option("--reason", type=click.Choice(REASONS), metavar="REASON", help=f"Why: {', '.join(REASONS)}."),
        click.option("--error", metavar="GLOB", help="Error type, with or without module: HTTPError, 'requests.*'."),
        click.option("--queue", metavar="NAME", help="Queue the call was in."),
        click.option("--tenant", metavar="NAME", help="Tenant the call was for."),
        click.option("--text", metavar="TEXT", help="Text in arguments, message, id or key, whatever the case."),
        click.option("--group", metavar="GROUP", help="Same error in the same place, as named by stats."),
        click.option(
            "--id", "ids", multiple=True, metavar="ID", help="Letter or task id, or its beginning; repeatable."
        ),
        click.option("--older-than", type=duration, metavar="AGE", help="Failed longer ago than 30m, 2h, 7d."),
        click.option("--newer-than", type=duration, metavar="AGE", help="Failed less long ago than this."),
        click.option(
            "--status",
            type=click.Choice(tuple(STATUSES)),
            default=status,
            show_default=True,
            help="open: not replayed yet, or begun and not finished.",
        ),
    )
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def filter_of(given: Mapping[str, Any], *, now: float) -> Filter:
    """Build the filter from the options of `filter_options`; ages count back from ``now`` (unix seconds)."""
    plain = {name: value for name, value in given.items() if name not in {"older_than", "newer_than", "status"}}
    older, newer = given["older_than"], given["newer_than"]
    return Filter(
        **plain,
        statuses=STATUSES[given["status"]],
        until=None if older is None else now - older,
        since=None if newer is None else now - newer,
    )


def is_narrowed(given: Mapping[str, Any]) -> bool:
    """Tell whether any option narrows the choice, apart from the status."""
    return any(value not in {None, (), ""} for name, value in given.items() if name != "status")
