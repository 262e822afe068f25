"""Read a stranger's exception without being hurt by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def peek(value: Any, *path: str) -> Any:  # Any: attributes of classes that are not imported here
    """Follow attributes (keys, for mappings) and return what lies at their end; None where anything is missing.

    A property that raises counts as missing: the exception of a stranger must not stop the judging of it.
    """
    for name in path:
        value = _step(value, name)
        if value is None:
            return None
    return value


def _step(value: Any, name: str) -> Any:
    try:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    except Exception:  # noqa: BLE001  # any property of any library; "missing" is the answer, there is nothing to log
        return None


def entry(table: Any, key: str) -> Any:  # Any: as above
    """Return what ``table.get(key)`` finds; None where that fails."""
    try:
        return table.get(key)
    except Exception:  # noqa: BLE001  # as above
        return None


def whole(value: object) -> int | None:
    """Return ``value`` if it is a whole number (an enum of numbers is), else None."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def text(exc: BaseException) -> str:
    """Return the exception's text, or "" if it cannot say."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001  # a __str__ of any library; "" is the answer, there is nothing to log
        return ""


def names(exc: BaseException) -> Iterator[str]:
    """Name the exception's class and its bases, nearest first, as ``module.Class``."""
    return map(qualified, type(exc).__mro__)


def qualified(cls: type) -> str:
    """Name one class as ``module.Class``, by the module that defines it."""
    return f"{cls.__module__}.{cls.__qualname__}"
