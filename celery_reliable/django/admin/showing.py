"""Put letters into words for a page.

Every text passes `printable`: a character that no page can carry (half a surrogate pair from a file that is not UTF-8,
a NUL, a bidirectional override) is shown as its escape. Django's templates then escape HTML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from django.conf import settings
from django.utils.timezone import make_naive

from celery_reliable.cli.screens import age, error_line, printable
from celery_reliable.dead_letters import DeadLetter, Group, Replay, arguments_of

LONGEST = 20_000
"""Characters of a payload or a message that a page shows."""

_CALL_LENGTH: Final = 90
_ERROR_LENGTH: Final = 140
_BYTES_SHOWN: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One letter in a list."""

    id: str
    url: str
    task: str
    call: str
    error: str
    reason: str
    status: str
    tries: int
    queue: str
    age: str
    when: datetime

    @classmethod
    def of(cls, letter: DeadLetter, *, url: str, now: float) -> Row:
        """Put a letter into a line."""
        return cls(
            id=letter.id,
            url=url,
            task=printable(letter.task) or "(no task)",
            call=short(printable(letter.call()), _CALL_LENGTH),
            error=short(error_line(letter), _ERROR_LENGTH),
            reason=letter.reason,
            status=letter.status,
            tries=letter.attempts,
            queue=printable(letter.queue),
            age=age(now - letter.last_failure),
            when=moment(letter.last_failure),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group in a list."""

    fingerprint: str
    count: int
    error: str
    tasks: str
    first: str
    last: str

    @classmethod
    def of(cls, group: Group, *, now: float) -> GroupRow:
        """Put a group into a line."""
        return cls(
            fingerprint=group.fingerprint,
            count=group.count,
            error=short(error_line(group.sample), _ERROR_LENGTH),
            tasks=short(printable(", ".join(task or "(no task)" for task in group.tasks)), _ERROR_LENGTH),
            first=age(now - group.first),
            last=age(now - group.last),
        )


def facts(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    """Iterate over what is known of a letter, as (name, text)."""
    yield "Reason", f"{letter.reason} after {_count(letter.attempts, 'attempt')}{_deliveries(letter)}"
    yield "Error", printable("\n".join(text for text in (letter.error_type, letter.error_message) if text))
    yield "Task id", printable(letter.task_id)
    yield "Queue", printable(letter.queue)
    if letter.key:
        yield "Key", printable(f"{letter.key} ({letter.kind}, life {letter.life})")
    if letter.tenant:
        yield "Tenant", printable(letter.tenant)
    if letter.worker.host:
        worker = letter.worker
        versions = f"celery {worker.celery}, celery_reliable {worker.version}"
        yield "Worker", printable(f"{worker.host} pid {worker.pid}, {versions}")
    if letter.loops:
        yield "Loops", f"died again after {_count(letter.loops, 'replay')}"
    yield from (("Evidence", printable(text)) for text in letter.evidence)
    yield from (("Kept apart", printable(reference)) for reference in letter.blobs)


def payload(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    """Iterate over the parts of the call, as (title, text)."""
    found = letter.arguments()
    if found is not None:
        yield "args", json_text(found[0])
        yield "kwargs", json_text(found[1])
    elif letter.raw is not None:
        yield letter.call(), _bytes(letter.raw.content)
    else:
        yield "arguments", printable(letter.call())
    if letter.original is not None:
        yield "before it was edited", json_text(arguments_of(letter.original))
    if letter.envelope is not None:
        yield "options and headers", json_text(letter.envelope.options)


def history(letter: DeadLetter, log: list[tuple[Any, str, str]]) -> list[tuple[Any, str, str]]:
    """Return what became of a letter as (when, who, what), newest first; a replay that the log has is told once."""
    told = " ".join(what for _, _, what in log)
    replays = [
        (moment(one.when), printable(one.who), replay_words(one)) for one in letter.replays if one.new_id not in told
    ]
    failures = [(moment(letter.last_failure), "", f"Failed, {_count(letter.attempts, 'attempt')}")]
    if letter.first_failure < letter.last_failure:
        failures.append((moment(letter.first_failure), "", "Failed for the first time"))
    return sorted([*log, *replays, *failures], key=lambda line: line[0], reverse=True)


def replay_words(entry: Replay) -> str:
    """Say what was done with a letter once."""
    state = "" if entry.published else " (begun, not known to be published)"
    return printable(f"Replayed{' with other arguments' if entry.edited else ''} as task {entry.new_id}{state}")


def json_text(value: Any) -> str:
    """Return a value as bounded, readable JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    more = (
        f"\n... {len(text) - LONGEST:,} more characters: celery reliable dlq show --json" if len(text) > LONGEST else ""
    )
    return printable(text[:LONGEST]) + more


def moment(when: float) -> datetime:
    """Return a time as the project's own times are: aware with ``USE_TZ``, else naive."""
    aware = datetime.fromtimestamp(when, tz=timezone.utc)
    return aware if settings.USE_TZ else make_naive(aware)


def short(text: str, length: int) -> str:
    """Cut a text at its end."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _bytes(content: bytes) -> str:
    more = f" ... {len(content) - _BYTES_SHOWN:,} more bytes" if len(content) > _BYTES_SHOWN else ""
    return ascii(content[:_BYTES_SHOWN].decode("latin-1")) + more


def _deliveries(letter: DeadLetter) -> str:
    return f", {_count(letter.deliveries, 'delivery', 'deliveries')}" if letter.deliveries > 1 else ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
