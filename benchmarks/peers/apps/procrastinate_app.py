"""procrastinate on PostgreSQL; a job's label is its queueing lock."""

from __future__ import annotations

import os

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.peers.body import SERVER, work

app = App(connector=PsycopgConnector(conninfo=os.environ[SERVER]))


@app.task(name="job")
def job(kind: str, label: str) -> None:
    """Do the work."""
    work(kind, label)


def send(kind: str, label: str) -> None:
    """Submit one."""
    with app.replace_connector(SyncPsycopgConnector(conninfo=os.environ[SERVER])) as here, here.open():
        here.configure_task("job", queueing_lock=label).defer(kind=kind, label=label)
