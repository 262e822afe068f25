"""Start a PgBouncer of a test, in front of its PostgreSQL."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from celery_reliable.testing import servers
from celery_reliable.testing.servers.binaries import Wanted, locate
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.postgres import _identity
from celery_reliable.testing.servers.process import Recipe, private_directory

PGBOUNCER = Wanted(
    executable="pgbouncer",
    setting="CR_TEST_PGBOUNCER",
    remedies=("apt-get install pgbouncer", "dnf install pgbouncer", "brew install pgbouncer"),
    usual=("/usr/sbin/pgbouncer",),
    packages=("pgbouncer",),
    unpacked="usr/sbin/pgbouncer",
)
CONFIGURATION = """
[databases]
postgres = host={host} port={server} user=postgres
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 4
ignore_startup_parameters = extra_float_digits, options
"""


def start_pgbouncer(server: servers.Server, *, mode: str) -> servers.Server:
    """Start one; ``mode`` is ``transaction`` or ``session``. It refuses to be root, as PostgreSQL does."""
    binary = locate(PGBOUNCER, lookup=servers.Lookup.from_environment())
    port, directory = free_port(), private_directory("pgbouncer")
    prefix, user = _identity(directory)
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(CONFIGURATION.format(host=LOOPBACK, server=server.port, port=port, mode=mode))
    configuration.chmod(0o644)
    recipe = Recipe(
        name="pgbouncer",
        url=urlsplit(server.url)._replace(netloc=f"postgres@{LOOPBACK}:{port}").geturl(),
        port=port,
        directory=directory,
        command=(*prefix, str(binary.path), str(configuration)),
        answers=lambda: _listens(port),
        environment=binary.environment(),
        user=user,
    )
    return servers.Server(recipe).start()


def _listens(port: int) -> bool:
    with socket.create_connection((LOOPBACK, port), 2.0):
        return True
