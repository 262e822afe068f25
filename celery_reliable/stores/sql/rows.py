"""Turn a record into a row and back: columns for what SQL judges and people look at, JSON for the rest."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_reliable.stores.records import NOTHING, Record

COLUMNS = (
    "state",
    "task_id",
    "life",
    "fence",
    "token",
    "lease_until",
    "freed",
    "ends",
    "details",
    "envelope",
    "outcome",
)
_TIMES = ("lease_until", "ends")
_APART = {*COLUMNS, "saved"}
_DEFAULTS = {item.name: item.default for item in dataclasses.fields(Record)}
_NAMES = tuple(item.name for item in dataclasses.fields(Record))
_BYTES = ("envelope", "outcome")


def microseconds(seconds: float) -> int:
    """Return a time as the database keeps it; 0 stands for never."""
    return 0 if seconds == -math.inf else round(seconds * 1e6)


def seconds(micros: int) -> float:
    """Return a time as the verbs read it."""
    return micros / 1e6 if micros else -math.inf


def row_of(record: Record) -> dict[str, Any]:
    """Return the columns of a record."""
    times = {name: microseconds(getattr(record, name)) for name in _TIMES}
    plain = {name: getattr(record, name) for name in COLUMNS if name != "details"}
    details = json.dumps(_packed(record, apart=_APART), separators=(",", ":"))
    return {**plain, **times, "details": details, "outcome": record.outcome or None}


def record_of(row: Sequence[Any], *, read_saved: Callable[[], Mapping[str, bytes]]) -> Record:
    """Return the record of a row in the order of `COLUMNS`; ``read_saved`` is asked only if something was saved."""
    columns = dict(zip(COLUMNS, row, strict=True))
    rest = json.loads(columns.pop("details"))
    envelope, outcome = columns["envelope"], columns["outcome"]
    columns |= {name: seconds(columns[name]) for name in _TIMES}
    columns |= {"envelope": None if envelope is None else bytes(envelope), "outcome": bytes(outcome or b"")}
    saved = read_saved() if rest.get("checks") else NOTHING
    return _unpacked({**columns, **rest, "freed": bool(columns["freed"])}, saved=saved)


def _packed(record: Record, *, apart: set[str]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _NAMES if name not in apart}
    return {name: _plain(value) for name, value in values.items() if value != _DEFAULTS[name]}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Record):
        # Of a life that was never claimed; what it saved is still what the next life would begin with.
        return _packed(value, apart={"saved"})
    return value


def _unpacked(values: dict[str, Any], *, saved: Mapping[str, bytes]) -> Record:
    values |= {name: values[name].encode("latin-1") for name in _BYTES if isinstance(values.get(name), str)}
    values["evidence"] = tuple(text.encode("latin-1") for text in values.get("evidence", ()))
    if values.get("fallback"):
        values["fallback"] = _unpacked(values["fallback"], saved=saved)
    return Record(**values, saved=saved)
