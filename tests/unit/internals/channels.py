"""A Redis channel as far as `internals.reuse_client` touches one."""

from __future__ import annotations

import redis
from kombu.transport.redis import Channel


class PooledChannel:
    """What `internals.reuse_client` touches of a Redis channel."""

    conn_or_acquire, _create_client = Channel.conn_or_acquire, Channel._create_client
    Client = staticmethod(redis.Redis)

    def __init__(self) -> None:
        """Make the pools; nothing connects."""
        self.pool, self.async_pool = redis.ConnectionPool(), redis.ConnectionPool()
