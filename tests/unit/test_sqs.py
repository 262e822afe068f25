"""Messages held on SQS are extended by calls that botocore's model of SQS accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore.stub import Stubber
from kombu.transport import virtual

from celery_reliable.worker.sqs import extend, extend_all

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "https://sqs.eu-central-1.amazonaws.com/1/jobs"


@pytest.fixture
def client() -> Any:
    """A client that is never connected."""
    secrets = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    return botocore.session.get_session().create_client("sqs", region_name="eu-central-1", **secrets)


@pytest.fixture
def sqs(client: Any) -> Iterator[Stubber]:
    """What it must be asked, and what it answers."""
    with Stubber(client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def expect(sqs: Stubber, handles: list[str], *, failed: tuple[str, ...] = ()) -> None:
    """Expect one call for all of these."""
    entries = [{"Id": str(n), "ReceiptHandle": one, "VisibilityTimeout": 30} for n, one in enumerate(handles)]
    bad = [{"Id": str(handles.index(one)), "SenderFault": True, "Code": "InvalidParameterValue"} for one in failed]
    done = [{"Id": str(n)} for n, one in enumerate(handles) if one not in failed]
    answer = {"Successful": done, "Failed": bad}
    sqs.add_response("change_message_visibility_batch", answer, {"QueueUrl": URL, "Entries": entries})


def test_ten_go_in_one_call(client: Any, sqs: Stubber) -> None:
    """The most that SQS takes."""
    handles = [f"handle-{number}" for number in range(25)]
    for start in (0, 10, 20):
        expect(sqs, handles[start : start + 10])
    assert list(extend(client, url=URL, handles=handles, seconds=30)) == []


def test_refused_ones_are_named(client: Any, sqs: Stubber) -> None:
    """And an error fails its batch, not the next one."""
    handles = [f"handle-{number}" for number in range(12)]
    sqs.add_client_error("change_message_visibility_batch", "ServiceUnavailable", http_status_code=503)
    expect(sqs, handles[10:], failed=("handle-11",))
    assert list(extend(client, url=URL, handles=handles, seconds=30)) == [*handles[:10], "handle-11"]


@dataclass
class SqsChannel:
    """As much of kombu's as is asked: what it holds, and a client for each queue."""

    client: Any
    visibility_timeout: int = 30
    qos: Any = field(default_factory=lambda: virtual.QoS(None))

    def sqs(self, queue: str | None = None) -> Any:
        """Return the client."""
        return self.client

    def canonical_queue_name(self, name: str) -> str:
        """Return the name."""
        return name

    def receive(self, handle: str) -> None:
        """Hold a message."""
        info = {"sqs_message": {"ReceiptHandle": handle}, "sqs_queue": URL, "routing_key": "jobs"}
        self.qos.append(type("Message", (), {"delivery_info": info}), handle)


def test_what_is_held_is_extended_and_what_is_acked_is_not(client: Any, sqs: Stubber) -> None:
    """One that is refused and still held counts as failed."""
    channel = SqsChannel(client)
    channel.qos._on_collect.cancel()
    for handle in ("one", "two", "three"):
        channel.receive(handle)
    channel.qos.ack("two")
    expect(sqs, ["one", "three"], failed=("three",))
    assert extend_all(channel) == 1
