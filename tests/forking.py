"""Keep a test that forks from cutting off the tests that come after it."""

from __future__ import annotations

import os
from typing import Any

from kombu import pools

_of_the_parent: list[Any] = []


def spare_connections() -> None:
    """Have the children that this process forks leave its pooled connections alone.

    A child of multiprocessing or billiard closes what kombu's pools hold (5.7, ``resource.py``), and py-amqp (5.4) begins with
    ``socket.shutdown``, which cuts off the parent too: RabbitMQ resets the connection, and whoever takes it next has that error.
    """
    os.register_at_fork(after_in_child=_take_from_the_pools)


def _take_from_the_pools() -> None:
    """Keep each connection referred to: py-amqp closes one that is collected in the same way."""
    for pool in pools._all_pools():
        for kept in (pool._dirty, pool._resource.queue):
            _of_the_parent.extend(kept)
            kept.clear()
