"""Find what is wrong with the servers and the fleet, by looking at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from celery_reliable import internals
from celery_reliable.checks.findings import Finding
from celery_reliable.checks.of_stores import server_findings
from celery_reliable.errors import ConfigurationError, StoreError
from celery_reliable.fleet import Fleet, WorkerState, look, sight_of
from celery_reliable.runtime import consumed_driver, runtime_of
from celery_reliable.stores import lives_of
from celery_reliable.worker.consumer_timeout import longest_limit, timeout_of

if TYPE_CHECKING:
    from celery import Celery

_SKEW: Final = 5.0  # seconds
_NAMED: Final = 3
_SLOW: Final = 10.0  # seconds: a slot is taken for so long by half of the runs of a slow task
_FAST: Final = 1.0


def live_findings(app: Celery) -> list[Finding]:
    """Look at store, broker and workers. A server that does not answer is a finding, and nothing is said of what it hides."""
    try:
        found = store_findings(app)
    except StoreError as exc:
        return [
            Finding(
                "store_down", "error", f"the store does not answer: {exc}. Start it, or correct reliable_store_url."
            )
        ]
    try:
        sight = sight_of(app)
    except internals.away() as exc:
        text = f"the broker does not answer: {exc}. Start it, or correct broker_url."
        return [*found, Finding("broker_down", "error", text)]
    try:
        fleet = look(app, sight=sight)
    finally:
        sight.close()
    return [*found, *_timeouts(app), *fleet_findings(fleet)]


def store_findings(app: Celery) -> list[Finding]:
    """Look at the store's server. Raises `StoreError`."""
    return [*server_findings(app), *overlap_lock_findings(app)]


def overlap_lock_findings(app: Celery) -> Iterator[Finding]:
    """Take the lock of a process, as a worker will. Raises `StoreError`."""
    runtime = runtime_of(app)
    if runtime.settings.overlap_lock == "lease":
        return
    try:
        lives_of(runtime.store).sign()
    except ConfigurationError as exc:
        yield Finding("overlap_lock_pooled", "error", f"{exc}. Until then leases alone decide.")


def _timeouts(app: Celery) -> Iterator[Finding]:
    if consumed_driver(app) != "amqp":
        return
    timeout = timeout_of(app.amqp.queues.values())
    limit, task = longest_limit(app)
    if limit > timeout:
        yield Finding(
            "consumer_timeout_short",
            "warning",
            f"{task} may run for {limit:g} s, and RabbitMQ takes a message back after {timeout:g} s (consumer_timeout): the task "
            "goes on, its channel is closed, and its message is delivered again. Raise consumer_timeout, or "
            "x-consumer-timeout of its queue.",
        )


# --- the fleet


def fleet_findings(fleet: Fleet) -> list[Finding]:
    """Judge what the fleet's signs of life, queues and beats tell."""
    checks = (_clocks, _versions, _brokers, _stuck, _unprobed, _unconsumed, _mixed, _leaderless)
    return [finding for check in checks for finding in check(fleet)]


def _clocks(fleet: Fleet) -> Iterator[Finding]:
    """Compare when a worker says that it wrote its sign with when the store took it."""
    off = {one.sign.process.host: fleet.at - one.age - one.sign.at for one in fleet.workers}
    wrong = {host: seconds for host, seconds in off.items() if abs(seconds) > _SKEW}
    if wrong:
        shown = ", ".join(f"{host} by {-seconds:+.0f} s" for host, seconds in list(wrong.items())[:_NAMED])
        yield Finding(
            "clock_skew",
            "warning",
            f"clocks differ from the store's: {shown}. Leases, retries and countdowns do not mind, but every eta=, expiry and log line of that host "
            "is off by as much. Let a time service set the clock.",
        )


