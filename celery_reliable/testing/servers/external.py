"""Use a server that somebody else runs, if the environment names one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from celery_reliable.testing.servers.errors import ServerUnavailable
from celery_reliable.testing.servers.mariadb import MARIADB, start_mariadb
from celery_reliable.testing.servers.postgres import POSTGRES, start_postgres
from celery_reliable.testing.servers.rabbitmq import RABBITMQ, start_rabbitmq
from celery_reliable.testing.servers.redis import REDIS, start_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from celery_reliable.testing.servers.process import Server


class ExternalServer:
    """A server named by the environment: it has a `url`, and whatever needs a process of our own raises."""

    def __init__(self, url: str, *, setting: str) -> None:
        """Keep the address and the variable that named it."""
        self.url = url
        self._setting = setting

    def close(self) -> None:
        """Leave the server alone: it is not ours."""

    def revive(self) -> None:
        """Leave the server alone: nothing here can have harmed it."""

    def kill(self) -> NoReturn:
        """Refuse."""
        self._refuse("kill")

    def stop(self) -> NoReturn:
        """Refuse."""
        self._refuse("stop")

    def freeze(self) -> NoReturn:
        """Refuse."""
        self._refuse("freeze")

    def thaw(self) -> NoReturn:
        """Refuse."""
        self._refuse("thaw")

    def restart(self) -> NoReturn:
        """Refuse."""
        self._refuse("restart")

    def __enter__(self) -> Self:
        """Return the server as it is."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the server alone."""

    def _refuse(self, verb: str) -> NoReturn:
        message = f"cannot {verb} the server that {self._setting} names; unset it so that a private one is started"
        raise ServerUnavailable(message)


def use_redis(environment: Mapping[str, str] = os.environ) -> Server | ExternalServer:
    """Return the Redis of ``CR_TEST_REDIS_URL``, else start a private one."""
    return _use(environment, setting=REDIS.setting, start=start_redis)


def use_rabbitmq(environment: Mapping[str, str] = os.environ) -> Server | ExternalServer:
    """Return the RabbitMQ of ``CR_TEST_RABBITMQ_URL``, else start a private one."""
    return _use(environment, setting=RABBITMQ.setting, start=start_rabbitmq)


def use_postgres(environment: Mapping[str, str] = os.environ) -> Server | ExternalServer:
    """Return the PostgreSQL of ``CR_TEST_POSTGRES_URL``, else start a private one."""
    return _use(environment, setting=POSTGRES.setting, start=start_postgres)


def use_mariadb(environment: Mapping[str, str] = os.environ) -> Server | ExternalServer:
    """Return the MariaDB of ``CR_TEST_MARIADB_URL``, else start a private one."""
    return _use(environment, setting=MARIADB.setting, start=start_mariadb)


def _use(environment: Mapping[str, str], *, setting: str, start: Callable[[], Server]) -> Server | ExternalServer:
    url = environment.get(setting)
    return ExternalServer(url, setting=setting) if url else start()
