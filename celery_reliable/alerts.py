"""Tell people of what needs one: dead letters, stuck workers, queues that stand still, a schedule that does.

A subject (one group of dead letters, one worker, one queue) is told once in a while in the whole fleet, not once a failure:
a thousand letters of one group are one alert. What is sent, and how, is for the project to say.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.dead_letters.silences import Silences
from celery_reliable.errors import StoreError
from celery_reliable.stores.notes import Write

if TYPE_CHECKING:
    from celery_reliable.stores.notes import Notes

logger = logging.getLogger("celery_reliable.alerts")

SHELF: Final = "alerts"
_PATIENCE: Final = 5.0  # seconds that a task waits for its alert to be sent
_STUCK: Final = frozenset({"stuck"})

Send = Callable[["Alert"], object]
Link = Callable[[str], str]


def _nowhere(_: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``subject`` is the same each time it is about the same thing; ``text`` is one line for people.

    .. versionadded:: 0.1
    """

    event: str
    subject: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class Alerts:
    """An event hook that alerts. ``reliable_alerts`` names what sends.

    Guarantee: of one subject at most one alert in ``every`` seconds, fleet-wide; none of a silenced group. What sends may
    fail, or take long: that is logged, and no task waits for it more than some seconds. Limits: while the store is away
    nothing is sent.
    """

    events = frozenset(
        {
            *("buried", "worker_state", "heartbeat_withheld", "queue_unconsumed", "queue_stopped"),
            *("beat_stalled", "beat_failed"),
        }
    )

    def __init__(
        self,
        send: Iterable[Send],
        *,
        notes: Notes,
        every: float,
        release: str = "",
        link: Link = _nowhere,
        patience: float = _PATIENCE,
    ) -> None:
        """Take what sends, where the fleet remembers what was told, the release of this code, and where letters are shown."""
        self._send, self._link = tuple(send), link
        self._notes, self._every, self._release, self._patience = notes, every, release, patience

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take one event."""
        alert = alert_of(event, fields, link=self._link)
        if alert is None or not self._is_due(alert):
            return
        thread = threading.Thread(target=self._sent, args=(alert,), name="reliable-alert", daemon=True)
        thread.start()
        thread.join(self._patience)

    def _is_due(self, alert: Alert) -> bool:
        """Tell whether nobody has told of it lately; who asks first tells."""
        name = hashlib.blake2b(alert.subject.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        try:
            if self._is_silenced(str(alert.facts.get("fingerprint") or "")):
                return False
            write = Write(name=name, value=b"", ttl=self._every, expected=0)
            return self._notes.write(SHELF, [write])[0] is not None
        except StoreError:
            return False

    def _is_silenced(self, group: str) -> bool:
        silence = Silences(self._notes).find(group) if group else None
        return silence is not None and silence.holds(self._release)

    def _sent(self, alert: Alert) -> None:
        for send in self._send:
            try:
                send(alert)
            except Exception:  # a user's function, and whatever network is behind it
                logger.exception("alert not sent", extra={"reliable_alert": alert.subject})


def alert_of(event: str, fields: Mapping[str, Any], *, link: Link = _nowhere) -> Alert | None:
    """Say whether people want to know, and what. ``link`` has the address of a letter's page, or ""."""
    if event == "buried":
        subject = f"dead letters {fields.get('fingerprint') or fields['task']}"
        where = link(fields["letter_id"]) or f"celery reliable dlq show {fields['letter_id']}"
        text = f"{fields['task']} became a dead letter ({fields['reason']}, {fields['error']}): {where}"
        return Alert(event, subject, text, fields)
    if event in ("worker_state", "heartbeat_withheld"):
        return _of_worker(event, fields)
    if event in ("queue_unconsumed", "queue_stopped"):
        return _of_queue(event, fields)
    return Alert(
        event, f"beat {event}", f"beat is in trouble: {', '.join(f'{k} {v}' for k, v in fields.items())}", fields
    )


def _of_worker(event: str, fields: Mapping[str, Any]) -> Alert | None:
    node = fields["node"]
    if event == "heartbeat_withheld":
        return Alert(event, f"worker {node}", f"worker {node} stands still", fields)
    state = fields["state"]
    return Alert(event, f"worker {node}", f"worker {node} is {state}", fields) if state in _STUCK else None


def _of_queue(event: str, fields: Mapping[str, Any]) -> Alert | None:
    queue = fields["queue"]
    if event == "queue_unconsumed":
        return Alert(event, f"queue {queue}", f"messages wait in queue {queue}, no worker consumes it", fields)
    if fields["by"] == "hand":  # who did it knows
        return None
    text = f"queue {queue} is stopped, {fields['failed']} of {fields['runs']} runs failed"
    return Alert(event, f"stopped queue {queue}", text, fields)


def to_log(alert: Alert) -> None:
    """Write an alert to the log, at level critical: the simplest ``reliable_alerts``."""
    logger.critical("alert: %s", alert.text, extra={"reliable_alert": alert.subject, "reliable_event": alert.event})
