"""Know which processes have worked under a node name, and which of them are gone.

A node name is used again and again, so it names nobody: an owner is a random token made by the process itself, with
host, boot, pid namespace, pid and start time as evidence. Only the same boot and the same pid namespace can prove that
a process is gone. A worker of another container or another host is never declared gone, however long it has been
silent: by then its leases are over, and with them all that a rescue could give.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from celery_reliable import processes
from celery_reliable.heartbeats import Process
from celery_reliable.stores.notes import Notes, Write

SHELF = "owners"
_TTL = 7 * 86_400.0
_MOST = 8  # owners kept of one node name; in containers of a fixed name each one that was is unproven
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Owner(Process):
    """One process that holds, or held, work, and its token."""

    token: str

    @classmethod
    def here(cls, token: str) -> Owner:
        """Describe this process."""
        return cls(**asdict(Process.current()), token=token)

    @property
    def in_sight(self) -> bool:
        """Whether this process can see the owner's process, if it lives."""
        return bool(self.boot_id and self.pid_namespace) and (self.boot_id, self.pid_namespace) == (
            processes.boot_id(),
            processes.pid_namespace(),
        )


@dataclass(frozen=True, slots=True)
class Before:
    """Who has worked under a node name before: those proven ``gone``, and those proven ``alive``."""

    gone: Sequence[Owner] = ()
    alive: Sequence[Owner] = ()


class NodeName:
    """The owners of one node name, in one note."""

    def __init__(self, name: str, *, notes: Notes) -> None:
        """Take the name and the store's notes."""
        self._name, self._notes = name, notes

    def enter(self, owner: Owner) -> Before:
        """Add an owner; return who was there before. The gone ones stay until `leave`: a rescue may be cut off."""
        others = self._change(add=owner)
        gone = [one for one in others if one.is_gone()]
        return Before(gone, [one for one in others if one.in_sight and one not in gone])

    def leave(self, tokens: Sequence[str]) -> None:
        """Forget owners whose work has been taken over."""
        self._change(remove=tokens)

    def _change(self, *, add: Owner | None = None, remove: Sequence[str] = ()) -> list[Owner]:
        """Write the list as it should be, over nothing newer; return the others in it."""
        new = [add] if add else []
        gone = {*remove, *(one.token for one in new)}
        for _ in range(_TRIES):
            note = self._notes.read(SHELF, [self._name]).get(self._name)
            others = [one for one in (_owners(note.value) if note else []) if one.token not in gone]
            value = json.dumps([asdict(one) for one in [*others, *new][-_MOST:]]).encode()
            write = Write(name=self._name, value=value, ttl=_TTL, expected=note.version if note else 0)
            if self._notes.write(SHELF, [write])[0] is not None:
                return others
        return []  # somebody writes all the time: who comes next will see


def _owners(value: bytes) -> list[Owner]:
    """Return the owners of a note, those that can be read."""
    try:
        return [Owner(**one) for one in json.loads(value)]
    except (ValueError, TypeError):
        return []  # of another version
