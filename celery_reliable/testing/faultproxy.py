"""Put a network that misbehaves in front of a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from celery_reliable.testing.servers.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from typing_extensions import Self

T = TypeVar("T")
CHUNK = 65_536
CALL_TIMEOUT = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no seconds: close sends RST

Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]


class FaultProxy:
    """A TCP proxy on a loopback port, in front of another one (of this host, by default), whose faults are switched on and off while clients are connected.

    Clients connect to `port`. Every fault stays until `heal`. Needs no privileges: it runs in a thread.
    """

    def __init__(self, target_port: int, *, host: str = LOOPBACK) -> None:
        """Listen on a free port and pass everything on."""
        self._target = (host, target_port)
        self._latency = 0.0
        self._pairs: set[Pair] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._flowing = self._call(self._make_gate())
        self.up()

    def latency(self, seconds: float) -> None:
        """Hold every chunk back for `seconds`, in each direction."""
        self._latency = seconds

    def blackhole(self) -> None:
        """Keep connections open, accept new ones, and pass nothing, as a dropped route does."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def reset(self) -> None:
        """Break every open connection with RST; new ones are accepted."""
        self._call(self._reset())

    def down(self) -> None:
        """Break every open connection and refuse new ones."""
        self._call(self._down())

    def up(self) -> None:
        """Accept connections, on the same port as before."""
        self._call(self._up())

    def heal(self) -> None:
        """End every fault."""
        self._latency = 0.0
        self._loop.call_soon_threadsafe(self._flowing.set)
        self.up()

    def close(self) -> None:
        """Break every connection and end the thread. May be called twice."""
        if self._loop.is_closed():
            return
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT)
        self._loop.close()

    def __enter__(self) -> Self:
        """Return the proxy, which listens already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _call(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(CALL_TIMEOUT)

    async def _make_gate(self) -> asyncio.Event:
        gate = asyncio.Event()
        gate.set()
        return gate

    async def _up(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _down(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset()

    async def _reset(self) -> None:
        for client, upstream in tuple(self._pairs):
            with contextlib.suppress(OSError):  # it has just been closed by the other side
                client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.transport.abort()
            upstream.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, upstream = await asyncio.open_connection(*self._target)
        except OSError:
            client.transport.abort()
            return
        pair = (client, upstream)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pump(reader, into=upstream), self._pump(answers, into=client))
        finally:
            self._pairs.discard(pair)

    async def _pump(self, source: asyncio.StreamReader, *, into: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(CHUNK):
                await asyncio.sleep(self._latency)
                await self._flowing.wait()
                into.write(chunk)
                await into.drain()
        into.close()
