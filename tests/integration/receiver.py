"""A server of the tests' own that takes what is posted to it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Give every body to ``keep``, unpacked, one at a time, and answer that it was taken."""

    def __init__(self, keep: Callable[[bytes], None], *, answer: bytes = b"") -> None:
        """Listen on a free port of loopback; `close` ends it."""
        self.lock = threading.Lock()
        """Held while a body is kept."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(keep, answer))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self, keep: Callable[[bytes], None], answer: bytes) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                with receiver.lock:
                    keep(body)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler
