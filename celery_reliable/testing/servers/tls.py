"""Start a private Redis that speaks TLS only."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_reliable.testing.servers.binaries import Lookup, locate
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.redis import REDIS, RedisServer, recipe
from celery_reliable.testing.servers.resp import command

if TYPE_CHECKING:
    from pathlib import Path

    from celery_reliable.testing.servers.process import Recipe


class RedisTlsServer(RedisServer):
    """A private Redis behind TLS; clients trust `ca_file`."""

    def __init__(self, described: Recipe, *, ca_file: Path) -> None:
        """Keep the certificate authority that clients need."""
        super().__init__(described)
        self.ca_file = ca_file

    def command(self, *words: str | int) -> Any:
        """Run one command over TLS and return the reply."""
        return command(self.port, *words, tls=ssl.create_default_context(cafile=str(self.ca_file)))


def start_redis_tls(*, lookup: Lookup | None = None) -> RedisTlsServer:
    """Start Redis with a certificate for the loopback address. Needs a binary built with TLS, as Debian's is."""
    port = free_port()
    plain = recipe(locate(REDIS, lookup=lookup or Lookup.from_environment()), name="redis-tls", port=port)
    ca_file, certificate = _certificates(plain.directory)
    server = RedisTlsServer(_over_tls(plain, certificate=certificate, ca_file=ca_file), ca_file=ca_file)
    return server.start()


def _over_tls(plain: Recipe, *, certificate: Path, ca_file: Path) -> Recipe:
    options = {"port": 0, "tls-port": plain.port, "tls-auth-clients": "no"}
    options |= {"tls-cert-file": certificate, "tls-key-file": certificate, "tls-ca-cert-file": ca_file}
    words = (word for key, value in options.items() for word in (f"--{key}", str(value)))
    tls = ssl.create_default_context(cafile=str(ca_file))
    return replace(
        plain,
        url=f"rediss://{LOOPBACK}:{plain.port}/0",
        command=(*plain.command, *words),
        answers=lambda: command(plain.port, "PING", tls=tls) == "PONG",
    )


def _certificates(directory: Path) -> tuple[Path, Path]:
    import trustme  # noqa: PLC0415 - of the test extra only

    authority = trustme.CA()
    ca_file, certificate = directory / "ca.pem", directory / "server.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    authority.issue_cert(LOOPBACK).private_key_and_cert_chain_pem.write_to_path(str(certificate))
    return ca_file, certificate
