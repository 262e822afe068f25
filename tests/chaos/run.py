"""Run one cell: break things while work goes on, let everything come to its end, and judge."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.app import CONF
from tests.chaos.breaking import Breaker
from tests.chaos.collect import Collector
from tests.chaos.evidence import Bounds, Evidence
from tests.chaos.faults import Field, draw_faults
from tests.chaos.fleet import Fleet, producer, worker
from tests.chaos.network import JUDGE, Broker, Network
from tests.chaos.site import LEASE, Site
from tests.waiting import wait_until

_START = 60.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A broker and a pool."""

    broker: Broker
    pool: str

    @property
    def name(self) -> str:
        """How it is called on the command line."""
        return f"{self.broker}-{self.pool}"


CELLS = {
    cell.name: cell
    for cell in (
        Cell("redis", "prefork"),
        Cell("redis", "threads"),
        Cell("redis", "gevent"),
        Cell("rabbitmq", "prefork"),
        Cell("rabbitmq", "threads"),
        Cell("rabbitmq", "gevent"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to run. ``every`` is the mean time between faults, ``drain`` how long the rest may take, both in seconds."""

    cell: Cell
    seed: int = 1
    seconds: float = 60.0
    every: float = 1.5
    rate: float = 25.0
    drain: float = 90.0
    workers: int = 3
    concurrency: int = 3
    producers: int = 2

    @property
    def bounds(self) -> Bounds:
        """What the judge has to know of the configuration."""
        deliveries = CONF["reliable_max_deliveries"]
        return Bounds(lease=LEASE, deliveries=deliveries, broker_expires=self.cell.broker == "rabbitmq")

    @property
    def field(self) -> Field:
        """What there is to break."""
        workers = tuple(f"w{number}" for number in range(1, self.workers + 1))
        producers = tuple(f"p{number}" for number in range(1, self.producers + 1))
        return Field(self.cell.broker, self.cell.pool, workers, producers)


def perform(run: Run, directory: Path) -> Evidence:
    """Run a cell in a directory of its own and return the evidence."""
    field = run.field
    with Network(run.cell.broker, (*field.workers, *field.producers)) as network:
        judge = _site(run, network, JUDGE, directory)
        judge.accounts.create()
        collector, fleet = Collector(judge), _fleet(run, network, judge)
        try:
            _work(run, fleet, network, judge)
            collector.wait_ended(run.drain, bounds=run.bounds)
            fleet.close(kindly=True)
            return collector.evidence(run.bounds)
        finally:
            fleet.close()
            collector.close()


def _site(run: Run, network: Network, party: str, directory: Path) -> Site:
    return network.site(party, directory=directory, seed=run.seed, rate=run.rate, conf={})


def _fleet(run: Run, network: Network, judge: Site) -> Fleet:
    sites = {name: _site(run, network, name, judge.directory) for name in (*run.field.workers, *run.field.producers)}
    workers = [worker(sites[name], pool=run.cell.pool, concurrency=run.concurrency) for name in run.field.workers]
    return Fleet([*workers, *(producer(sites[name]) for name in run.field.producers)], judge.ledger)


def _work(run: Run, fleet: Fleet, network: Network, judge: Site) -> None:
    """Let work and faults go on for the time, then mend everything and end the producers."""
    fleet.start()
    wait_until(lambda: any(row.what == "end" for row in judge.ledger.rows()), _START, "the first task done")
    faults = draw_faults(run.field, seed=run.seed, seconds=run.seconds, every=run.every)
    Breaker(fleet, network, judge).perform(faults, began=time.monotonic(), stopped=threading.Event())
    network.heal()
    for name in run.field.producers:
        fleet.retire(name)
