"""Speak just enough of the Redis protocol to set servers up."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, BinaryIO

from celery_reliable.testing.servers.ports import LOOPBACK

if TYPE_CHECKING:
    import ssl

TIMEOUT = 5.0


class ReplyError(OSError):
    """The server answered with an error."""


def command(port: int, *words: str | int, tls: ssl.SSLContext | None = None) -> Any:
    """Send one command on a connection of its own and return the reply: str, int, None or a list of those."""
    with _connect(port, tls=tls) as connection, connection.makefile("rb") as replies:
        connection.sendall(_encode(words))
        return _read(replies)


def _connect(port: int, *, tls: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, port), TIMEOUT)
    return connection if tls is None else tls.wrap_socket(connection, server_hostname=LOOPBACK)


def _encode(words: tuple[str | int, ...]) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _read(replies: BinaryIO) -> Any:
    line = replies.readline()
    kind, text = line[:1], line[1:].strip().decode()
    if kind == b"+":
        return text
    if kind == b":":
        return int(text)
    if kind == b"$":
        return _read_bulk(replies, size=int(text))
    if kind == b"*":
        return [_read(replies) for _ in range(int(text))]
    raise ReplyError(text or "connection closed")


def _read_bulk(replies: BinaryIO, *, size: int) -> str | None:
    return None if size < 0 else replies.read(size + 2)[:-2].decode(errors="replace")
