"""Outlive a lost connection: the loop alone talks to the broker; on Redis, what runs is acked on its old tag."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import bootsteps

from celery_reliable import internals
from celery_reliable.keys import TOKEN
from celery_reliable.runtime import consumed_driver, runtime_of
from celery_reliable.worker.short_transactions import ShortTransactions, shorten

_SETTLE_EVERY = 1.0  # seconds


class Reconnecting(bootsteps.StartStopStep):
    """Prepare each connection's channel for its loss, and on Redis give back what the one before it left.

    A plain worker on RabbitMQ may stand still when a task ends after a reconnect (`internals.set_prefetch_by_the_loop`).
    One on Redis ends when that is restarted while it has a free slot and a message out (kombu 5.7; see
    `internals.outlive_connection`). There messages keep their tag over a restart, so an ack of a task that began before
    it still finds its message.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Begin with no channel before this."""
        super().__init__(parent, **kwargs)
        self._channel: Any = None
        self._transactions: ShortTransactions | None = None
        self._settling: Any = None

    def start(self, parent: Any) -> None:
        """Prepare a new connection."""
        internals.set_prefetch_by_the_loop(parent.qos)
        if consumed_driver(parent.app) == "redis":  # elsewhere a tag means nothing to the next connection
            self._hand_on(parent)
            self._settling = parent.timer.call_repeatedly(_SETTLE_EVERY, self._settle)

    def stop(self, parent: Any) -> None:
        """Leave the connection; answers that are owed are not waited for, since it may be lost."""
        if self._settling is not None:
            self._settling.cancel()
            self._settle()
        if self._transactions is not None:
            self._transactions.close()

    def _settle(self) -> None:
        """Make sure of the acks that nothing followed."""
        if self._transactions is not None:
            with suppress(*self._channel.connection_errors):  # the loop will meet it, too, and connect anew
                self._transactions.settle()

    def _shorten(self, client: Any) -> None:
        """Take over the short transactions of a channel's client; kombu makes a new one for a new pool."""
        if self._transactions is not None:
            self._transactions.close()
        self._transactions = shorten(client)

    def _hand_on(self, parent: Any) -> None:
        """Prepare the new channel, then give back through it what was not running when the last one broke."""
        lost, self._channel = self._channel, parent.task_consumer.channel
        internals.outlive_connection(self._channel, successor=lambda: self._channel)
        internals.reuse_client(self._channel, prepare=self._shorten)
        internals.restore_only_at_the_end(self._channel.qos)
        internals.mark_deliveries(self._channel.qos, name=TOKEN, mark=runtime_of(parent.app).new_token)
        internals.return_late_replies(self._channel)
        if lost is not None:
            internals.give_back_left_over(lost.qos, self._channel.qos, but=internals.running_tags())
