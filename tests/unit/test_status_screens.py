"""What the screen of `status` makes of a fleet."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from celery import Celery
from click.testing import CliRunner
from rich.console import Console

from celery_reliable import internals
from celery_reliable.cli import reliable, status_screens
from celery_reliable.errors import StoreUnavailable
from celery_reliable.events import Events
from celery_reliable.fleet import Deaths, Fleet, QueueState, WorkerState, look
from celery_reliable.flow import ages
from celery_reliable.heartbeats import LifeSign, Process
from celery_reliable.runtime import replaced_runtime
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import Write

SIGN = LifeSign(
    role="worker", node="shop@web-1", state="busy", owner="o", at=0.0, clock=0.0, process=Process("web-1", "", "", 1, ""),
    interval=5.0, queues=("celery", "mails"), pool="prefork", concurrency=4, running=2,
)  # fmt: skip


def fleet_of(*workers: WorkerState) -> Fleet:
    """A fleet of two queues."""
    queues = (QueueState("celery", 37, 12.0), QueueState("mails", 0))
    return Fleet(
        at=1000.0, workers=workers, queues=queues, held=None, leader=None, followers=(), schedule=(), breakers={},
        deaths=Deaths({}),
    )  # fmt: skip


def lines(fleet: Fleet, *, width: int = 120) -> list[str]:
    """Return the screen."""
    output = io.StringIO()
    console = Console(file=output, width=width, color_system=None)
    console.print(status_screens.screen(console, fleet, everything=False))
    return output.getvalue().splitlines()


def test_queues_tell_how_many_runs_ended_well_and_failed_in_the_last_minute() -> None:
    """Of all workers that give a sign of life together."""
    one = replace(SIGN, ended={"celery": (40, 2)})
    two = replace(SIGN, node="shop@web-2", ended={"celery": [8, 1]})  # as JSON has it
    silent = replace(SIGN, node="shop@web-3", ended={"celery": (1000, 1000)})
    fleet = fleet_of(WorkerState(one, 1.0), WorkerState(two, 2.0), WorkerState(silent, 600.0))
    rows = {line.split()[0]: line.split() for line in lines(fleet) if line[:5] in {"QUEUE", "celer", "mails"}}
    assert rows["QUEUE"] == ["QUEUE", "WAITING", "OLDEST", "RUNNING", "WELL/MIN", "FAILED/MIN", "WORKERS"]
    assert rows["celery"][-3:-1] == ["48", "3"]
    assert rows["mails"][-3:-1] == ["0", "0"]
    record = {one["name"]: one for one in fleet.as_record()["queues"]}
    assert (record["celery"]["ended_well"], record["celery"]["ended_failed"]) == (48, 3)


def test_narrow_screen_has_no_rates() -> None:
    """What waits is more important."""
    assert not [line for line in lines(fleet_of(WorkerState(SIGN, 1.0)), width=80) if "FAILED/MIN" in line]


def test_sign_of_an_older_version_tells_nothing_of_rates() -> None:
    """Workers and the command may be of two versions."""
    older = SIGN.facts()
    del older["ended"]
    assert LifeSign.from_json(json.dumps(older)).ended == {}


class Lengths:
    """A broker that shows how many messages wait, and no message."""

    def look(self, names: Sequence[str], *, now: float) -> list[QueueState]:
        """Show two queues."""
        return [QueueState("celery", 3), QueueState("mails", 0), QueueState("unknown", 1)]

    def held(self) -> None:
        """Tell nothing."""

    def close(self) -> None:
        """Close nothing."""


@pytest.mark.parametrize(("broker", "age"), [("amqp://", 60.0), ("memory://", None)])
def test_age_of_a_queue_on_rabbitmq_is_what_workers_have_told(broker: str, age: float | None) -> None:
    """Of a queue in which something waits, and of which they have told; what they say elsewhere is not asked for."""
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(reliable_store_url="memory://")
    store = MemoryStore(clock=lambda: 1000.0)
    told = [Write(name=name, value=b"940000000", ttl=60.0) for name in ("celery", "mails")]
    store.notes.write(ages.SHELF, told)
    with replaced_runtime(app, store=store, events=Events()):
        found = {one.name: one.oldest for one in look(app, sight=Lengths()).queues}
    assert found == {"celery": age, "mails": None, "unknown": None}


class Wavering(MemoryStore):
    """Is away at every second look, and after the fifth its operator has seen enough."""

    looks = 0

    def letter_counts(self) -> Mapping[str, int]:
        """See `MemoryStore.letter_counts`."""
        self.looks += 1
        if self.looks == 5:
            raise KeyboardInterrupt
        if self.looks % 2 == 0:
            raise StoreUnavailable("away")
        return super().letter_counts()


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_watch_goes_on_through_an_outage_until_it_is_ended(words: tuple[str, ...]) -> None:
    """Each look is shown where it is piped, as text or as JSON; Ctrl-C is no failure."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(reliable_store_url="memory://")
    with replaced_runtime(app, store=Wavering(), events=Events()):
        command = ["status", "--watch", "--every", "0.2", *words]
        shown = CliRunner().invoke(reliable, command, obj=internals.command_context(app), catch_exceptions=False)
    assert shown.exit_code == 0
    told = [
        ("No dead letters" in line or '"workers"' in line, "are away" in line) for line in shown.stdout.splitlines()
    ]
    assert [one for one in told if any(one)] == [(True, False), (False, True)] * 2
