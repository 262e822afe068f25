"""Tell each process of a run where everything is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_reliable.testing.processes import family
from tests.chaos.accounts import Accounts
from tests.chaos.ledger import Ledger

VARIABLE = "CR_CHAOS"
LEASE = 3.0  # the least


@dataclass(frozen=True, slots=True)
class Site:
    """What one party (a worker, a producer, the judge) sees: its own way to each server, and the shared directory.

    ``rate``: how many calls a second a producer makes at most. ``version``: of the code that it runs, 1 or 2.
    """

    directory: Path
    party: str
    broker: str
    backend: str
    store: str
    seed: int
    rate: float = 25.0
    conf: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1

    def environment(self) -> dict[str, str]:
        """Return what the environment of the party's process must have."""
        names = ("party", "broker", "backend", "store", "seed", "rate", "version")
        facts = {name: getattr(self, name) for name in names} | {"directory": str(self.directory)}
        return {VARIABLE: json.dumps({**facts, "conf": dict(self.conf)})}

    @classmethod
    def from_environment(cls) -> Site:
        """Find the site in a party's process."""
        facts = json.loads(os.environ[VARIABLE])
        return cls(**{**facts, "directory": Path(facts["directory"])})

    @property
    def ledger(self) -> Ledger:
        """The ledger, to be written as this party."""
        return Ledger(self.directory, worker=self.party)

    @property
    def accounts(self) -> Accounts:
        """The users' data."""
        return Accounts(self.directory)

    @property
    def number(self) -> Path:
        """Where a producer keeps how many calls it has begun."""
        return self.directory / f"{self.party}.begun"

    # --- warrants: who first comes to a moment dies there

    def warrant(self, moment: str, victim: str) -> None:
        """Have the next process that comes to a moment killed, alone (``process``) or with its worker (``worker``)."""
        folder = self.directory / "warrants"
        folder.mkdir(exist_ok=True)
        (folder / f"{moment}.new").write_text(victim)
        (folder / f"{moment}.new").rename(folder / moment)

    def meet(self, moment: str) -> None:
        """Come to a moment, and die there if there is a warrant."""
        warrant = self.directory / "warrants" / moment
        mine = warrant.with_name(f"{moment}.{os.getpid()}")
        try:
            warrant.rename(mine)
        except FileNotFoundError:
            return
        victims = self._victims(mine.read_text())
        kind = f"kill at {moment}"
        self.ledger.note("fault", kind=kind, name=f"{kind}#{os.getpid()}", victims=victims, target=self.party)
        for pid in [one for one in victims if one != os.getpid()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _victims(self, whom: str) -> list[int]:
        """Return this process, or its whole worker, whose session it is in."""
        return family(os.getsid(0)) if whom == "worker" else [os.getpid()]
