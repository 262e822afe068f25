"""Speak to Redis over one connection that redis-py has opened.

redis-py connects, so that TLS, passwords, Sentinel and URL options work as everywhere. From then on a call is one
packed command out and one reply in, through hiredis: about a third of the time of ``Connection.send_command`` and
``read_response``, which look for health checks, push messages and decoding at each.
"""

from __future__ import annotations

import select
import socket
from typing import Any

from hiredis import Reader, ReplyError, pack_command

__all__ = ["Line", "ReplyError", "pack_command"]

_CHUNK = 65_536


class Line:
    """One connection. Not for two threads at a time; after any exception but a `ReplyError` it must be closed."""

    __slots__ = ("_connection", "_reader", "_receive", "_socket", "send")

    def __init__(self, connection: Any) -> None:  # Any: redis-py's connection, whose socket has no public name (8.1)
        """Connect. Raises what redis-py raises."""
        connection.connect()
        self._connection, self._socket = connection, connection._sock  # noqa: SLF001
        # `send` is a plain attribute: one packed command goes out, and OSError says that the connection is lost.
        self.send, self._receive = connection._sock.sendall, connection._sock.recv  # noqa: SLF001
        self._reader = Reader()

    def exchange(self, packed: bytes) -> Any:
        """Send one packed command and return its reply, see `reply`."""
        self.send(packed)
        return self.reply()

    def reply(self) -> Any:
        """Return the reply to a command that was sent: bytes, int, None, or a list of them.

        Raises `ReplyError` for an error the server sent, and OSError (TimeoutError among them) for a lost connection.
        """
        reply = self._next()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def exchange_all(self, packed: bytes, count: int) -> list[Any]:
        """Send several packed commands and return their replies, an error that the server sent as a `ReplyError` among them.

        Of commands with short replies only: the server may stop reading while nobody takes what it has to say.
        """
        self.send(packed)
        return self.receive(count)

    def receive(self, count: int) -> list[Any]:
        """Return the next replies to commands that were sent by ``send``, an error among them as a `ReplyError`."""
        return [self._next() for _ in range(count)]

    def has_replies(self) -> bool:
        """Tell at once whether reading would find something, were it that the connection is lost."""
        patience = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ValueError:  # TLS cannot peek
            return self._socket.pending() > 0 or bool(select.select([self._socket], [], [], 0)[0])
        except OSError:
            return True
        finally:
            self._socket.settimeout(patience)
        return True

    def _next(self) -> Any:
        gets = self._reader.gets
        while (reply := gets()) is False:  # not enough data yet; RESP 2 has no booleans
            self._feed()
        return reply

    def _feed(self) -> None:
        received = self._receive(_CHUNK)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(received)

    def close(self) -> None:
        """Close. May be called twice."""
        self._connection.disconnect()
