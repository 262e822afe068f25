"""A real sentry-sdk whose envelopes stay in the test."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.scope import Scope
from sentry_sdk.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentry_sdk.envelope import Envelope


class Heard(Transport):
    """The end of the wire: keeps what would be sent."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        """Keep what is in an envelope."""
        self.items += [(str(item.type), item.payload.json) for item in envelope.items if item.payload.json]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return everything of a kind, in order."""
        return [item for found, item in self.items if found == kind]

    @property
    def check_ins(self) -> list[dict[str, Any]]:
        """What monitors were told."""
        return self.of("check_in")

    @property
    def statuses(self) -> list[str]:
        """The same in one word each."""
        return [one["status"] for one in self.check_ins]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What became an issue."""
        return self.of("event")


@contextlib.contextmanager
def listening(**options: Any) -> Iterator[Heard]:
    """Let sentry-sdk send here for a block of code, from scopes of its own."""
    heard, before = Heard(), Scope.get_global_scope().client
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:9/1", transport=heard, default_integrations=False, release="shop@1", **options
        )
        try:
            yield heard
        finally:
            Scope.get_global_scope().set_client(before)
