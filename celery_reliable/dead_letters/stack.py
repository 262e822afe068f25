"""Read an exception: its type, message and traceback in bounded text, and the fingerprint of its place."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType, TracebackType

MESSAGE_LIMIT = 4 * 1024
TRACEBACK_LIMIT = 32 * 1024

_MACHINERY = frozenset({"celery", "celery_reliable", "kombu", "billiard", "vine", "amqp"})
_CHAIN_LIMIT = 8  # a cause of a cause ...; a chain may also bite its own tail


def type_of(exc: BaseException) -> str:
    """Name the type in full, ``requests.exceptions.HTTPError``; built-ins without their module."""
    cls = type(exc)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def message_of(exc: BaseException) -> str:
    """Return the bounded message, also of an exception whose ``__str__`` raises."""
    try:
        text = str(exc)
    except Exception as failure:  # noqa: BLE001  a user's __str__ may raise anything; the letter must be written
        text = f"<{type_of(exc)} whose text cannot be made: {type_of(failure)}>"
    return bounded(text, limit=MESSAGE_LIMIT)


def traceback_of(exc: BaseException) -> str:
    """Return the bounded traceback, causes included; it begins where the task's own code does."""
    told = traceback.format_exception(type(exc), exc, _from_own_code(exc.__traceback__))
    return bounded("".join(told), limit=TRACEBACK_LIMIT)


def _from_own_code(whole: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that led to the body; where there are no others, they are the place."""
    rest = whole
    while rest is not None and _is_machinery(rest.tb_frame):
        rest = rest.tb_next
    return rest or whole


def bounded(text: str, *, limit: int) -> str:
    """Keep head and tail of a text longer than ``limit`` characters, and say how much was left out."""
    if len(text) <= limit:
        return text
    mark = f"\n... {len(text) - limit} characters left out ...\n"
    head = (limit - len(mark)) // 2
    tail = limit - len(mark) - head
    return f"{text[:head]}{mark}{text[-tail:]}"


def fingerprint_of(exc: BaseException) -> str:
    """Return the same 12 characters for the same failure: types and stack, no line numbers, values or addresses.

    A frame counts as its file (with its folder, so that two machines agree) and function. Frames of Celery and of this
    package are left out, so that an upgrade does not change a group; a frame met again (recursion) counts once.
    """
    return digest(*_places(exc))


def digest(*parts: str) -> str:
    """Hash texts to 12 characters."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _places(exc: BaseException) -> Iterator[str]:
    for link in _chain(exc):
        yield type_of(link)
        yield from dict.fromkeys(_place(frame) for frame in _frames(link) if not _is_machinery(frame))


def _chain(exc: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None and len(chain) < _CHAIN_LIMIT:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def _frames(exc: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _line in traceback.walk_tb(exc.__traceback__))


def _is_machinery(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _MACHINERY


def _place(frame: FrameType) -> str:
    return f"{'/'.join(PurePath(frame.f_code.co_filename).parts[-2:])}:{frame.f_code.co_name}"
