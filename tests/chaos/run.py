"""Run one cell: break things while work goes on, let everything come to its end, and judge."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos import clocks
from tests.chaos.app import CONF
from tests.chaos.beside import beside
from tests.chaos.breaking import Breaker
from tests.chaos.collect import Collector
from tests.chaos.evidence import Bounds, Evidence
from tests.chaos.faults import Fault, Field, draw_faults
from tests.chaos.fleet import Fleet, Member, beat, producer, worker
from tests.chaos.network import JUDGE, Broker, Kind, Network
from tests.chaos.site import LEASE, Site
from tests.waiting import wait_until

_START = 60.0
_LAST = 2  # the version of the code with which a run ends


@dataclass(frozen=True, slots=True)
class Cell:
    """A broker, a pool and a store; ``clock``: with clocks that go wrong."""

    broker: Broker
    pool: str
    store: Kind
    clock: bool = False

    @property
    def name(self) -> str:
        """How it is called on the command line."""
        return "-".join((self.broker, self.pool, self.store, *(["clock"] if self.clock else [])))

    @property
    def conf(self) -> dict[str, Any]:
        """Settings that the store needs to keep what it is promised to keep."""
        return {"reliable_wait_replicas": 1} if self.store == "sentinel" else {}


_BROKERS: Final[tuple[Broker, ...]] = ("redis", "rabbitmq")
_STORES: Final[tuple[Kind, ...]] = ("redis", "sql")
MATRIX: Final = [
    Cell(broker, pool, store) for store in _STORES for pool in ("prefork", "threads", "gevent") for broker in _BROKERS
]
SPECIAL: Final = [
    Cell("redis", "prefork", "sentinel"),
    Cell("redis", "prefork", "cluster"),
    Cell("redis", "prefork", "redis", clock=True),
]
CELLS: Final = {cell.name: cell for cell in (*MATRIX, *SPECIAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to run: until so many ``seconds`` have passed, ``jobs`` were accepted and ``faults`` were made, all three.

    ``every`` is the mean time between faults, ``drain`` how long the rest may take, both in seconds.
    """

    cell: Cell
    seed: int = 1
    seconds: float = 0.0
    jobs: int = 0
    faults: int = 0
    every: float = 1.5
    rate: float = 25.0
    drain: float = 150.0
    workers: int = 3
    concurrency: int = 3
    producers: int = 2
    beats: int = 2

    @property
    def bounds(self) -> Bounds:
        """What the judge has to know of the configuration."""
        deliveries = CONF["reliable_max_deliveries"]
        return Bounds(lease=LEASE, deliveries=deliveries, broker_expires=self.cell.broker == "rabbitmq")

    @property
    def field(self) -> Field:
        """What there is to break."""
        cell = self.cell
        parties = {"w": self.workers, "p": self.producers, "b": self.beats}
        workers, producers, beats = (
            tuple(f"{letter}{number}" for number in range(1, count + 1)) for letter, count in parties.items()
        )
        return Field(cell.broker, cell.pool, workers, producers, store=cell.store, beats=beats, clock=cell.clock)


def perform(run: Run, directory: Path) -> Evidence:
    """Run a cell in a directory of its own and return the evidence."""
    field = run.field
    if run.cell.clock:
        clocks.check()
    with Network(run.cell.broker, field.parties, store=run.cell.store) as network:
        judge = _site(run, network, JUDGE, directory)
        judge.accounts.create()
        collector, fleet = Collector(judge), _fleet(run, network, judge)
        try:
            _work(run, fleet, network, judge, collector)
            collector.wait_ended(run.drain, bounds=run.bounds)
            fleet.close(kindly=True)
            return collector.evidence(run.bounds)
        finally:
            fleet.close()
            collector.close()


def _site(run: Run, network: Network, party: str, directory: Path) -> Site:
    return network.site(party, directory=directory, seed=run.seed, rate=run.rate, conf=run.cell.conf)


def _fleet(run: Run, network: Network, judge: Site) -> Fleet:
    return Fleet([_member(run, network, name, judge.directory) for name in run.field.parties], judge.ledger)


def _member(run: Run, network: Network, name: str, directory: Path) -> Member:
    site, field = _site(run, network, name, directory), run.field
    clock = clocks.FakeClock(directory, name) if field.clock else None
    if name in field.producers:
        return producer(site, clock=clock)
    if name in field.beats:
        return beat(site, clock=clock)
    return worker(site, pool=run.cell.pool, concurrency=run.concurrency, clock=clock)


def _work(run: Run, fleet: Fleet, network: Network, judge: Site, collector: Collector) -> None:
    """Let work and faults go on until there were enough, then mend everything and end those who submit."""
    fleet.start()
    wait_until(lambda: any(row.what == "end" for row in judge.ledger.rows()), _START, "the first task done")
    faults = _enough(draw_faults(run.field, seed=run.seed, every=run.every), run=run, collector=collector)
    with beside(collector.watch) as stopped:
        Breaker(fleet, network, judge).perform(faults, began=time.monotonic(), stopped=stopped)
    network.heal()
    for name in (*run.field.producers, *run.field.beats):
        fleet.retire(name)
    for name in run.field.workers:
        fleet.on(name, _bring_up_to_date)


def _enough(faults: Iterable[Fault], *, run: Run, collector: Collector) -> Iterator[Fault]:
    """Pass faults on until time, jobs and faults are enough. What is drawn may find nothing to break: the ledger counts."""
    for fault in faults:
        if fault.at >= run.seconds and collector.jobs >= run.jobs and collector.count("fault") >= run.faults:
            return
        yield fault


def _bring_up_to_date(member: Member) -> None:
    """Deploy the newest code: what older workers have parked needs it. It is no fault, but the judge must know of it."""
    if member.site.version != _LAST:
        member.site.ledger.note(
            "fault", kind="roll", name=f"last#{member.name}", target=member.name, victims=member.family
        )
        member.roll(_LAST)
        member.terminate()
