"""Tell pool children, without a network call, what their worker was told; no is the answer where there is no worker."""

from __future__ import annotations

import struct

from celery_reliable.worker.shared_page import SharedPage, page_of

VARIABLE = "CELERY_RELIABLE_FLAGS"
_SIZE = 4096
_DRAINING = 0
_INTERRUPTING = 1
_TABLE = 64  # where the process ids begin that may obey a SIGTERM, four bytes each
_PLACES = (_SIZE - _TABLE) // 4


class Flags(SharedPage):
    """The flags of one worker."""

    def __init__(self) -> None:
        """Make the page; no child may obey a SIGTERM yet."""
        super().__init__(VARIABLE, size=_SIZE)
        self._allowed = 0

    def set_draining(self) -> None:
        """Tell every task of this worker. Safe in a signal handler."""
        self._page[_DRAINING] = 1

    @property
    def draining(self) -> bool:
        """Whether this worker was told to stop; also after `close`."""
        return self._page[_DRAINING] == 1

    def set_interrupting(self) -> None:
        """Say that a body that still runs has to end now."""
        self._page[_INTERRUPTING] = 1

    def allow_termination(self, pid: int) -> None:
        """Let a child obey the SIGTERM that this worker is about to send; it ignores all others."""
        struct.pack_into("I", self._page, _TABLE + 4 * (self._allowed % _PLACES), pid)
        self._allowed += 1

    def forbid_termination(self, pid: int) -> None:
        """Forget what an earlier process of this id was allowed."""
        for place in range(min(self._allowed, _PLACES)):
            if struct.unpack_from("I", self._page, _TABLE + 4 * place)[0] == pid:
                struct.pack_into("I", self._page, _TABLE + 4 * place, 0)


def draining() -> bool:
    """Whether this worker was told to stop."""
    return _is_set(_DRAINING)


def interrupting() -> bool:
    """Whether the drain timeout is over: a body that still runs, or would begin now, has to end."""
    return _is_set(_INTERRUPTING)


def may_terminate(pid: int) -> bool:
    """Whether the worker itself wants this child to end."""
    page = page_of(VARIABLE)
    return page is not None and pid in struct.unpack_from(f"{_PLACES}I", page, _TABLE)


def _is_set(flag: int) -> bool:
    page = page_of(VARIABLE)
    return page is not None and page[flag] == 1
