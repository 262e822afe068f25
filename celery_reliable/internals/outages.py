"""Say what is raised while broker or result backend are away."""

from __future__ import annotations


def away() -> tuple[type[Exception], ...]:
    """Return what is raised while broker or result backend are away: OSError, and what is none in redis, amqp and kombu."""
    from amqp.exceptions import AMQPError  # noqa: PLC0415  # the drivers are imported where they are used
    from kombu.exceptions import OperationalError  # noqa: PLC0415
    from redis.exceptions import RedisError  # noqa: PLC0415

    return (OSError, AMQPError, RedisError, OperationalError)
