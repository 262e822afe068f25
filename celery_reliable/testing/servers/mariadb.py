"""Start a private MariaDB."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from celery_reliable.testing.servers.binaries import Lookup, Wanted, locate
from celery_reliable.testing.servers.errors import ServerUnavailable
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.process import LOG_TAIL, Recipe, Server, private_directory

if TYPE_CHECKING:
    from celery_reliable.testing.servers.binaries import Binary

MARIADB = Wanted(
    executable="mariadbd",
    setting="CR_TEST_MARIADB_URL",
    remedies=("apt-get install mariadb-server-core", "dnf install mariadb-server", "brew install mariadb"),
    usual=("/usr/sbin/mariadbd", "/usr/libexec/mariadbd", "/opt/homebrew/opt/mariadb*/bin/mariadbd"),
    packages=("mariadb-server-core",),
    unpacked="usr/sbin/mariadbd",
)

DATABASE = "reliable"
SHARED = ("share/mysql", "share/mariadb")
# What mariadb-install-db would run; that script needs programs that Debian has in another package.
SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
SYSTEM_TABLES_SINCE_11_5 = tuple(name.replace("mysql_", "mariadb_") for name in SYSTEM_TABLES)
BOOTSTRAP = f"CREATE DATABASE mysql;\nCREATE DATABASE {DATABASE};\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
PROTOCOL_VERSION = 10
SETTINGS = {
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "64M",
    # What a killed server was told to commit is in the files; a crash of the machine is none of the tests.
    "innodb-flush-log-at-trx-commit": "2",
    "performance-schema": "off",
    "max-connections": "400",
}


def start_mariadb(*, lookup: Lookup | None = None) -> Server:
    """Start a MariaDB of its own: user root, no password, TCP on loopback only; data survive a kill."""
    binary = locate(MARIADB, lookup=lookup or Lookup.from_environment())
    system_tables = _system_tables(binary)
    port, directory = free_port(), private_directory("mariadb")
    command = _command(binary, directory=directory)
    _initialise(command, BOOTSTRAP + system_tables, binary=binary, directory=directory)
    recipe = Recipe(
        name="mariadb",
        url=f"mariadb://root@{LOOPBACK}:{port}/{DATABASE}",
        port=port,
        directory=directory,
        command=(*command, f"--bind-address={LOOPBACK}", f"--port={port}", "--skip-name-resolve"),
        answers=lambda: _answers(port),
        environment=binary.environment(),
    )
    return Server(recipe).start()


def _command(binary: Binary, *, directory: Path) -> tuple[str, ...]:
    """Return the words that every start has: nothing is read from the system's files, nothing lies outside the directory."""
    for folder in ("data", "temporary"):
        (directory / folder).mkdir()
    settings = {
        "basedir": str(_base(binary)),
        "datadir": f"{directory}/data",
        "tmpdir": f"{directory}/temporary",
        "socket": f"{directory}/socket",
        "pid-file": f"{directory}/pid",
        **SETTINGS,
    }
    # It refuses to run as root unless that is said.
    user = ("--user=root",) if os.geteuid() == 0 else ()
    return (str(binary.path), "--no-defaults", *user, *(f"--{name}={value}" for name, value in settings.items()))


def _base(binary: Binary) -> Path:
    return binary.path.resolve().parent.parent


def _initialise(command: tuple[str, ...], statements: str, *, binary: Binary, directory: Path) -> None:
    done = subprocess.run(
        (*command, "--bootstrap", "--skip-networking"),
        check=False,
        input=statements,
        cwd=directory,
        env=binary.environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return
    with contextlib.suppress(OSError):
        shutil.rmtree(directory)
    words = " ".join(command)
    message = f"mariadbd --bootstrap failed with code {done.returncode}: {words}\n{done.stderr[-LOG_TAIL:]}"
    raise ServerUnavailable(message)


def _system_tables(binary: Binary) -> str:
    """Return the statements that make the tables of the server itself, which come with it."""
    for folder in (_base(binary) / name for name in SHARED):
        for names in (SYSTEM_TABLES, SYSTEM_TABLES_SINCE_11_5):
            files = [folder / name for name in names]
            if all(file.is_file() for file in files):
                return "".join(file.read_text() for file in files)
    folders = " or ".join(f"{_base(binary)}/{name}" for name in SHARED)
    message = f"{binary.path} is here without {' '.join(SYSTEM_TABLES)} in {folders}; install the whole server: {MARIADB.remedies[0]}"
    raise ServerUnavailable(message)


def _answers(port: int) -> bool:
    """Read the greeting: a server that cannot serve yet sends an error in its place."""
    with socket.create_connection((LOOPBACK, port), 2.0) as connection:
        greeting = connection.recv(5)
        return len(greeting) == 5 and greeting[4] == PROTOCOL_VERSION  # noqa: PLR2004  # behind length and number
