"""Answer HTTP probes with the verdict on the last sign of life: ``/livez`` and ``/readyz``."""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from billiard.util import register_after_fork

from celery_reliable import probe
from celery_reliable.heartbeats import LifeSign

_PATIENCE = 5.0  # seconds that a client has for its request
_LIVE, _READY = ("/livez", "/healthz"), ("/readyz",)

Last = Callable[[], "LifeSign | None"]


class Healthz:
    """A small HTTP server in threads of its own. 200: yes; 503: no, and why; 404: another path.

    It answers from memory: a probe costs the broker and the store nothing.
    """

    def __init__(self, address: str | tuple[str, int], *, last: Last) -> None:
        """Take a Unix socket's path, or host and port, and where the last sign is to be had."""
        self.address = address
        self._last = last
        self._server: socketserver.BaseServer | None = None

    def open(self) -> None:
        """Listen. Does nothing when it does. Raises OSError when the address is not free, or cannot be had."""
        if self._server is not None:
            return
        handler = type("Handler", (_Handler,), {"last": staticmethod(self._last)})
        self._server = _unix(self.address, handler) if isinstance(self.address, str) else _Tcp(self.address, handler)
        register_after_fork(self._server, _forget)
        thread = threading.Thread(target=self._server.serve_forever, name="reliable-healthz", daemon=True)
        thread.start()

    def close(self) -> None:
        """Stop listening, and remove the socket. May be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        if isinstance(self.address, str):
            with suppress(FileNotFoundError):
                os.unlink(self.address)  # noqa: PTH108  # a socket, not a file


class _Handler(BaseHTTPRequestHandler):
    last: Last
    timeout = _PATIENCE
    server_version = "celery_reliable"
    sys_version = ""

    def do_GET(self) -> None:  # the name that http.server calls
        path = self.path.split("?", 1)[0]
        if path not in _LIVE + _READY:
            self._answer(HTTPStatus.NOT_FOUND, f"expected one of {', '.join(_LIVE + _READY)}")
            return
        alive, ready, why = _verdict(self.last())
        good = ready if path in _READY else alive
        self._answer(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, why)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def address_string(self) -> str:
        """Return no address: a Unix socket's client has none."""
        return ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as in the base class
        """Log nothing: probes come every few seconds."""


class _Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _verdict(sign: LifeSign | None) -> tuple[bool, bool, str]:
    if sign is None:
        return False, False, "no sign of life yet"
    return probe.judge(sign.facts(), clock=time.monotonic())


def _unix(path: str, handler: Any) -> socketserver.BaseServer:
    """Listen on a path; what a dead server left there goes, what a living one holds stays, and so does a file."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH116  # beside the other calls
            raise FileExistsError(errno.EEXIST, "expected a socket or nothing, found something else", path)
        if _answers(path):
            raise OSError(errno.EADDRINUSE, "another process listens there", path)
        os.unlink(path)  # noqa: PTH108
    return _Unix(path, handler)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # full, or not ours to ask: somebody's
    return True


def _forget(server: Any) -> None:
    """Close a pool child's copy of the socket: it would keep the port after its parent's death."""
    server.socket.close()
