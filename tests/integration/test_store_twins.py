"""Walk at random through the lives of a key on two stores at once: the Lua scripts on Redis answer as the memory does.

`tests/unit/test_store_model.py` holds what PROTOCOL.md promises against each step; here each answer of Redis is compared as
well. The walks are the same in every run, unless ``CR_TEST_EXAMPLES=2000`` asks for so many at random.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from celery_reliable.stores.base import Refused
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.redis import RedisStore, load_scripts
from celery_reliable.stores.redis_link import link_for
from tests.model.conformance import Clock, walk_all
from tests.unit.test_store_model import JOB, LivesOfOneKey

if TYPE_CHECKING:
    from celery_reliable.testing.servers import RedisServer

pytestmark = pytest.mark.integration

AT_RANDOM = os.environ.get("CR_TEST_EXAMPLES")
EXAMPLES = int(AT_RANDOM or 25)
STEPS = 30
TIME = b"redis.call('TIME')"
OUR_TIME = b"{redis.call('GET', 'test:seconds'), redis.call('GET', 'test:micros')}"
RUN_OR_WAITING = {"waiting", "running", "done", "dead"}
MAY_DIFFER = {"complete"}  # repeated once it is done: the short marker of Redis keeps no token
COMPARED = ("state", "life", "task_id")


def store_on_our_time(url: str) -> RedisStore:
    """Return a store whose scripts ask a key for the time, which a test can move; they are the real ones otherwise."""
    scripts = {verb: body.replace(TIME, OUR_TIME) for verb, body in load_scripts().items()}
    for verb in ("submit", "claim"):  # those that index the answer where it stands
        scripts[verb] = scripts[verb].replace(OUR_TIME + b"[1]", b"(" + OUR_TIME + b")[1]")
    store = RedisStore(url)
    store._link = link_for(url, scripts=scripts, timeout=5.0)
    return store


def plain(answer: Any) -> Any:
    """Return an answer as it compares: durations to the millisecond, sequences as tuples."""
    if isinstance(answer, Refused) and answer.reason == "superseded":
        return answer.reason  # whose id the other life has is not promised
    if dataclasses.is_dataclass(answer):
        fields = {one.name: plain(getattr(answer, one.name)) for one in dataclasses.fields(answer)}
        return type(answer).__name__, fields
    if isinstance(answer, float):
        return round(answer, 3)
    if isinstance(answer, Mapping):
        return dict(answer)
    return tuple(answer) if isinstance(answer, list) else answer


class Twins:
    """Two stores that are asked the same, at the same time of theirs. Raises AssertionError when one answers differently."""

    def __init__(self, redis: RedisStore, clock: Callable[[], float]) -> None:
        """Begin with both empty."""
        self.memory, self.redis, self._clock = MemoryStore(clock=clock), redis, clock
        redis._link.command("FLUSHDB", key="")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Ask both; answer as the first."""

        def ask(*args: Any, **kwargs: Any) -> Any:
            self._set_clock()
            done = self.memory.inspect(JOB).get("state") == "done"
            first, second = (getattr(store, name)(*args, **kwargs) for store in (self.memory, self.redis))
            if name in MAY_DIFFER and done:
                return first
            assert plain(second) == plain(first), f"{name}{args}{kwargs}: Redis says {second}, the memory {first}"
            return first

        return ask

    def inspect(self, job: Any) -> Mapping[str, str]:
        """Compare what both know of a key."""
        first, second = (store.inspect(job) for store in (self.memory, self.redis))
        # The done marker of Redis is short: it tells no more than that.
        names = COMPARED[:1] if second.get("state") == "done" else COMPARED
        assert [second.get(name) for name in names] == [first.get(name) for name in names]
        return first

    def ledger(self) -> Iterator[tuple[str, bytes]]:
        """Compare both ledgers."""
        first, second = dict(self.memory.ledger()), dict(self.redis.ledger())
        assert second == first
        return iter(first.items())

    def _set_clock(self) -> None:
        micros = int(self._clock() * 1e6)
        seconds, rest = divmod(micros, 1_000_000)
        self.redis._link.command("MSET", "test:seconds", seconds, "test:micros", rest, key="")


class LivesOnBoth(LivesOfOneKey):
    """The random walk of the memory store, on both."""

    redis: RedisStore

    @initialize()
    def open(self) -> None:
        """Begin with two empty stores."""
        super().open()
        self.store: Any = Twins(self.redis, lambda: self.seconds)


def test_redis_answers_as_the_memory_does(redis_url: str) -> None:
    """Claims, leases, fences, verdicts, letters, replays, revokes, the ledger: every answer, after every step."""
    store = store_on_our_time(redis_url)
    budget = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=not AT_RANDOM,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        machine = type("Lives", (LivesOnBoth,), {"redis": store})
        run_state_machine_as_test(machine, settings=budget)
    finally:
        store.close()


def test_both_take_every_step_as_it_is_specified(private_redis: RedisServer) -> None:
    """Of `tests.model.specification`, the rare ones as well as those that a random walk meets."""
    store, clock = store_on_our_time(private_redis.url), Clock()
    try:
        twins: Any = Twins(store, clock)
        assert walk_all(twins, clock) > 3000
    finally:
        store.close()


def test_time_of_the_scripts_is_ours(private_redis: RedisServer) -> None:
    """Else the walk would compare two clocks, and its long waits would not be."""
    store = store_on_our_time(private_redis.url)
    twins = Twins(store, lambda: 1_800_000_000.25)
    twins.submit(JOB, task_id="T", envelope=b"T", ttl=1e9)
    answer = twins.claim(JOB, task_id="T", life=1, token="t", ttl=10.0, max_deliveries=3, record_ttl=1e9)
    assert answer.fence == 1_800_000_000_250_000
    store.close()
