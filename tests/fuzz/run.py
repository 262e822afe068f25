"""Send bad messages to a worker, and count what became of them."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.parking import Parking
from celery_reliable.runtime import runtime_of
from celery_reliable.testing.waiting import wait_until
from tests.fuzz.messages import FUZZ, Message, bad_messages
from tests.integration.workers import Worker

if TYPE_CHECKING:
    from celery import Celery

BATCH: Final = 2000  # messages between two good ones
SECONDS_A_BATCH: Final = 120.0
SECONDS_OF_THE_END: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What was sent and where it is: as letters by reason, parked, or run: some drawn headers do no harm."""

    sent: int
    letters: Counter[str]
    parked: int
    ran: int

    @property
    def missing(self) -> int:
        """How many messages are nowhere."""
        return self.sent - self.letters.total() - self.parked - self.ran


def fuzz(app: Celery, worker: Worker, *, count: int, seed: int) -> Account:
    """Send messages in batches, each followed by a good one, whose result shows that the worker lives and works."""
    drawn = bad_messages(random.Random(seed), count)
    sent = 0
    while batch := list(itertools.islice(drawn, BATCH)):
        send(app, batch)
        sent += len(batch)
        assert app.tasks["add"].delay(1, "good").get(timeout=SECONDS_A_BATCH) == 2
        assert worker.running, worker.last_words()
    with contextlib.suppress(AssertionError):  # the account says what is missing
        wait_until(lambda: take_account(app, sent=sent).missing <= 0, SECONDS_OF_THE_END)
    return take_account(app, sent=sent)


def send(app: Celery, messages: Iterable[Message]) -> None:
    """Put messages into the worker's queue as they are, past everything that Celery does to one."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        for message in messages:
            prepared = channel.prepare_message(message.body, headers=message.headers, **message.content)
            channel.basic_publish(prepared, exchange="", routing_key=app.conf.task_default_queue)


def take_account(app: Celery, *, sent: int) -> Account:
    """Count letters and parked messages."""
    runtime = runtime_of(app)
    reasons = Counter(_reasons(app))
    parked = sum(1 for _ in Parking(runtime.store, ttl=1.0, spare=1.0).everything())
    return Account(sent=sent, letters=reasons, parked=parked, ran=len(app.stage.entries(FUZZ)))


def _reasons(app: Celery) -> Iterator[str]:
    from celery_reliable.app_letters import letters_of  # noqa: PLC0415  # needed at the end only

    for letter in letters_of(app).search():
        yield letter.reason
