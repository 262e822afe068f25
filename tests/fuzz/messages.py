"""Draw messages that no worker can run."""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from celery_reliable.payloads import VERSION_HEADER

FUZZ: Final = "fuzz"  # the label under which a message that runs is noted
JSON: Final = {"content_type": "application/json", "content_encoding": "utf-8"}
CONTENT_TYPES: Final = (
    "application/x-python-serialize",
    "application/x-yaml",
    "application/x-msgpack",
    "application/x-nothing",
    "text/plain",
    "",
)
WRONG_HEADERS: Final[dict[str, tuple[Any, ...]]] = {
    "id": (7, None, [], {"a": 1}),
    "task": (7, [], {}, True),
    "eta": ("soon", "9999-12-31T23:59:59+00:00", 3, []),
    "expires": (5, "never", {}),
    "timelimit": ([1], "x", {}, 3),
    "retries": ("many", [], {}),
    "reliable": ("x", [], {"i": 1}, {"s": "x"}, {"i": [], "s": -1}),
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it goes to the broker."""

    body: bytes
    headers: dict[str, Any]
    content: dict[str, str]


def bad_messages(source: random.Random, count: int) -> Iterator[Message]:
    """Draw messages. All of them are bad, each in one way or in several."""
    kinds: tuple[Callable[[random.Random], Message], ...] = (
        _noise,
        _cut_short,
        _other_body,
        _other_content,
        _wrong_header,
        _missing_headers,
        _unknown_task,
        _newer_payload,
        _wrong_arguments,
    )
    for _ in range(count):
        yield source.choice(kinds)(source)


def _call(body: bytes, *, task: Any = "add", **headers: Any) -> Message:
    return Message(body, {"task": task, "id": uuid.uuid4().hex, **headers}, dict(JSON))


def _good_body(source: random.Random) -> bytes:
    return json.dumps([[source.randrange(9), FUZZ], {}, {}]).encode()


def _noise(source: random.Random) -> Message:
    """Bytes."""
    return _call(b"\xff" + source.randbytes(source.randrange(60)))


def _cut_short(source: random.Random) -> Message:
    body = _good_body(source)
    return _call(body[: source.randrange(1, len(body))])


def _other_body(source: random.Random) -> Message:
    """JSON that is no call."""
    while _is_call(value := json_value(source, depth=3)):
        pass
    return _call(json.dumps(value).encode())


def _is_call(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], list) and isinstance(value[1], dict)


def _other_content(source: random.Random) -> Message:
    content = {
        "content_type": source.choice(CONTENT_TYPES),
        "content_encoding": source.choice(("utf-8", "binary", "x")),
    }
    return Message(source.randbytes(20), _call(b"").headers, content)


def _wrong_header(source: random.Random) -> Message:
    name = source.choice(list(WRONG_HEADERS))
    return _call(_good_body(source), **{name: source.choice(WRONG_HEADERS[name])})


def _missing_headers(source: random.Random) -> Message:
    headers = {"task": "add"} if source.random() < 0.5 else {"x": json_value(source, depth=2)}
    return Message(_good_body(source), headers, dict(JSON))


def _unknown_task(source: random.Random) -> Message:
    return _call(_good_body(source), task=f"elsewhere.{source.randrange(5)}")


def _newer_payload(source: random.Random) -> Message:
    return _call(_good_body(source), **{VERSION_HEADER: source.randrange(2, 9)})


def _wrong_arguments(source: random.Random) -> Message:
    """A call that does not fit the task's signature."""
    return _call(json.dumps([[], {"colour": json_value(source, depth=2)}, {}]).encode())


def json_value(source: random.Random, *, depth: int) -> Any:
    """Draw any JSON value."""
    leaves = (
        None,
        True,
        0,
        -1,
        1e300,
        "",
        "\x00",
        "\ud7ff",
        source.random(),
        base64.b64encode(source.randbytes(5)).decode(),
    )
    if depth == 0 or source.random() < 0.4:
        return source.choice(leaves)
    inner = [json_value(source, depth=depth - 1) for _ in range(source.randrange(4))]
    return inner if source.random() < 0.5 else {str(value)[:5]: value for value in inner}
