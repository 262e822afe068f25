"""Run two beats through a kill, a freeze and a restart of the store: ``python -m tests.chaos.beats --seconds 600``.

Workers write what they ran into the ledger, which nothing of celery_reliable touches; `slots` judges it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_reliable.testing.processes import signal_family
from celery_reliable.testing.servers import command
from tests.chaos.fleet import Fleet, Member, beat, worker
from tests.chaos.ledger import Row
from tests.chaos.network import JUDGE, Network
from tests.chaos.report import index
from tests.chaos.site import Site
from tests.chaos.slots import Fault, Verdict, judge
from tests.waiting import wait_until

_APP = "tests.chaos.slots_app"
_BEATS = ("b1", "b2")
_WORKER = "w1"
_START = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How long beats run in all, and their leader ttl, in seconds."""

    seconds: float
    ttl: float = 15.0

    @property
    def frozen(self) -> float:
        """How long a leader is frozen: longer than its lease."""
        return 2 * self.ttl


def perform(run: Run, directory: Path) -> Verdict:
    """Run the beats in a directory of their own, and judge what the workers did."""
    with Network("redis", (*_BEATS, _WORKER)) as network:
        conf: dict[str, Any] = {"reliable_leader_ttl": run.ttl}
        sites = {
            name: network.site(name, directory=directory, seed=1, rate=0.0, conf=conf)
            for name in (*_BEATS, _WORKER, JUDGE)
        }
        at_work = worker(sites[_WORKER], pool="threads", concurrency=4, app=_APP)
        members = [at_work, *(beat(sites[name], app=_APP) for name in _BEATS)]
        fleet = Fleet(members, sites[JUDGE].ledger)
        fleet.start()
        try:
            faults = list(_Breaking(run, fleet, network, sites[JUDGE]).perform())
            _let_end(fleet, network, sites[JUDGE])
        finally:
            fleet.close()
        return judge(list(sites[JUDGE].ledger.rows()), faults, ttl=run.ttl)


class _Breaking:
    """Breaks the leader twice and the store once, a quarter of the time apart."""

    def __init__(self, run: Run, fleet: Fleet, network: Network, site: Site) -> None:
        self._run, self._fleet, self._network, self._site = run, fleet, network, site

    def perform(self) -> Iterator[Fault]:
        """Break and mend; yield what was broken when."""
        wait_until(self._elections, _START, "the first leader")
        began = time.time()
        acts = (self._kill_leader, self._freeze_leader, self._restart_store)
        for number, act in enumerate(acts, start=1):
            _rest_until(began + number * self._run.seconds / (len(acts) + 1))
            yield act()
        _rest_until(began + self._run.seconds)

    def _elections(self) -> list[Row]:
        return [row for row in self._site.ledger.rows() if row.what == "elected"]

    def _leader(self) -> Member:
        return self._fleet.members[self._elections()[-1].label]

    def _kill_leader(self) -> Fault:
        leader = self._leader()
        return self._signalled(leader, "kill", signal.SIGKILL)

    def _freeze_leader(self) -> Fault:
        leader = self._leader()
        fault = self._signalled(leader, "freeze", signal.SIGSTOP)
        _rest_until(fault.began + self._run.frozen)
        self._fleet.on(leader.name, lambda one: signal_family(one.pid, signal.SIGCONT))
        return fault

    def _signalled(self, leader: Member, kind: str, number: signal.Signals) -> Fault:
        """Send the leader a signal, and wait until the other beat leads."""
        known, began = len(self._elections()), time.time()
        self._site.ledger.note("fault", kind=kind, name=kind, target=leader.name)
        self._fleet.on(leader.name, lambda one: signal_family(one.pid, number))
        elected = wait_until(lambda: self._elections()[known:], _START, f"a leader after the {kind}")[0]
        return Fault(kind, began, elected.wall)

    def _restart_store(self) -> Fault:
        began = time.time()
        self._site.ledger.note("fault", kind="restart", name="restart", target="store")
        self._network.server("store").restart()
        return Fault("restart of the store", began, time.time())


def _rest_until(moment: float) -> None:
    """Let beats and worker go on: it is the time that is asked for, not a condition."""
    time.sleep(max(moment - time.time(), 0.0))


def _let_end(fleet: Fleet, network: Network, site: Site) -> None:
    """Stop the beats, let the worker finish what is in the queue, and stop it."""
    for name in _BEATS:
        fleet.retire(name)
    broker = network.server("broker")
    wait_until(lambda: command(broker.port, "LLEN", "celery") == 0, _START, "an empty queue")
    fleet.retire(_WORKER)


def main() -> int:
    """Run, print and keep the report; the exit code is 1 when a slot was doubled or lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.beats", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="that the beats run (default 600)")
    parser.add_argument("--ttl", type=float, default=15.0, help="reliable_leader_ttl (default 15)")
    parser.add_argument("--out", default="chaos-report", help="folder for ledger, logs and report")
    parser.add_argument(
        "--publish", metavar="DIR", type=Path, help="folder that also gets the report, without violations"
    )
    wanted = parser.parse_args()
    directory = Path(wanted.out).resolve() / "beats"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    verdict = perform(Run(seconds=wanted.seconds, ttl=wanted.ttl), directory)
    title = f"Two beats for {wanted.seconds:g} s, leader ttl {wanted.ttl:g} s: a kill, a freeze, a restart of the store"
    page = verdict.as_markdown(title=title)
    (directory / "report.md").write_text(page)
    (directory / "report.json").write_text(json.dumps(verdict.figures, indent=1) + "\n")
    sys.stdout.write(page)
    if wanted.publish and not verdict.violations:
        publish(directory, into=wanted.publish)
    return 1 if verdict.violations else 0


def publish(directory: Path, *, into: Path) -> None:
    """Copy the report to where the documentation shows it, and write the index anew."""
    for kind in ("md", "json"):
        shutil.copy(directory / f"report.{kind}", into / f"beats.{kind}")
    (into / "index.md").write_text(index(into))


if __name__ == "__main__":
    sys.exit(main())
