"""The same with a visibility timeout of ten seconds, and all that its documentation names to be quick."""

from __future__ import annotations

from benchmarks.peers.apps.redis_plus import app, send

app.conf.broker_transport_options = {"visibility_timeout": 10, "requeue_check_interval": 1, "blocking_timeout": 1}

__all__ = ["app", "send"]
