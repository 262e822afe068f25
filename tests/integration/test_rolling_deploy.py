"""Old and new code beside each other: what one publishes, the other one runs, once, or keeps for those that can."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group

from celery_reliable.app_letters import letters_of
from tests.integration.apps.jobs import QUICK
from tests.integration.apps.release import release
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_reliable.testing.servers import RedisServer
    from tests.integration.workers import Worker, Workers

pytestmark = pytest.mark.integration

DEADLINE = 30.0


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def stage(request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A stage with a queue of its own."""
    module_redis.flush()
    conf = {"task_default_queue": f"shop-{uuid.uuid4().hex}"}
    stage = Stage.on(module_redis.url, directory=tmp_path_factory.mktemp("shop"), conf=conf)
    if request.param == "rabbitmq":
        return dataclasses.replace(stage, broker=request.getfixturevalue("rabbitmq_server").url)
    return stage


@pytest.fixture(scope="module")
def old(stage: Stage) -> Iterator[Celery]:
    """The old release, to submit with."""
    with release(stage, 1) as app:
        yield app


@pytest.fixture(scope="module")
def new(stage: Stage) -> Iterator[Celery]:
    """The new release, to submit with."""
    with release(stage, 2) as app:
        yield app


def start(workers: Workers, stage: Stage, number: int) -> Worker:
    """Start a worker of a release."""
    env = {**stage.environment(), "CR_RELEASE": str(number)}
    return workers.start("tests.integration.apps.release", pool="threads", concurrency=4, env=env, arguments=QUICK)


def results(*submitted: Any) -> list[Any]:
    """Wait for all results."""
    return [one.get(timeout=DEADLINE) for one in submitted]


def test_nothing_is_lost_in_a_rolling_deploy(stage: Stage, old: Celery, new: Celery, workers: Workers) -> None:
    """N and N + 1, both ways: lifted, parked, under the old name, with a field too many, in a chain, a chord and a retry."""
    first = start(workers, stage, 1)
    # New producers, old workers. What these cannot know waits; an argument too many is left out, and said once.
    newer = [new.tasks["shop.charge"].delay(1, 250, "newer"), new.tasks["shop.invoice"].delay("newer")]
    renamed = new.tasks["shop.letter"].delay("renamed")
    greeted = [new.tasks["shop.greet"].delay("Ada", "greeted", title=title) for title in ("Dr. ", "Prof. ")]
    assert results(*greeted) == ["hello Ada", "hello Ada"]
    assert len(stage.events("arguments_dropped")) == 2
    ((warned,),) = [stage.events("argument_unknown")]
    assert (warned["task"], warned["argument"]) == ("shop.greet", "title")
    for result in (*newer, renamed):
        stage.wait_event("parked", result.id)
    # The same job from old code joins the newer one: key, and no false alarm about its other arguments.
    assert old.tasks["shop.charge"].delay(1, 2.5, "newer").id == newer[0].id
    assert old.tasks["shop.mail"].delay("renamed").id == renamed.id

    second = start(workers, stage, 2)
    assert first.stop() == 0
    assert results(*newer, renamed) == ["1:250", "written", "sent"]

    # Old producers, new workers.
    charge, total = old.tasks["shop.charge"], old.tasks["shop.total"]
    older = [charge.delay(2, 2.5, "older"), charge.delay(order_id=3, amount=1, label="older")]
    mailed, greeted_again = old.tasks["shop.mail"].delay("mailed"), old.tasks["shop.greet"].delay("Bob", "greeted")
    chained = chain(charge.s(4, 4.0, "older"), total.s(1.5, "totals"), total.s(2.5, "totals")).apply_async()
    counted = chord(group(charge.s(number, 1.0, "older") for number in (5, 6)), total.s(3.5, "totals")).apply_async()
    grouped = chain(charge.s(7, 7.0, "older"), group(total.s(4.5, "totals"), total.s(5.5, "totals"))).apply_async()
    assert results(*older, mailed, greeted_again) == ["2:250", "3:100", "sent", "hello Bob"]
    assert results(chained, counted, grouped) == [250, 350, [450, 550]]
    # Sent by name alone: no header, so no version and no key, and a new argument that old code never had.
    sent = old.send_task("shop.charge", (8, 8.0, "older"), queue=stage.conf["task_default_queue"])
    assert results(sent) == ["8:800"]
    assert len(stage.events("claimed", "charge:8")) == 1

    assert second.stop() == 0
    assert sorted(one["order_id"] for one in stage.entries("older")) == [2, 3, 4, 5, 6, 7, 8]
    counts = {label: len(stage.entries(label)) for label in ("newer", "renamed", "mailed", "totals", "greeted")}
    assert counts == {"newer": 2, "renamed": 1, "mailed": 1, "totals": 5, "greeted": 3}
    assert list(letters_of(new).search()) == []
