"""A Sentry of the tests' own: a server that keeps every event it is sent."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.receiver import Receiver


class Sentry:
    """Take envelopes over HTTP and keep what is in them."""

    def __init__(self) -> None:
        """Listen on a free port; `close` ends it."""
        self._items: list[tuple[str, dict[str, Any]]] = []
        self._receiver = Receiver(self._keep, answer=b"{}")

    @property
    def dsn(self) -> str:
        """Where sentry-sdk sends to."""
        return f"http://key@{self._receiver.address}/1"

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
        with self._receiver.lock:
            return [one for kind, one in self._items if kind == "check_in" and one["monitor_slug"] == slug]

    def _about(self, task_id: str, *, kind: str) -> list[dict[str, Any]]:
        with self._receiver.lock:
            return [event for found, event in self._items if found == kind and task_id in json.dumps(event)]

    def close(self) -> None:
        """Stop listening."""
        self._receiver.close()

    def _keep(self, envelope: bytes) -> None:
        lines = envelope.split(b"\n")[1:]
        for header, payload in zip(lines[::2], lines[1::2], strict=False):
            kind = json.loads(header).get("type")
            if kind in ("event", "transaction", "check_in"):
                self._items.append((kind, json.loads(payload)))
