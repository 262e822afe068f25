"""Put what a look at the whole fleet shows into the numbers of the table of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from celery_reliable.fleet import Fleet

Values = Mapping[tuple[str, ...], float]
"""The values of one metric by its labels."""

_STATES: Final = ("consuming", "idle", "busy", "draining", "stuck", "silent", "broker_down", "store_down")


def numbers_of(fleet: Fleet | None) -> dict[str, Values]:
    """Return the values of every metric of the fleet; ``up`` 0 and nothing else when it could not be looked at."""
    up: dict[str, Values] = {"up": {(): float(fleet is not None)}}
    return up if fleet is None else {**up, **_values(fleet)}


def _values(fleet: Fleet) -> dict[str, Values]:
    states = Counter(worker.state for worker in fleet.workers)
    counts = fleet.deaths.counts
    late = [fleet.at - one.next for one in fleet.schedule if one.next is not None and one.next < fleet.at]
    return {
        **_of_queues(fleet),
        "held": {} if fleet.held is None else {(): fleet.held},
        "workers": {(state,): states.get(state, 0) for state in _STATES},
        "slots": {(): fleet.slots},
        "running": {(): fleet.running},
        "beats": {(): len(fleet.followers) + (fleet.leader is not None)},
        "leaders": {(): float(fleet.leader is not None)},
        "slot_overdue_seconds": {(): max(late, default=0.0)},
        "letters": {(): counts.get("kept", 0)},
        "letters_open": {(reason,): count for reason, count in fleet.deaths.reasons.items()},
        **{f"letters_{name}": {(): counts.get(name, 0)} for name in ("buried", "replayed", "discarded", "trimmed")},
    }


def _of_queues(fleet: Fleet) -> dict[str, Values]:
    queues = fleet.queues
    running = {one.name: fleet.running_in(one.name) for one in queues}
    known = [one for one in queues if one.waiting is not None]
    ages: Values = {
        (one.name,): 0.0 if one.oldest is None else one.oldest for one in queues if one.oldest or one.waiting == 0
    }
    return {
        "queue_waiting": {(one.name,): one.waiting or 0 for one in known},
        "queue_oldest_seconds": ages,
        "queue_running": {(name,): count for name, count in running.items()},
        "queue_load": {(one.name,): (one.waiting or 0) + running[one.name] for one in known},
        "queue_workers": {(one.name,): fleet.consumers_of(one.name) for one in queues},
    }
