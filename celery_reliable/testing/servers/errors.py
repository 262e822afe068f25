"""Say why a server is not there."""

from __future__ import annotations


class ServerUnavailable(RuntimeError):
    """A server that a test or the demo needs cannot be found, fetched or started; the text says how to get it."""
