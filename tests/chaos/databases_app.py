"""A shop that charges orders in PostgreSQL: with an inbox, and without one to compare.

``celery -A tests.chaos.databases_app worker``
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy
from celery import Celery

from celery_reliable import ReliableTask

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

VARIABLE = "CR_CHAOS_SHOP"
LEASE = 3.0  # the least
CHARGES = "CREATE TABLE charge (number integer NOT NULL, kind varchar(8) NOT NULL, fence bigint NOT NULL)"
_CHARGE = sqlalchemy.text("INSERT INTO charge (number, kind, fence) VALUES (:number, :kind, :fence)")


@dataclass(frozen=True, slots=True)
class Shop:
    """Where the servers are, and the file in which each process notes what it has committed."""

    redis: str
    database: str
    store: str
    ledger: str

    def environment(self) -> dict[str, str]:
        """Return what a worker's environment must have."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        return engine_of(self.database, os.getpid())


@cache
def engine_of(url: str, pid: int) -> Engine:
    """Return the engine of one process; a connection that died with the server is not handed out."""
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), pool_pre_ping=True)


def make_app(shop: Shop) -> Celery:
    """Return the app, in a worker as in a producer."""
    app = Celery("shop", broker=f"{shop.redis}/0", backend=f"{shop.redis}/1")
    app.config_from_object("celery_reliable.presets")
    app.conf.update(
        reliable_store_url=shop.store,
        reliable_lease_ttl=LEASE,
        reliable_retry_backoff=0.2,
        reliable_retry_backoff_max=2.0,
        reliable_max_retries=50,
        reliable_max_deliveries=50,
        broker_transport_options={"unacked_restore_interval": 1},
        broker_connection_max_retries=None,
        worker_redirect_stdouts=False,
    )
    app.shop = shop
    app.task(shared=False, base=ReliableTask, bind=True, name="charge", idempotency_key="charge:{number}")(charge)
    app.task(shared=False, base=ReliableTask, bind=True, name="charge_bare", idempotency_key="bare:{number}")(
        charge_bare
    )
    return app


def charge(self: Any, number: int, seconds: float) -> int:
    """Charge an order in an inbox, and note it."""
    shop = self.app.shop
    time.sleep(seconds)
    with shop.engine.connect() as connection, self.inbox(connection) as done:
        connection.execute(_CHARGE, {"number": number, "kind": "inbox", "fence": self.fence})
        done.result = number
    _note(shop, number)
    return number


def charge_bare(self: Any, number: int, seconds: float) -> int:
    """Charge the same order in a transaction of its own, as one does without an inbox."""
    time.sleep(seconds)
    with self.app.shop.engine.begin() as connection:
        connection.execute(_CHARGE, {"number": number, "kind": "bare", "fence": self.fence})
    return number


def _note(shop: Shop, number: int) -> None:
    descriptor = os.open(Path(shop.ledger), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{number}\n".encode())
    finally:
        os.close(descriptor)


if VARIABLE in os.environ:
    app = make_app(Shop(**json.loads(os.environ[VARIABLE])))
