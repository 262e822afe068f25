"""Say what the value of one setting must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_reliable.settings.messages import shown

# A lease is renewed every third of its life, and at most once a second.
MINIMUM_LEASE_TTL = 3.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting means and may hold."""

    meaning: str
    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]
    unit: str = ""
    per_task: bool = False
    inside: Callable[[Any], str] | None = None
    """Says what is wrong inside a value that has parts, "" when nothing is."""
    secret: bool = False
    """Whether a wrong value may be shown, too."""

    def complaint(self, value: object, *, default: object) -> str | None:
        """Say what is wrong with a value and what to do, or return None."""
        if self.accepts(value):
            return (self.inside and self.inside(value)) or None
        found = type(value).__name__ if self.secret else shown(value)
        remedy = "write plain seconds (a timedelta's .total_seconds())" if self.unit == "seconds" else "correct it"
        return f"expected {self.expected}, found {found}; {remedy}, or remove it for the default {default!r}"


# The functions below return Any, as dataclasses.field does: what they make stands for the value of the field.


def seconds(
    default: float | None,
    meaning: str,
    *,
    at_least: float = 0.0,
    optional: bool = False,
    per_task: bool = False,
) -> Any:
    """Return a field for a duration; ``optional`` allows None."""
    expected = f"a number of seconds, at least {at_least:g}" + (", or None" if optional else "")

    def accepts(value: object) -> bool:
        return (optional and value is None) or is_number(value, at_least=at_least)

    def convert(value: float | None) -> float | None:
        return None if value is None else float(value)

    return _field(default, Rule(meaning, expected, accepts, convert, "seconds", per_task))


def count(
    default: int | None,
    meaning: str,
    *,
    unit: str,
    at_least: int = 0,
    at_most: float = math.inf,
    per_task: bool = False,
) -> Any:
    """Return a field for a whole number; None is one more if it is the default."""
    expected = f"a whole number, at least {at_least}" + (f" and at most {at_most}" if at_most < math.inf else "")
    expected += ", or None" if default is None else ""

    def accepts(value: object) -> bool:
        whole = isinstance(value, int) and is_number(value, at_least=at_least) and value <= at_most
        return whole or (default is None and value is None)

    return _field(default, Rule(meaning, expected, accepts, _as_is, unit, per_task))


def share(default: float | None, meaning: str, *, per_task: bool = False) -> Any:
    """Return a field for a part of a whole, from 0 to 1; with the default None it may be None."""
    optional = default is None

    def accepts(value: object) -> bool:
        if value is None:
            return optional
        return is_number(value, at_least=0.0) and float(value) <= 1.0  # type: ignore[arg-type]  # a number by now

    def convert(value: float | None) -> float | None:
        return None if value is None else float(value)

    expected = "a number from 0 to 1" + (", or None" if optional else "")
    return _field(default, Rule(meaning, expected, accepts, convert, "", per_task))


def choice(meaning: str, *choices: str, per_task: bool = False) -> Any:
    """Return a field for one of a few words, the first of which is the default."""
    expected = " or ".join(repr(word) for word in choices)

    def accepts(value: object) -> bool:
        return isinstance(value, str) and value in choices

    return _field(choices[0], Rule(meaning, expected, accepts, _as_is, "", per_task))


def flag(*, default: bool, meaning: str) -> Any:
    """Return a field for True or False."""
    return _field(default, Rule(meaning, "True or False", lambda value: isinstance(value, bool), _as_is))


def text(
    default: str | None,
    meaning: str,
    *,
    expected: str,
    pattern: str,
    per_task: bool = False,
    secret: bool = False,
) -> Any:
    """Return a field for a text that matches ``pattern``. ``secret``: it stays out of the repr."""

    def accepts(value: object) -> bool:
        return (default is None and value is None) or (isinstance(value, str) and bool(re.fullmatch(pattern, value)))

    return _field(default, Rule(meaning, expected, accepts, _as_is, "", per_task), secret=secret)


