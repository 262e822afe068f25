"""Keep, search, replay and discard the calls that will not run again by themselves.

A dead letter carries its call as it was made (`Envelope`), so that it can be published again byte for byte, and what
an operator asks first: what failed, where, how often, since when. The store keeps letters as opaque bytes; everything
here works on any store.
"""

from __future__ import annotations

from celery_reliable.dead_letters.record import (
    REASONS,
    DeadLetter,
    Reason,
    Replay,
    Status,
    Worker,
    arguments_of,
    letter_id_of,
)
from celery_reliable.dead_letters.search import Filter, Group, Page, Stats
from celery_reliable.dead_letters.service import DeadLetters, Report, Step
from celery_reliable.dead_letters.stack import fingerprint_of

__all__ = [
    "REASONS",
    "DeadLetter",
    "DeadLetters",
    "Filter",
    "Group",
    "Page",
    "Reason",
    "Replay",
    "Report",
    "Stats",
    "Status",
    "Step",
    "Worker",
    "arguments_of",
    "fingerprint_of",
    "letter_id_of",
]
