"""Hold several servers as one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from celery_reliable.testing.servers.redis import RedisServer


class Group:
    """Several servers that form one service; the members in `nodes` can be killed and frozen one by one."""

    def __init__(self, nodes: tuple[RedisServer, ...]) -> None:
        """Keep the members, started or not."""
        self.nodes = nodes

    def close(self) -> None:
        """End every member and delete its files. May be called twice."""
        with contextlib.ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)

    def revive(self) -> None:
        """Bring every member back from whatever a test did to it."""
        for node in self.nodes:
            node.revive()

    def __enter__(self) -> Self:
        """Return the group, whose members run already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
