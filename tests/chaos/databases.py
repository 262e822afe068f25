"""Kill PostgreSQL and empty Redis while orders are charged, then count the charges: ``python -m tests.chaos.databases``.

What is committed is judged by the rows of the shop's own table, and by a file in which each process noted a commit after
it; neither knows anything of celery_reliable. Customers whose order is not charged ask again, as they do. Every order is also
charged without an inbox, under the same faults: those doubles show that the faults are no formality.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import redis
import sqlalchemy

from celery_reliable.runtime import forget_runtime
from celery_reliable.stores.sql import open_sql_store
from celery_reliable.testing import servers
from celery_reliable.testing.processes import send
from tests.chaos.beside import beside
from tests.chaos.databases_app import CHARGES, Shop, make_app
from tests.integration.workers import start_worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from celery import Celery

_APP = "tests.chaos.databases_app"
_QUICK = ("--without-mingle", "--without-gossip", "--without-heartbeat")
_PATIENCE = 0.4  # seconds after which a customer asks again
_DOWN = (0.1, 0.8)  # seconds without PostgreSQL

Where = Literal["redis", "postgres"]
Fault = Literal["PostgreSQL killed", "PostgreSQL stopped at once", "Redis emptied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to run. ``store``: where claims and leases are kept. ``every``: mean seconds between two faults."""

    store: Where
    seed: int = 1
    seconds: float = 60.0
    every: float = 2.0
    rate: float = 20.0
    drain: float = 90.0
    children: int = 3
    threads: int = 12

    def faults(self) -> Iterator[Fault]:
        """Draw faults for ever, from the seed; the first three are one of each."""
        draw = random.Random(self.seed)
        kinds: list[Fault] = ["Redis emptied", "PostgreSQL killed", "PostgreSQL stopped at once"]
        yield from draw.sample(kinds, len(kinds))
        while True:
            yield draw.choice([*kinds, "Redis emptied"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was found at the end. ``charges``: of each kind, how often each order was charged."""

    orders: int
    charges: Mapping[str, Counter[int]]
    noted: Counter[int]
    faults: Counter[str]
    asked_again: int
    seconds_of_rest: float

    def doubled(self, kind: str) -> list[int]:
        """Return the orders that were charged more than once."""
        return sorted(number for number, times in self.charges[kind].items() if times > 1)

    def violations(self) -> list[str]:
        """Return what was promised and is not so."""
        charged = self.charges["inbox"]
        missing = sorted(set(range(self.orders)) - charged.keys())
        forgotten = sorted(self.noted.keys() - charged.keys())
        repeated = sorted(number for number, times in self.noted.items() if times > 1)
        found = {
            "never charged": missing,
            "charged more than once": self.doubled("inbox"),
            "noted as committed, and not in the table": forgotten,
            "noted as committed more than once": repeated,
        }
        return [f"{what}: {numbers}" for what, numbers in found.items() if numbers]


# --- run


def perform(run: Run, directory: Path) -> Evidence:
    """Run in a directory of its own, and return the evidence."""
    with servers.start_postgres() as database, servers.start_redis() as broker:
        place = broker.url.removesuffix("/0")
        store = database.url if run.store == "postgres" else f"{place}/2"
        shop = Shop(place, database.url, store, str(directory / "ledger"))
        with shop.engine.begin() as connection:
            connection.exec_driver_sql(CHARGES)
        _tables(shop, database)
        with _workers(run, shop, directory), _app(shop) as app:
            return _perform(run, app, shop, database=database, broker=broker)


def _tables(shop: Shop, database: servers.Server) -> None:
    from celery_reliable.contrib.sqlalchemy import metadata  # noqa: PLC0415  # beside its use

    metadata.create_all(shop.engine)
    store = open_sql_store(database.url)
    store.create_tables()
    store.close()


@contextmanager
def _workers(run: Run, shop: Shop, directory: Path) -> Iterator[None]:
    started = []
    try:
        for pool, concurrency in (("prefork", run.children), ("threads", run.threads)):
            given: dict[str, Any] = {"env": shop.environment(), "arguments": _QUICK, "directory": directory}
            started.append(start_worker(_APP, name=pool, pool=pool, concurrency=concurrency, **given))
        for worker in started:
            worker.wait_ready()
        yield
    finally:
        for worker in started:
            worker.kill()


@contextmanager
def _app(shop: Shop) -> Iterator[Celery]:
    app = make_app(shop)
    try:
        yield app
    finally:
        forget_runtime(app)
        app.close()
        shop.engine.dispose()


def _perform(run: Run, app: Celery, shop: Shop, *, database: servers.Server, broker: servers.RedisServer) -> Evidence:
    customers = Customers(app, run)
    with beside(customers.shop):
        faults = _break(run, database=database, broker=broker)
    rested = time.monotonic()
    with suppress(AssertionError):  # what is missing is the judge's to say
        wait_until(lambda: customers.all_charged(shop), run.drain, "every order charged")
    return Evidence(
        orders=customers.orders,
        charges=charges(shop),
        noted=Counter(map(int, Path(shop.ledger).read_text().split())),
        faults=faults,
        asked_again=customers.asked_again,
        seconds_of_rest=time.monotonic() - rested,
    )


def _break(run: Run, *, database: servers.Server, broker: servers.RedisServer) -> Counter[str]:
    """Break one thing after the other for the time; in the end everything runs."""
    draw, done, end = random.Random(run.seed), Counter[str](), time.monotonic() + run.seconds
    for fault in run.faults():
        time.sleep(draw.uniform(0.5, 1.5) * run.every)
        if time.monotonic() > end:
            return done
        done[fault] += 1
        if fault == "Redis emptied":
            with redis.Redis.from_url(broker.url) as client:
                client.flushall()
            continue
        if fault == "PostgreSQL killed":
            database.kill()
        else:
            send(database.pid, signal.SIGQUIT)  # an immediate shutdown: no checkpoint, every session cut off
            wait_until(lambda: not database.running, run.drain, "the end of PostgreSQL")
        time.sleep(draw.uniform(*_DOWN))
        database.start()
    return done


class Customers:
    """Who orders, and asks again about what was not charged."""

    def __init__(self, app: Celery, run: Run) -> None:
        """Take the shop's app."""
        self._app, self._run = app, run
        self._draw = random.Random(run.seed)
        self.orders = 0
        self.asked_again = 0
        self._asked: dict[tuple[str, int], float] = {}

    def shop(self, ended: threading.Event) -> None:
        """Order at a rate, and ask again, until it ends."""
        shop: Shop = self._app.shop
        while not ended.wait(1 / self._run.rate):
            for name in ("charge", "charge_bare"):
                self._ask(name, self.orders)
            self.orders += 1
            with suppress(sqlalchemy.exc.DBAPIError):  # away: nobody knows what is charged
                self._ask_again(charges(shop))

    def _ask(self, name: str, number: int) -> None:
        self._asked[name, number] = time.monotonic()
        seconds = random.Random(f"{self._run.seed}:{number}").choice((0.0, 0.2, 1.0, 1.5))
        with suppress(Exception):  # refused: asked again later
            self._app.tasks[name].apply_async((number, seconds), ignore_result=True, retry=False)

    def _ask_again(self, known: Mapping[str, Counter[int]]) -> bool:
        kinds = {"charge": "inbox", "charge_bare": "bare"}
        missing = [
            (name, number) for name, kind in kinds.items() for number in range(self.orders) if number not in known[kind]
        ]
        for name, number in missing:
            if time.monotonic() - self._asked[name, number] > _PATIENCE:
                self.asked_again += 1
                self._ask(name, number)
        return bool(missing)

    def all_charged(self, shop: Shop) -> bool:
        """Tell whether every order was charged, and ask again about others."""
        return not self._ask_again(charges(shop))


def charges(shop: Shop) -> dict[str, Counter[int]]:
    """Return how often each order was charged, with an inbox and without."""
    found: dict[str, Counter[int]] = {"inbox": Counter(), "bare": Counter()}
    with shop.engine.connect() as connection:
        for kind, number in connection.exec_driver_sql("SELECT kind, number FROM charge"):
            found[kind][number] += 1
    return found


# --- report


def page(run: Run, found: Evidence) -> str:
    """Return what was found as Markdown."""
    violations = found.violations()
    verdict = "Every order was charged once." if not violations else "**Broken:**"
    facts = {
        "orders": found.orders,
        "asked again": found.asked_again,
        **dict(sorted(found.faults.items())),
        "charged once, with an inbox": sum(times == 1 for times in found.charges["inbox"].values()),
        "charged more than once, with an inbox": len(found.doubled("inbox")),
        "charged more than once, without": len(found.doubled("bare")),
        "seconds from the last fault to the last charge": round(found.seconds_of_rest, 1),
    }
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    title = f"# Databases broken under load: store in {run.store}, seed {run.seed}, {run.seconds:g} s"
    return "\n".join([title, "", verdict, *violations, "", "| figure | found |", "|---|---|", *rows, ""])


def main() -> int:
    """Run with each store; the exit code is 1 when an order was not charged exactly once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.databases", description=__doc__)
    parser.add_argument("--store", nargs="+", choices=["redis", "postgres"], default=["redis", "postgres"])
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same faults")
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults with each store (default 120)")
    parser.add_argument("--every", type=float, default=2.0, help="mean seconds between two faults (default 2)")
    parser.add_argument("--rate", type=float, default=20.0, help="orders a second (default 20)")
    parser.add_argument("--out", default="chaos-report", help="folder for ledgers, logs and reports")
    wanted = parser.parse_args()
    broken = 0
    for store in wanted.store:
        run = Run(store=store, seed=wanted.seed, seconds=wanted.seconds, every=wanted.every, rate=wanted.rate)
        directory = Path(wanted.out) / f"databases-{store}-{wanted.seed}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        found = perform(run, directory)
        (directory / "report.md").write_text(page(run, found))
        sys.stdout.write(page(run, found))
        broken += len(found.violations())
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
