"""What a test and its workers share: servers, an append-only ledger, gates that hold tasks, and planned accidents.

The ledger is a file and knows nothing of celery_reliable: what it says happened did happen.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from tests.waiting import wait_until

VARIABLE = "CR_STAGE"
LONGEST_WAIT = 60.0  # seconds that a task waits at a gate before it fails loudly

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the servers are, how the app differs from `jobs.CONF`, and the directory of ledger, gates and plans."""

    directory: Path
    broker: str
    backend: str
    store: str | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def on(cls, url: str, *, directory: Path, first: int = 0, conf: Mapping[str, Any] | None = None) -> Stage:
        """Return a stage whose broker, backend and store are three databases of one Redis, from `first` on."""
        broker, backend, store = (f"{url.removesuffix('/0')}/{database}" for database in range(first, first + 3))
        return cls(directory, broker=broker, backend=backend, store=store, conf=conf or {})

    def messages(self, queue: str = "celery") -> tuple[int, int]:
        """Return how many messages wait in a queue of the Redis broker, and how many are out and not acked.

        For a moment a message is in neither: kombu takes it from one and then puts it into the other.
        """
        with redis.Redis.from_url(self.broker) as broker, broker.pipeline() as both:
            waiting, out = both.llen(queue).hlen("unacked").execute()
        return int(waiting), int(out)

    def wait_no_message(self, timeout: float = 30.0) -> None:
        """Return once no message waits or is out, not just for a moment."""
        wait_until(lambda: all(self.messages() == (0, 0) for _ in range(3)), timeout, "no message")

    # --- across processes

    def environment(self) -> dict[str, str]:
        """Return what a worker's environment must have."""
        facts = {"directory": str(self.directory), "broker": self.broker, "backend": self.backend}
        return {VARIABLE: json.dumps({**facts, "store": self.store, "conf": dict(self.conf)})}

    @classmethod
    def from_environment(cls) -> Stage:
        """Find the stage in a worker."""
        facts = json.loads(os.environ[VARIABLE])
        return cls(**{**facts, "directory": Path(facts["directory"])})

    # --- the ledger

    def note(self, label: str, **facts: Any) -> None:
        """Append what a task did, in one write."""
        self._append("ledger", {"label": label, **facts})

    def entries(self, label: str) -> list[Entry]:
        """Return what was noted under a label, in order."""
        return [entry for entry in self._lines("ledger") if entry["label"] == label]

    def wait_entries(self, label: str, count: int, *, timeout: float = 20.0) -> list[Entry]:
        """Return the entries of a label once there are `count` of them."""
        return wait_until(
            lambda: found if len(found := self.entries(label)) >= count else [],
            timeout,
            f"{count} entries of {label!r}; ledger: {self._lines('ledger')[-20:]}",
        )

    # --- the events of celery_reliable

    def hook(self, event: str, fields: Mapping[str, Any]) -> None:
        """Keep an event, then do what is planned for it (see `plan`). The setting ``reliable_event_hooks`` names it."""
        self._append("events", {"event": event, **fields})
        for name in (fields.get("key"), fields.get("task_id"), fields.get("task")):
            self.meet(event, str(name))

    def events(self, event: str, key: str | None = None) -> list[Entry]:
        """Return the events of a name, in order; with `key` only those whose key or task id it is."""
        found = [entry for entry in self._lines("events") if entry["event"] == event]
        return [entry for entry in found if key is None or key in (entry.get("key"), entry.get("task_id"))]

    def wait_event(self, event: str, key: str, *, count: int = 1, timeout: float = 20.0) -> list[Entry]:
        """Return the events once there are `count` of them."""
        what = f"{count} times the event {event!r} of {key!r}"
        return wait_until(lambda: found if len(found := self.events(event, key)) >= count else [], timeout, what)

    def wait_event_of(self, event: str, *, timeout: float = 20.0, **facts: Any) -> list[Entry]:
        """Return the events of a name that have these facts, once there is one."""

        def found() -> list[Entry]:
            return [one for one in self.events(event) if facts.items() <= one.items()]

        return wait_until(found, timeout, f"the event {event!r} with {facts}")

    # --- gates

    def open(self, gate: str) -> None:
        """Let every task pass that waits at a gate, now or later."""
        self._path("gates", gate).touch()

    def is_open(self, gate: str) -> bool:
        """Tell whether the test has opened a gate."""
        return self._path("gates", gate).exists()

    def take(self, gate: str) -> bool:
        """Close a gate; tell whether it was open. Of many who ask one is told so."""
        try:
            self._path("gates", gate).unlink()
        except FileNotFoundError:
            return False
        return True

    def pass_gate(self, gate: str) -> None:
        """Wait, in a task, until the test opens the gate."""
        wait_until(self._path("gates", gate).exists, LONGEST_WAIT, f"gate {gate!r} open")

    # --- planned accidents

    def plan(self, moment: str, name: str, action: str) -> None:
        """Plan what happens, once, to the process that first comes to a moment.

        A moment is an event of celery_reliable, ``postrun`` (the outcome is stored, the message not acked) or whatever
        a task calls `meet` with. Actions: ``kill`` (SIGKILL to that process), ``block`` (wait for `release`).
        """
        self._plan(moment, name).write_text(action)

    def meet(self, moment: str, name: str) -> None:
        """Come to a moment, and do what is planned there."""
        plan = self._plan(moment, name)
        taken = plan.with_suffix(".taken")
        try:
            action = plan.read_text()
            plan.rename(taken)
        except FileNotFoundError:
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_until(plan.with_suffix(".released").exists, LONGEST_WAIT, f"{moment} of {name} released")

    def met(self, moment: str, name: str) -> bool:
        """Tell whether a process has come to a planned moment."""
        return self._plan(moment, name).with_suffix(".taken").exists()

    def wait_met(self, moment: str, name: str, *, timeout: float = 20.0) -> None:
        """Return once a process has come to a planned moment."""
        wait_until(lambda: self.met(moment, name), timeout, f"{moment} of {name}")

    def release(self, moment: str, name: str) -> None:
        """Let the process go on that is blocked at a moment."""
        self._plan(moment, name).with_suffix(".released").touch()

    @contextlib.contextmanager
    def blocked(self, moment: str, name: str) -> Iterator[None]:
        """Hold, for a block of code, the process that comes to a moment; the block begins when one did."""
        self.wait_met(moment, name)
        try:
            yield
        finally:
            self.release(moment, name)

    # --- files

    def _append(self, file: str, facts: Mapping[str, Any]) -> None:
        line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), **facts}, default=repr) + "\n"
        descriptor = os.open(self.directory / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def _lines(self, file: str) -> list[Entry]:
        path = self.directory / file
        if not path.exists():
            return []
        whole, _, _ = path.read_text().rpartition("\n")  # a reader may see a line that is still being written
        return [json.loads(line) for line in whole.splitlines()]

    def _plan(self, moment: str, name: str) -> Path:
        return self._path("plans", f"{quote(moment, safe='')}-{quote(name, safe='')}.plan")

    def _path(self, folder: str, name: str) -> Path:
        path = self.directory / folder / quote(name, safe="")
        path.parent.mkdir(exist_ok=True)
        return path
