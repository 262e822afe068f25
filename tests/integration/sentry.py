"""A Sentry of the tests' own: a server that keeps every event it is sent."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Sentry:
    """Take envelopes over HTTP and keep what is in them."""

    def __init__(self) -> None:
        """Listen on a free port; `close` ends it."""
        self._items: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def dsn(self) -> str:
        """Where sentry-sdk sends to."""
        return f"http://key@127.0.0.1:{self._server.server_port}/1"

    def events(self, task_id: str) -> list[dict[str, Any]]:
        """Return the events about a task; one id counts once, as it does in Sentry."""
        return list({event["event_id"]: event for event in self.sent(task_id)}.values())

    def sent(self, task_id: str) -> list[dict[str, Any]]:
        """Return everything that was sent about a task as an event."""
        return self._about(task_id, kind="event")

    def transactions(self, task_id: str) -> list[dict[str, Any]]:
        """Return the traced runs of a task."""
        return self._about(task_id, kind="transaction")

    def check_ins(self, slug: str) -> list[dict[str, Any]]:
        """Return what a monitor was told, in order."""
        with self._lock:
            return [one for kind, one in self._items if kind == "check_in" and one["monitor_slug"] == slug]

    def _about(self, task_id: str, *, kind: str) -> list[dict[str, Any]]:
        with self._lock:
            return [event for found, event in self._items if found == kind and task_id in json.dumps(event)]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                keep(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def _keep(self, envelope: bytes) -> None:
        lines = envelope.split(b"\n")[1:]
        for header, payload in zip(lines[::2], lines[1::2], strict=False):
            kind = json.loads(header).get("type")
            if kind in ("event", "transaction", "check_in"):
                with self._lock:
                    self._items.append((kind, json.loads(payload)))
