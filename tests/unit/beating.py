"""Beats in one process, on a clock that the test moves and a broker that may refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu.transport import memory

from celery_reliable import ReliableTask
from celery_reliable.beat import ReliableMemoryScheduler
from celery_reliable.errors import StoreUnavailable
from celery_reliable.runtime import forget_runtime, runtime_of
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import MemoryNotes, Write

START = 1_780_315_200.0  # 2026-06-01 12:00:00 UTC
TTL = 15.0
_STEP = 4.0  # seconds: less than a third of the ttl, so that a leader that is not stopped renews


class Clock:
    """Stands for the store's clock and for the monotonic clock of every beat."""

    def __init__(self) -> None:
        """Begin at `START`."""
        self.time = START

    def __call__(self) -> float:
        """Return the time."""
        return self.time


class RefusingChannel(memory.Channel):  # type: ignore[misc]  # kombu has no types
    """A broker in memory that refuses messages while it is `away`."""

    away = False
    queues: Mapping[str, Any] = {}  # not those of other tests

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        if type(self).away:
            raise ConnectionError("the broker is away")
        super()._put(queue, message, **kwargs)


class RefusingNotes(MemoryNotes):
    """Notes of a store that may be away."""

    away = False

    def write(self, shelf: str, writes: Sequence[Write]) -> list[int | None]:
        """See `Notes.write`."""
        if self.away:
            raise StoreUnavailable("the store is away")
        return super().write(shelf, writes)


class Fleet:
    """Some beats, one store, one broker."""

    def __init__(
        self, schedule: Mapping[str, Any], *, scheduler: type[Any] = ReliableMemoryScheduler, **conf: Any
    ) -> None:
        """Make the app; `start` makes beats."""
        self.clock = Clock()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._deadly: tuple[str, bool] | None = None
        channel = type("Channel", (RefusingChannel,), {"queues": {}, "away": False})
        self._channel: Any = channel
        self._transport = type(
            "Transport", (memory.Transport,), {"Channel": channel, "global_state": memory.Transport.global_state}
        )
        self.app = self._made(schedule, conf)
        self._cls = type("Tested", (scheduler,), {"monotonic": staticmethod(self.clock)})
        self.beats: list[Any] = []
        self.fired: list[tuple[float, dict[str, Any]]] = []

    def _made(self, schedule: Mapping[str, Any], conf: Mapping[str, Any]) -> Celery:
        app = Celery("beating", set_as_current=False)
        app.config_from_object("celery_reliable.presets")
        app.conf.update(
            broker_transport=self._transport,
            broker_url="memory://",
            task_publish_retry=False,
            reliable_store_url="memory://",
            reliable_leader_ttl=TTL,
            reliable_event_hooks=[self._hear],
            beat_schedule=dict(schedule),
            **conf,
        )
        app.task(name="reliable", base=ReliableTask, shared=False)(_nothing)
        app.task(name="plain", shared=False)(_nothing)
        app.finalize()
        runtime_of(app).store = store = MemoryStore(clock=self.clock)
        self.notes = store.notes = RefusingNotes(clock=self.clock)
        return app

    # --- beats

    def start(self) -> Any:
        """Start one more beat."""
        beat = self._cls(app=self.app)
        self.beats.append(beat)
        return beat

    def kill(self, beat: Any) -> None:
        """Let a beat vanish: what it has not written is lost, its lease runs out."""
        self.beats.remove(beat)
        beat._leadership._stop.set()  # the thread of a process that is gone

    def dies_at(self, event: str, *, flush: bool = False) -> None:
        """Let the beat that leads vanish at the next event of a name; ``flush``: after it wrote what it knows."""
        self._deadly = (event, flush)

    def _hear(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))
        if self._deadly is None or self._deadly[0] != name:
            return
        flush, self._deadly = self._deadly[1], None
        for beat in [one for one in self.beats if one._leadership.holds()]:
            if flush:
                beat._desk.flush()
            beat._desk._unwritten.clear()
            beat._leadership._until = float("-inf")
            self.kill(beat)

    def close(self) -> None:
        """End every beat."""
        for beat in self.beats:
            beat.close()
        forget_runtime(self.app)

    # --- time

    def run(self, seconds: float = 0.0, *, only: Any = None) -> None:
        """Let time pass, with all beats (or one) working."""
        end = self.clock.time + seconds
        while True:
            for beat in [only] if only else list(self.beats):
                self._work(beat)
            if self.clock.time >= end:
                return
            self.clock.time = min(self.clock.time + min(_STEP, max(self.pause, 0.05)), end)

    def _work(self, beat: Any) -> None:
        if beat._leadership.holds() and not self.notes.away:
            beat._leadership.renew()
        self.pause = _STEP
        for _ in range(1000):
            pause = beat.tick()
            self._collect()
            if beat not in self.beats:
                return  # it has died
            if pause:
                self.pause = min(self.pause, pause)
                return
        raise AssertionError("the loop never rests")

    def pass_time(self, seconds: float) -> None:
        """Let time pass while nobody works."""
        self.clock.time += seconds

    # --- what came of it

    @contextmanager
    def broker_away(self) -> Iterator[None]:
        """Refuse every message for a block of code."""
        self._channel.away = True
        try:
            yield
        finally:
            self._channel.away = False

    def set_broker(self, *, away: bool) -> None:
        """Refuse messages, or take them again."""
        self._channel.away = away

    def _collect(self) -> None:
        for queue in self._channel.queues.values():
            while not queue.empty():
                message = queue.get_nowait()
                headers = message["headers"]
                self.fired.append((self.clock.time, {**headers, "body": json.loads(_decoded(message))}))

    def slots(self, entry: str) -> list[float]:
        """Return the slots of an entry that were published, as seconds after the start, in the order of publishing."""
        from datetime import datetime  # noqa: PLC0415

        found = [
            headers
            for _, headers in self.fired
            if headers.get("reliable_entry") == entry and "reliable_slot" in headers
        ]
        return [datetime.fromisoformat(headers["reliable_slot"]).timestamp() - START for headers in found]

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the events of a name."""
        return [fields for name, fields in self.events if name == event]


def _nothing(*args: Any) -> None: ...


def _decoded(message: Mapping[str, Any]) -> bytes:
    import base64  # noqa: PLC0415

    body = message["body"]
    return base64.b64decode(body) if message["properties"].get("body_encoding") == "base64" else body


def every(seconds: Any, task: str = "reliable", **policies: Any) -> dict[str, Any]:
    """Return an entry of ``beat_schedule`` with policies in its headers."""
    headers = {f"reliable_{name}": value for name, value in policies.items()}
    return {"task": task, "schedule": seconds, "options": {"headers": headers}}