def several(meaning: str, *, expected: str, member: Callable[[Any], bool], per_task: bool = False) -> Any:
    """Return a field for a sequence, none by default, kept as a tuple."""

    def accepts(value: object) -> bool:
        return isinstance(value, tuple | list | set | frozenset) and all(map(member, value))

    return _field((), Rule(meaning, f"a list or tuple of {expected}", accepts, tuple, "", per_task))


@dataclass(frozen=True, slots=True)
class Column:
    """What one option in a table may hold."""

    expected: str
    accepts: Callable[[Any], bool]


def table(
    meaning: str,
    *,
    of: str,
    row: Callable[..., Any],
    columns: Mapping[str, Column],
    needed: tuple[str, ...] = (),
) -> Any:
    """Return a field for options of several things by name, ``{"payments": {"failures": 3}}``; none by default.

    Each thing becomes a ``row``, which knows the defaults of what is not given; one of ``needed`` must be given.
    """
    shape = f"a dict that gives each {of} a dict of options ({', '.join(columns)}), or None"

    def accepts(value: object) -> bool:
        return value is None or isinstance(value, Mapping)

    def inside(value: Mapping[Any, Any] | None) -> str:
        rows = (value or {}).items()
        problems = [_row_problem(of, name, options, columns=columns, needed=needed) for name, options in rows]
        return "; ".join(filter(None, problems))

    def convert(value: Mapping[str, Mapping[str, Any]] | None) -> Mapping[str, Any] | None:
        return value and {name: row(**options) for name, options in value.items()}

    return _field(None, Rule(meaning, shape, accepts, convert, inside=inside))


def _row_problem(
    of: str, name: object, options: object, *, columns: Mapping[str, Column], needed: tuple[str, ...]
) -> str:
    """Say the first thing that is wrong with one thing's options, "" when nothing is."""
    if not isinstance(name, str) or not name:
        return f"expected the name of a {of}, found {shown(name)}; write it as a text"
    if not isinstance(options, Mapping):
        return f"{name!r}: expected a dict of options ({', '.join(columns)}), found {shown(options)}; write one"
    for option, value in options.items():
        if option not in columns:
            return f"{name!r}: no option {option!r}, expected {', '.join(columns)}; rename or remove it"
        if not columns[option].accepts(value):
            return f"{name!r}: {option}: expected {columns[option].expected}, found {shown(value)}; correct it"
    if needed and not any(option in options for option in needed):
        return f"{name!r}: expected {' or '.join(needed)}, found neither; say what is limited, or remove the {of}"
    return ""


def plug(meaning: str, *, expected: str, accepts: Callable[[Any], bool]) -> Any:
    """Return a field for an object or its dotted path, None by default. It stays out of the repr."""

    def accepted(value: object) -> bool:
        return value is None or _is_path(value) or accepts(value)

    return _field(None, Rule(meaning, f"{expected}, its dotted path, or None", accepted, _as_is), secret=True)


def secrets(meaning: str) -> Any:
    """Return a field for secrets in order, kept as a tuple of bytes; None by default. Never shown."""

    def accepts(value: object) -> bool:
        if value is None:
            return True
        found = value if isinstance(value, list | tuple) else ()
        return bool(found) and all(isinstance(one, str | bytes) and one for one in found)

    def convert(value: Any) -> tuple[bytes, ...] | None:
        if value is None:
            return None
        return tuple(one.encode() if isinstance(one, str) else one for one in value)

    expected = "a list of texts or bytes, none of them empty, or None"  # a dict of them Celery's own reports would show
    return _field(None, Rule(meaning, expected, accepts, convert, secret=True), secret=True)


def is_number(value: object, *, at_least: float) -> bool:
    """Tell whether it is a finite number, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= at_least


def is_exception(value: object) -> bool:
    """Tell whether it is an exception class or may be the dotted path of one."""
    return _is_path(value) or (isinstance(value, type) and issubclass(value, BaseException))


def is_hook(value: object) -> bool:
    """Tell whether it can be called or may be the dotted path of such a thing."""
    return _is_path(value) or callable(value)


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[^\W\d]\w*([.:][^\W\d]\w*)+", value))


def _as_is(value: Any) -> Any:
    return value


def _field(default: Any, rule: Rule, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"rule": rule}, repr=not secret)