def _versions(fleet: Fleet) -> Iterator[Finding]:
    for what in ("celery_reliable", "celery", "kombu"):
        hosts: dict[str, list[str]] = defaultdict(list)
        for one in fleet.workers:
            if one.state != "silent" and what in one.sign.versions:
                hosts[one.sign.versions[what]].append(one.sign.node)
        if len(hosts) > 1:
            shown = "; ".join(f"{version}: {', '.join(nodes[:_NAMED])}" for version, nodes in sorted(hosts.items()))
            yield Finding(
                "mixed_versions",
                "warning",
                f"the fleet runs several versions of {what} ({shown}). During a deploy that is as it must be; after one, workers "
                "were left behind. Restart them.",
            )


def _brokers(fleet: Fleet) -> Iterator[Finding]:
    nodes: dict[str, list[str]] = defaultdict(list)
    for one in fleet.workers:
        if one.state != "silent" and one.sign.broker:
            nodes[one.sign.broker].append(one.sign.node)
    if len(nodes) > 1:
        shown = "; ".join(f"{broker}: {', '.join(names[:_NAMED])}" for broker, names in sorted(nodes.items()))
        yield Finding(
            "two_fleets",
            "warning",
            f"workers of {len(nodes)} brokers keep their records in one place ({shown}): the leader of one publishes what the "
            "other has submitted to its own broker, and equal keys of both are one job. Give each fleet its own "
            "reliable_key_prefix, or, if it is one broker, spell its address alike everywhere.",
        )


def _unprobed(fleet: Fleet) -> Iterator[Finding]:
    found = [one for one in fleet.workers if one.state != "silent" and not one.sign.probed]
    if found:
        yield Finding(
            "no_probe",
            "info",
            f"{_workers(found)}: has neither reliable_heartbeat_file nor reliable_healthz_port: a supervisor sees a process that "
            "is there, and not that it hangs. Set one, and let the supervisor probe it.",
        )


def _stuck(fleet: Fleet) -> Iterator[Finding]:
    wrong = [one for one in fleet.workers if one.state in {"stuck", "silent", "broker_down", "store_down"}]
    if wrong:
        yield Finding(
            "worker_stuck",
            "error",
            f"{_workers(wrong)}: takes no work. Look at its log, then restart it: what it holds comes back by its lease.",
        )


def _workers(workers: list[WorkerState]) -> str:
    shown = ", ".join(f"{one.sign.node} ({one.state})" for one in workers[:_NAMED])
    return f"{shown} and {len(workers) - _NAMED} more" if len(workers) > _NAMED else shown


def _unconsumed(fleet: Fleet) -> Iterator[Finding]:
    for queue in fleet.queues:
        consumed = queue.consumers or fleet.consumers_of(queue.name) or queue.name in fleet.stopped
        if queue.waiting and not consumed:
            yield Finding(
                "queue_unconsumed",
                "error",
                f"{queue.waiting} messages wait in queue {queue.name}, and no worker consumes it: they wait for ever. Start a "
                f"worker with -Q {queue.name}, or empty it with `celery reliable purge -Q {queue.name}`.",
            )


def _mixed(fleet: Fleet) -> Iterator[Finding]:
    """Compare, for each queue, how long its tasks ran lately in all workers."""
    for queue, medians in sorted(fleet.medians().items()):
        slow = {task: seconds for task, seconds in medians.items() if seconds >= _SLOW}
        fast = {task: seconds for task, seconds in medians.items() if seconds <= _FAST}
        if not slow or not fast:
            continue
        yield Finding(
            "slow_beside_fast",
            "warning",
            f"in queue {queue} {_times(slow)} and {_times(fast)}: the fast ones wait until a slow one has ended. Give the slow "
            "ones a queue and workers of their own.",
        )


def _times(medians: Mapping[str, float]) -> str:
    ordered = sorted(medians.items(), key=lambda one: -one[1])
    more = f", and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(f"{task} takes {seconds:.3g} s" for task, seconds in ordered[:_NAMED]) + more


def _leaderless(fleet: Fleet) -> Iterator[Finding]:
    if fleet.followers and fleet.leader is None:
        yield Finding(
            "no_leader",
            "error",
            f"{len(fleet.followers)} beats run and none leads: nothing on the schedule fires. Within a lease one should; look at "
            "their logs, and whether they reach the store.",
        )
