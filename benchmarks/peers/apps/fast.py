"""The same, and a dead worker's messages are looked for each second, after a visibility timeout of ten."""

from __future__ import annotations

from benchmarks.peers.apps.safe import app, send

app.conf.broker_transport_options = {
    "visibility_timeout": 10,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}

__all__ = ["app", "send"]
