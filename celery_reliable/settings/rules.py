"""Say what the value of one setting must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_reliable.settings.messages import shown

# A lease is renewed every third of its life, and at most once a second.
MINIMUM_LEASE_TTL = 3.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting means and may hold. ``built`` is False for a reserved one: only its default is accepted."""

    meaning: str
    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]
    unit: str = ""
    per_task: bool = False
    built: bool = True

    def complaint(self, value: object, *, default: object) -> str | None:
        """Say what is wrong with a value and what to do, or return None."""
        if not self.built and value != default:
            return f"expected {default!r}, found another value; this version cannot do it yet: remove the setting"
        if self.accepts(value):
            return None
        remedy = "write plain seconds (a timedelta's .total_seconds())" if self.unit == "seconds" else "correct it"
        return f"expected {self.expected}, found {shown(value)}; {remedy}, or remove it for the default {default!r}"


# The functions below return Any, as dataclasses.field does: what they make stands for the value of the field.


def seconds(
    default: float | None,
    meaning: str,
    *,
    at_least: float = 0.0,
    optional: bool = False,
    per_task: bool = False,
    built: bool = True,
) -> Any:
    """Return a field for a duration; ``optional`` allows None."""
    expected = f"a number of seconds, at least {at_least:g}" + (", or None" if optional else "")

    def accepts(value: object) -> bool:
        return (optional and value is None) or is_number(value, at_least=at_least)

    def convert(value: float | None) -> float | None:
        return None if value is None else float(value)

    return _field(default, Rule(meaning, expected, accepts, convert, "seconds", per_task, built))


def count(
    default: int, meaning: str, *, unit: str, at_least: int = 0, at_most: float = math.inf, per_task: bool = False
) -> Any:
    """Return a field for a whole number."""
    expected = f"a whole number, at least {at_least}" + (f" and at most {at_most}" if at_most < math.inf else "")

    def accepts(value: object) -> bool:
        return isinstance(value, int) and is_number(value, at_least=at_least) and value <= at_most

    return _field(default, Rule(meaning, expected, accepts, _as_is, unit, per_task))


def share(default: float, meaning: str) -> Any:
    """Return a field for a number between 0 and 1."""

    def accepts(value: object) -> bool:
        return is_number(value, at_least=0.0) and float(value) <= 1.0  # type: ignore[arg-type]  # a number by now

    return _field(default, Rule(meaning, "a number from 0 to 1", accepts, float))


def choice(meaning: str, *choices: str, per_task: bool = False, built: bool = True) -> Any:
    """Return a field for one of a few words, the first of which is the default."""
    expected = " or ".join(repr(word) for word in choices)

    def accepts(value: object) -> bool:
        return isinstance(value, str) and value in choices

    return _field(choices[0], Rule(meaning, expected, accepts, _as_is, "", per_task, built))


def flag(*, default: bool, meaning: str) -> Any:
    """Return a field for True or False."""
    return _field(default, Rule(meaning, "True or False", lambda value: isinstance(value, bool), _as_is))


def text(
    default: str | None, meaning: str, *, expected: str, pattern: str, built: bool = True, secret: bool = False
) -> Any:
    """Return a field for a text that matches ``pattern``. ``secret``: it stays out of the repr."""

    def accepts(value: object) -> bool:
        return (default is None and value is None) or (isinstance(value, str) and bool(re.fullmatch(pattern, value)))

    return _field(default, Rule(meaning, expected, accepts, _as_is, built=built), secret=secret)


def several(meaning: str, *, expected: str, member: Callable[[Any], bool], per_task: bool = False) -> Any:
    """Return a field for a sequence, none by default, kept as a tuple."""

    def accepts(value: object) -> bool:
        return isinstance(value, tuple | list | set | frozenset) and all(map(member, value))

    return _field((), Rule(meaning, f"a list or tuple of {expected}", accepts, tuple, "", per_task))


def reserved(meaning: str, *, per_task: bool = False) -> Any:
    """Return a field for a setting whose shape is still open: only None."""
    return _field(None, Rule(meaning, "None", lambda value: value is None, _as_is, "", per_task, built=False))


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
