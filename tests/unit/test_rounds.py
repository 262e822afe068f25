"""``on_conflict="queue_one"``: one runs, at most one is queued, and its newest arguments win."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.flow.rounds import Rounds, key_before, round_key
from celery_reliable.payloads import Envelope
from celery_reliable.publishing import arguments_in
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job, Run
from celery_reliable.stores.notes import MemoryNotes, Note
from celery_reliable.stores.redis_keys import Keys
from tests.unit.test_task import job_task, make_app, waiting

if TYPE_CHECKING:
    from celery import Celery


class LateNotes(MemoryNotes):
    """Notes of which a reader is overtaken once."""

    between: Callable[[], None] | None = None

    def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
        """Read, then let others go first."""
        found = super().read(shelf, names)
        others, self.between = self.between, None
        if others is not None:
            others()
        return found


@pytest.fixture
def app() -> Celery:
    """An app with an empty queue."""
    made = make_app()
    with made.connection_for_write() as connection:
        made.amqp.queues["celery"](connection.default_channel).declare()
        connection.default_channel.queue_purge("celery")
    return made


@pytest.fixture
def task(app: Celery) -> Any:
    """A task that runs one at a time for each ``x``."""
    return job_task(app, idempotency_key="index:{x}", on_conflict="queue_one")


def claim(app: Celery, task_id: str, number: int) -> Run:
    """Claim a round, as a worker does."""
    answer = runtime_of(app).store.claim(
        Job(f"index:1 round {number}", "declared"),
        task_id=task_id,
        life=1,
        token=uuid.uuid4().hex[:12],
        ttl=15.0,
        max_deliveries=5,
        record_ttl=3600.0,
    )
    assert isinstance(answer, Run)
    return answer


def newest(run: Run) -> Any:
    """Return the keyword arguments that a claim hands out."""
    assert run.envelope is not None
    return arguments_in(Envelope.from_bytes(run.envelope), accept=["json"])[1]


@pytest.mark.parametrize(
    ("key", "before"), [("a round 2", "a round 1"), ("a round 1", None), ("a", None), ("a round x", None)]
)
def test_a_round_knows_the_one_before(key: str, before: str | None) -> None:
    """The first has none."""
    assert key_before(key) == before
    assert key_before(round_key("a\nb", 3)) == "a\nb round 2"


def test_one_runs_and_one_is_queued_with_the_newest_arguments(app: Celery, task: Any) -> None:
    """Three calls before anything runs are one message; three more while it runs are one more."""
    first = [task.delay(1, y=y) for y in range(3)]
    assert len({result.id for result in first}) == waiting(app) == 1
    assert newest(claim(app, first[0].id, 1)) == {"y": 2}
    second = [task.delay(1, y=y) for y in range(10, 13)]
    assert len({result.id for result in (*first, *second)}) == waiting(app) == 2
    assert newest(claim(app, second[0].id, 2)) == {"y": 12}
    third = task.delay(1, y=99)
    assert waiting(app) == 3
    assert third.id not in {result.id for result in (*first, *second)}
    assert task.delay(2).id != third.id


def test_the_same_submission_again_is_no_new_round(app: Celery, task: Any) -> None:
    """A parent that runs again submits the same child."""
    task.apply_async((1,), task_id="a")
    claim(app, "a", 1)
    assert task.apply_async((1,), task_id="a").id == "a"
    assert runtime_of(app).rounds.present("index:1") == 1


def test_fifty_at_once_are_one_job(app: Celery, task: Any) -> None:
    """And fifty more while that one runs are one more.

    One message, where a ledger would send it again. Without one, whoever comes before the first publish is confirmed
    publishes too: its producer may have died.
    """
    task.delay(1)
    task.delay(1)
    with ThreadPoolExecutor(50) as pool:
        ids = {result.id for result in pool.map(lambda y: task.delay(1, y=y), range(50))}
        assert len(ids) == waiting(app) == 1
        claim(app, ids.pop(), 1)
        ids = {result.id for result in pool.map(lambda y: task.delay(1, y=y), range(50))}
    assert len(ids) == 1
    assert waiting(app) >= 2


def test_one_that_is_late_does_not_turn_the_number_back() -> None:
    """A round that ended long ago could be begun beside the present one."""
    notes = LateNotes(clock=time.time)
    rounds = Rounds(notes, ttl=60.0)

    def others() -> None:
        for begun in (1, 2):
            rounds.advance("index:1", begun=begun)

    notes.between = others
    rounds.advance("index:1", begun=1)
    assert rounds.present("index:1") == 3


def test_rounds_of_many_keys_lie_on_many_nodes_of_a_cluster() -> None:
    """Number and window of one key on the same; else one node would be asked about every key of the project."""
    keys, names = Keys(prefix="cr:", shards=64), [f"order:{number}" for number in range(1000)]
    asked: list[str] = []

    class Noting(MemoryNotes):
        def read(self, shelf: str, names: Iterable[str]) -> dict[str, Note]:
            asked.append(shelf)
            return super().read(shelf, names)

    rounds = Rounds(Noting(clock=time.monotonic), ttl=60.0)
    for name in names:
        rounds.look(name)
    nodes = Counter(keys.shelf(shelf)[0].partition("}")[0] for shelf in asked)
    assert len(asked) == len(names)
    assert len(nodes) > 32
    assert max(nodes.values()) < len(names) / 10
