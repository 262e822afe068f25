"""Keep the messages that a worker holds on Amazon SQS invisible to others for as long as it holds them.

SQS shows a message again when its visibility timeout is over, however long its task runs. A thread extends all that are
held, ten to a call, each third of that timeout. SQS itself ends this twelve hours after a message was received.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery import bootsteps

from celery_reliable import internals
from celery_reliable.runtime import consumed_driver, runtime_of
from celery_reliable.worker.background import Background

_BATCH = 10  # entries of one call, the most that SQS takes
_SHARE = 3
_SHORTEST = 1.0


class SqsKeeper(bootsteps.StartStopStep):
    """Extend by ChangeMessageVisibilityBatch what is held: running, prefetched, waiting for its time."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the consumer; a thread begins with its first connection and ends with the worker."""
        super().__init__(parent, **kwargs)
        self._consumer = parent
        self._background = Background(self._run, name="reliable-sqs")

    def include_if(self, parent: Any) -> bool:
        """Take part on SQS only."""
        return consumed_driver(parent.app) == "sqs"

    def start(self, parent: Any) -> None:
        """Begin, or go on with the new connection."""
        self._background.begin()

    def shutdown(self, parent: Any) -> None:
        """End the thread."""
        self._background.end()

    def _run(self) -> None:
        wait = _SHORTEST
        while not self._background.wait(wait):
            channel = getattr(self._consumer.task_consumer, "channel", None)
            if channel is None:
                continue
            wait = max(channel.visibility_timeout / _SHARE, _SHORTEST)
            failed = extend_all(channel)
            if failed:
                runtime_of(self._consumer.app).events.emit("extend_failed", held=failed)


def extend_all(channel: Any) -> int:
    """Extend what a channel of kombu's SQS transport (5.7) holds. Return how many could not be, and are still held."""
    failed: set[str] = set()
    for (queue, url), handles in _held(channel).items():
        failed |= set(extend(channel.sqs(queue=queue), url=url, handles=handles, seconds=channel.visibility_timeout))
    return len(failed.intersection(internals.held_tags(channel.qos)))


def _held(channel: Any) -> Mapping[tuple[str | None, str], Sequence[str]]:
    """Return the receipt handles, which are the delivery tags, by queue and its URL."""
    found: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for tag in internals.held_tags(channel.qos):
        message = channel.qos._delivered.get(tag)  # noqa: SLF001  # no public name (5.7)
        if message is None or "sqs_message" not in message.delivery_info:
            continue
        info = message.delivery_info
        queue = channel.canonical_queue_name(info["routing_key"]) if "routing_key" in info else None
        found[queue, info["sqs_queue"]].append(info["sqs_message"]["ReceiptHandle"])
    return found


def extend(client: Any, *, url: str, handles: Sequence[str], seconds: int) -> Iterator[str]:
    """Make messages of one queue invisible for ``seconds`` more from now; yield the handles that SQS refused."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # the driver is imported where it is used

    for start in range(0, len(handles), _BATCH):
        batch = handles[start : start + _BATCH]
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for number, handle in enumerate(batch)
        ]
        try:
            answer = client.change_message_visibility_batch(QueueUrl=url, Entries=entries)
        except (BotoCoreError, ClientError, OSError):
            yield from batch
            continue
        yield from (batch[int(one["Id"])] for one in answer.get("Failed", ()))
