"""Start a private RabbitMQ."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

from celery_reliable.testing.servers.binaries import Lookup, Wanted, locate
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.process import Recipe, Server, private_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from celery_reliable.testing.servers.binaries import Binary

RABBITMQ = Wanted(
    executable="rabbitmq-server",
    setting="CR_TEST_RABBITMQ_URL",
    remedies=("apt-get install rabbitmq-server", "dnf install rabbitmq-server", "brew install rabbitmq"),
    usual=(
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",
        "/opt/homebrew/sbin/rabbitmq-server",
        "/usr/local/sbin/rabbitmq-server",
    ),
    # What Debian has on PATH becomes the user rabbitmq and serves the system's node.
    on_path=False,
    packages=("rabbitmq-server",),
    unpacked="usr/lib/rabbitmq/bin/rabbitmq-server",
)

# epmd runs in our process group and in the foreground; RabbitMQ would start it as a daemon that outlives the node.
LAUNCHER = 'if command -v epmd >/dev/null; then epmd & fi; exec "$1"'
PORTS = (0, 1, 2)  # AMQP, distribution, epmd
START_TIMEOUT = 90.0
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_METHOD = b"\x01"
ERLANG_OPTIONS = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


def start_rabbitmq(*, environment: Mapping[str, int] | None = None, lookup: Lookup | None = None) -> Server:
    """Start a RabbitMQ node of its own: guest account, loopback only, its own epmd, cookie and plugins file.

    `environment` holds numbers of the Erlang application ``rabbit``, as ``{"consumer_timeout": 5000}``.
    """
    binary = locate(RABBITMQ, lookup=lookup or Lookup.from_environment())
    port, directory = free_port(offsets=PORTS), private_directory("rabbitmq")
    _configure(directory, port=port)
    recipe = Recipe(
        name="rabbitmq",
        url=f"amqp://guest:guest@{LOOPBACK}:{port}//",
        port=port,
        directory=directory,
        command=("/bin/sh", "-c", LAUNCHER, "rabbitmq", str(binary.path)),
        answers=lambda: _answers(port),
        environment=_environment(binary, directory=directory, port=port, settings=environment or {}),
        start_timeout=START_TIMEOUT,
    )
    return Server(recipe).start()


def _configure(directory: Path, *, port: int) -> None:
    for folder in ("mnesia", "logs", "home"):
        (directory / folder).mkdir()
    cookie = directory / "home" / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    (directory / "plugins").write_text("[].\n")
    (directory / "env.conf").touch()
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = {LOOPBACK}:{port}\n"
        "disk_free_limit.absolute = 50MB\n"
        "vm_memory_high_watermark.absolute = 512MB\n"
    )


def _environment(binary: Binary, *, directory: Path, port: int, settings: Mapping[str, int]) -> Mapping[str, str]:
    inherited = binary.environment()
    foreign = ("RABBITMQ_", "ERL_")
    return {key: value for key, value in inherited.items() if not key.startswith(foreign)} | {
        "HOME": f"{directory}/home",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "ERL_EPMD_ADDRESS": LOOPBACK,
        "ERL_EPMD_PORT": str(port + 2),
        "RABBITMQ_BASE": str(directory),
        "RABBITMQ_NODENAME": f"cr{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(port + 1),
        "RABBITMQ_MNESIA_BASE": f"{directory}/mnesia",
        "RABBITMQ_LOG_BASE": f"{directory}/logs",
        "RABBITMQ_PID_FILE": f"{directory}/pid",
        "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
        "RABBITMQ_CONF_ENV_FILE": f"{directory}/env.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(
            [ERLANG_OPTIONS, *(f"-rabbit {name} {value}" for name, value in settings.items())]
        ),
    }


def _answers(port: int) -> bool:
    """Say hello: a bare connect is accepted long before the node serves."""
    with socket.create_connection((LOOPBACK, port), 2.0) as connection:
        connection.sendall(PROTOCOL_HEADER)
        return connection.recv(1) == FRAME_METHOD
