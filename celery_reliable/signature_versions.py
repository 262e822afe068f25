"""Say in the signatures of a canvas which payload version their arguments have.

A chain's next step is sent by the worker of the step before, perhaps after a deploy; its arguments are as old as the
chain. So whoever submits a canvas writes the versions into it, and whoever receives one takes what has none as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

from celery_reliable.payloads import VERSION_HEADER

FIRST: Final = 1
_MEMBERS: Final = ("tasks", "header", "body")
_OPTIONS: Final = ("link", "link_error", "chain", "chord")


def write_versions(canvas: Iterable[Any], *, version_of: Callable[[str], int]) -> None:
    """Write ``version_of(task)`` into every signature that names no version, unless it is the first."""
    for signature in _all(canvas):
        version = version_of(signature["task"])
        if version != FIRST:
            _write(signature, version)


def write_first(canvas: Iterable[Any], *, version_of: Callable[[str], int]) -> None:
    """Write the first version into every signature that names none, where the task has another one by now."""
    for signature in _all(canvas):
        if version_of(signature["task"]) != FIRST:
            _write(signature, FIRST)


def _write(signature: MutableMapping[str, Any], version: int) -> None:
    options = signature.setdefault("options", {})
    headers = options.get("headers") or {}
    if VERSION_HEADER not in headers:
        options["headers"] = {VERSION_HEADER: version, **headers}


def _all(found: Any) -> Iterator[MutableMapping[str, Any]]:  # Any: signatures, as Celery has them or as JSON has
    """Iterate over signatures and all that they hold."""
    if isinstance(found, list | tuple):
        for one in found:
            yield from _all(one)
    elif isinstance(found, MutableMapping) and isinstance(found.get("task"), str):
        yield found
        for holder, names in ((found.get("kwargs"), _MEMBERS), (found.get("options"), _OPTIONS)):
            if isinstance(holder, Mapping):
                yield from _all([holder[name] for name in names if holder.get(name)])
