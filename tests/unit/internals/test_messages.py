"""What a received message says of itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from celery_reliable import internals


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-01", True),
        ("2026-01-01T00:00:00Z", True),
        ("20260101T000000+0100", True),
        (datetime(2026, 1, 1), True),  # noqa: DTZ001  # naive on purpose
        ("", False),
        ("soon", False),
        (5, False),
        ({}, False),
        (None, False),
        (b"2026", False),
        ("9999-12-31T23:59:59+00:00", False),
        ("0001-01-01", False),
    ],
)
def test_moments_are_those_that_a_request_takes(value: Any, *, expected: bool) -> None:
    """``maybe_iso8601``, and the years that survive a change of zone."""
    assert internals.is_moment(value) is expected


def test_request_of_a_message_tells_its_canvas() -> None:
    """``Context`` takes headers and the third part of the body; ``as_execution_options`` gives what a call was sent with."""
    context = internals.context_of({"id": "i", "task": "t", "group": "g", "mine": 1}, {"chord": {"task": "body"}})
    options = context.as_execution_options()
    assert (options["task_id"], options["group_id"], options["chord"]) == ("i", "g", {"task": "body"})
    assert options["headers"] == {"mine": 1}


def test_headers_are_whole_beside_those_of_a_tracer() -> None:
    """Celery takes a header named `headers` for all there are."""
    context = internals.context_of({"id": "i", "task": "t", "mine": 1, "headers": {"trace": 2}}, {})
    assert context.headers == {"trace": 2}
    assert internals.whole_headers(context) == {"mine": 1, "trace": 2}
