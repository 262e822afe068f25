"""What becomes of a message is decided by a pure function, whatever the message holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import serialization

from celery_reliable.keys import HEADER
from celery_reliable.payloads import VERSION_HEADER
from celery_reliable.worker import inspection
from celery_reliable.worker.inspection import Incoming, canvas_in, fields_of, identity_in, inspect

KNOWN = {"known": 1, "newer": 3}
GOOD = [[1], {"x": 2}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def headers(**changes: Any) -> dict[str, Any]:
    """Return the headers of a call that can run."""
    return {"task": "known", "id": "i", **changes}


def verdict(found: Any, body: Any = GOOD, failure: str = "") -> str:
    """Return the reason of a refusal, "" for none."""
    refusal = inspect(Incoming(found, body, failure), knows=KNOWN.get)
    return refusal.reason if refusal else ""


@pytest.mark.parametrize(
    ("found", "body"),
    [
        (headers(), GOOD),
        (headers(), [[], {}, None]),
        (headers(eta="2026-01-01T00:00:00Z", expires="20260101T000000+0100", timelimit=[None, 3.5], retries=2), GOOD),
        (headers(root_id="r", parent_id=None, group="g", stamped_headers=["a"], stamps={"a": ["b"]}), GOOD),
        (headers(task="newer", **{VERSION_HEADER: 3}), GOOD),
        (headers(reliable="somebody else's"), GOOD),
        (headers(reliable={"i": "another", "s": "x"}), GOOD),
        (headers(reliable={"i": "i", "s": 5, "l": 1, "k": "declared", "key": "k", "f": "x"}), GOOD),
        (headers(), [[], {}, {"chord": {"task": "body"}, "callbacks": [{"task": "next"}]}]),
        ({}, {"task": "known", "id": "i", "args": [1], "kwargs": {}}),
        (headers(), {"args": [], "kwargs": {}}),
    ],
)
def test_calls_of_celery_pass(found: Any, body: Any) -> None:
    """Both protocols, times in every form of ISO 8601 that Celery reads, headers of others."""
    assert verdict(found, body) == ""


def test_what_others_may_know_is_told_from_what_none_can_run() -> None:
    """Unknown tasks and newer payloads are for others, as long as the message is a call at all."""
    assert verdict(headers(task="unknown")) == "unregistered"
    assert verdict(headers(task="unknown", **{VERSION_HEADER: 9})) == "unregistered"
    assert verdict(headers(task="newer", **{VERSION_HEADER: 4})) == "incompatible"
    assert verdict(headers(task="unknown"), [1]) == "invalid"
    assert verdict(headers(task="unknown"), None, "no JSON") == "undecodable"


@pytest.mark.parametrize(
    "broken", [{"s": "x"}, {"s": -1}, {"l": 1.5}, {"k": "none"}, {"key": 5}, {"key": "\ud800"}, {"f": None}, {"n": "x"}]
)
def test_our_own_header_is_not_trusted(broken: dict[str, Any]) -> None:
    """A keeper of leases that read it later would die of it."""
    assert verdict(headers(reliable={"i": "i", **broken})) == "invalid"
    assert identity_in(headers(reliable={"i": "i", **broken})) is None


def test_refusals_do_not_repeat_arguments() -> None:
    """The text goes into logs."""
    refusal = inspect(Incoming(headers(eta="secret"), [["secret"], "secret", {}]), knows=KNOWN.get)
    assert refusal is not None
    assert "secret" not in refusal.why


def test_version_of_a_refusal_is_the_message_s() -> None:
    """A worker that takes it up must know that version."""
    refusal = inspect(Incoming(headers(task="unknown", **{VERSION_HEADER: 4}), GOOD), knows=KNOWN.get)
    assert refusal is not None
    assert (refusal.version, refusal.parks) == (4, True)


def takes_anything(*args: Any, **kwargs: Any) -> None:
    """Be called, as a task is."""


NAMES = st.sampled_from(
    (
        *("task", "id", "eta", "expires", "retries", "timelimit", "root_id", "group", "stamps", "stamped_headers"),
        *("shadow", "replaced_task_nesting", HEADER, VERSION_HEADER, "compression", "args", "kwargs"),
    )
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.sampled_from(
        ("known", "newer", "i", "\ud800", "x" * 600, "2026-01-01T00:00:00+00:00", "0001-01-01", "9999-12-31")
    )
)
FLAT = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(NAMES, PLAIN, max_size=3)
ANYTHING = FLAT | st.lists(FLAT, max_size=3) | st.dictionaries(NAMES, FLAT, max_size=3)
CANVAS = st.dictionaries(st.sampled_from(("callbacks", "errbacks", "chain", "chord")), ANYTHING, max_size=4)
OURS = st.dictionaries(st.sampled_from(("i", "s", "l", "k", "key", "f", "n")), PLAIN, max_size=7)
HEADERS = ANYTHING | st.builds(
    lambda changes, ours: {"task": "known", "id": "i", **changes, **({HEADER: ours} if ours else {})},
    st.dictionaries(NAMES, ANYTHING, max_size=3),
    OURS,
)
BODIES = ANYTHING | st.tuples(ANYTHING, ANYTHING, ANYTHING | CANVAS).map(list) | st.just(GOOD)


@settings(max_examples=2000, deadline=None)
@given(found=HEADERS, body=BODIES, failure=st.sampled_from(("", "", "", "cannot be read")))
def test_no_message_ends_the_inspection_and_what_passes_can_be_run(found: Any, body: Any, failure: str) -> None:
    """Every message is passed or refused for a reason; what passes has all that Celery and we read of it, well-formed."""
    incoming = Incoming(found, body, failure)
    refusal = inspect(incoming, knows=KNOWN.get)
    fields = fields_of(incoming)
    identity = identity_in(fields)
    if refusal is not None:
        assert refusal.reason in ("unregistered", "incompatible", "undecodable", "invalid")
        refusal.task.encode(), refusal.task_id.encode()
        assert not refusal.parks or (refusal.task and refusal.task_id and refusal.version >= 1)
        canvas_in(body[2] if isinstance(body, list) and len(body) == 3 else body)
        return
    assert KNOWN[fields["task"]] >= (fields.get(VERSION_HEADER) or 1)
    assert isinstance(fields["id"], str)
    args, kwargs = (body[0], body[1]) if isinstance(body, list) else (body.get("args", ()), body.get("kwargs", {}))
    takes_anything(*args, **kwargs)
    limits = fields.get("timelimit") or (None, None)
    assert [type(limit) in (int, float, bool, type(None)) for limit in limits] == [True, True]
    assert identity is None or len(identity.job.digest) == 16


USUAL: dict[str, Any] = {
    "task": "known",
    "id": "i",
    "retries": 0,
    "replaced_task_nesting": 0,
    "timelimit": [None, None],
    "eta": None,
    "expires": None,
    "root_id": "i",
    "parent_id": None,
    "group": None,
    "stamped_headers": None,
    "stamps": {},
    HEADER: {"i": "i", "s": 5, "l": 1},
}


@settings(max_examples=1000, deadline=None)
@given(changes=st.dictionaries(NAMES, ANYTHING, max_size=2), ours=OURS, body=BODIES)
def test_the_quick_look_passes_nothing_that_the_thorough_one_refuses(changes: Any, ours: Any, body: Any) -> None:
    """And what nearly every message is, it does pass."""
    incoming = Incoming({**USUAL, HEADER: {**USUAL[HEADER], **ours}, **changes}, body)
    if inspection._is_ordinary(incoming):
        assert list(inspection._problems(incoming, fields_of(incoming))) == []
    assert inspection._is_ordinary(Incoming(USUAL, GOOD))


@settings(max_examples=400, deadline=None)
@given(
    content=st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps(value).encode()),
    content_type=st.sampled_from(
        ("application/json", "application/x-python-serialize", "text/plain", "", "application/data")
    ),
    encoding=st.sampled_from(("utf-8", "binary", "latin-1", "no-such", "")),
)
def test_no_content_ends_the_reading(content: bytes, content_type: str, encoding: str) -> None:
    """Whatever bytes arrive under whatever name, they are read or the failure is told."""
    from kombu.message import Message  # noqa: PLC0415

    from celery_reliable.worker.intake import _read  # noqa: PLC0415

    accept = serialization.prepare_accept_content(["json"])
    message = Message(content, content_type=content_type, content_encoding=encoding, headers=headers(), accept=accept)
    incoming = _read(message)
    assert incoming.failure or verdict(incoming.headers, incoming.body) in ("", "invalid")
