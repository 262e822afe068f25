"""Find Prometheus's checker ``promtool``, and start a private Prometheus."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from celery_reliable.testing.servers.binaries import Lookup, Wanted, locate
from celery_reliable.testing.servers.ports import LOOPBACK, free_port
from celery_reliable.testing.servers.process import Recipe, Server, private_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEDIES = ("apt-get install prometheus", "brew install prometheus")
PROMETHEUS = Wanted(
    executable="prometheus",
    setting="PATH",
    remedies=_REMEDIES,
    packages=("prometheus",),
    unpacked="usr/bin/prometheus",
)


def promtool(*, lookup: Lookup | None = None) -> Path:
    """Return the path of ``promtool``, which lies beside Prometheus. Raises `ServerUnavailable`."""
    return _located(lookup).with_name("promtool")


def start_prometheus(targets: Sequence[str], *, rules: Path, lookup: Lookup | None = None) -> Server:
    """Start a Prometheus that scrapes ``targets`` (host:port) each second, and evaluates ``rules`` each second."""
    port, directory = free_port(), private_directory("prometheus")
    listed = ", ".join(f"'{target}'" for target in targets)
    (directory / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{rules}']\n"
        f"scrape_configs: [{{job_name: celery, static_configs: [{{targets: [{listed}]}}]}}]\n"
    )
    recipe = Recipe(
        name="prometheus",
        url=f"http://{LOOPBACK}:{port}",
        port=port,
        directory=directory,
        command=(
            str(_located(lookup)),
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address={LOOPBACK}:{port}",
        ),
        answers=lambda: _is_ready(port),
    )
    return Server(recipe).start()


def _located(lookup: Lookup | None) -> Path:
    return locate(PROMETHEUS, lookup=lookup or Lookup.from_environment()).path


def _is_ready(port: int) -> bool:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/-/ready", timeout=2) as answer:  # our own
        return bool(answer.status == 200)  # noqa: PLR2004  # HTTP's OK
