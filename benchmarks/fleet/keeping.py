"""Count what a lease keeper's beat costs the broker."""

from __future__ import annotations

from benchmarks.fleet.crew import crew
from celery_reliable.worker.broker import RedisBroker


def round_trips(*, held: int) -> int:
    """Return the round trips in which so many held messages are made young."""
    with crew() as made, made.app.connection_for_read() as connection:
        client = connection.default_channel.client
        tags = [f"tag-{number}" for number in range(held)]
        client.zadd("unacked_index", dict.fromkeys(tags, 1.0))
        view = RedisBroker(connection.default_channel)
        view.extend(tags[:1])  # loads the script
        client.config_resetstat()
        view.extend(tags)
        view.close()
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])
