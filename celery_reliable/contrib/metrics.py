"""Name every metric once: one table behind the collectors, the reference page, the dashboard's and the rules' tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "celery_reliable_"

Source = Literal["process", "fleet"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its kind, what it means, its labels, and whether a worker or beat tells it, or the fleet's exporter."""

    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    source: Source = "process"

    def samples(self, name: str) -> tuple[str, ...]:
        """Return the names under which its values are scraped."""
        endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[self.kind]
        return tuple(f"{PREFIX}{name}{ending}" for ending in endings)


def _fleet(meaning: str, *labels: str, kind: Literal["counter", "gauge"] = "gauge") -> Metric:
    return Metric(kind, meaning, labels, "fleet")


METRICS: Final[Mapping[str, Metric]] = {
    # of a process
    "events": Metric("counter", "Events, by name: everything that the log says too.", ("event",)),
    "submitted": Metric("counter", "Submissions that the store accepted.", ("task",)),
    "runs": Metric(
        "counter",
        "Deliveries that ended, by outcome: done, retried, snoozed, interrupted, dead, skipped, stale, or duplicate (the job "
        "was over already).",
        ("task", "outcome"),
    ),
    "dead_letters": Metric("counter", "Calls that became dead letters, by reason.", ("task", "reason")),
    "runtime_seconds": Metric("histogram", "From claim to verdict.", ("task",)),
    "latency_seconds": Metric(
        "histogram", "From when a message was due (submitted, or its ETA) to its claim, by queue.", ("queue",)
    ),
    "leads": Metric("gauge", "1 in a beat that leads, 0 in one that stands by."),
    # of the fleet
    "up": _fleet("1 when store and broker answered this scrape, else 0 and nothing below is told."),
    "queue_waiting": _fleet("Messages that wait, with every list of a queue with priorities.", "queue"),
    "queue_oldest_seconds": _fleet(
        "How long the oldest waiting message has been due (Redis; RabbitMQ: of queues with a limit on age).", "queue"
    ),
    "queue_running": _fleet("Running tasks that came from a queue.", "queue"),
    "queue_load": _fleet("Waiting and running: what to scale by.", "queue"),
    "queue_workers": _fleet("Workers that consume a queue.", "queue"),
    "held": _fleet("Messages out at workers: running, prefetched, waiting for an ETA or a retry (Redis)."),
    "workers": _fleet(
        "Workers by state: consuming, idle, busy, draining, stuck, silent, broker_down, store_down.", "state"
    ),
    "slots": _fleet("Tasks that all workers could run at once."),
    "running": _fleet("Tasks that run."),
    "beats": _fleet("Beats, leading or standing by."),
    "leaders": _fleet("Beats that lead: 1, or 0 when nothing fires."),
    "slot_overdue_seconds": _fleet("How late the latest due slot of the schedule is; 0 when none is late."),
    "letters": _fleet("Dead letters kept."),
    "letters_open": _fleet("Dead letters nobody has replayed, by reason, of the newest 1 000.", "reason"),
    "letters_buried": _fleet("Dead letters ever kept.", kind="counter"),
    "letters_replayed": _fleet("Dead letters ever replayed.", kind="counter"),
    "letters_discarded": _fleet("Dead letters ever discarded.", kind="counter"),
    "letters_trimmed": _fleet(
        "Dead letters ever dropped because there were too many, or too old ones.", kind="counter"
    ),
}

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of both histograms, in seconds; the last bucket has no bound."""
