"""Find arguments that the broker would refuse for their size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from celery_reliable.checks.findings import Finding
from celery_reliable.runtime import broker_driver, runtime_of

if TYPE_CHECKING:
    from celery import Celery

KIB: Final = 1024
_SQS: Final = 256 * KIB
# kombu (5.7) writes the body as base64 into a JSON text, and that as base64 again.
_GROWTH_ON_SQS: Final = (4 / 3) ** 2
_HEADERS: Final = 8 * KIB
_RABBITMQ: Final = 16 * KIB * KIB  # max_message_size since 4.0


def size_findings(app: Celery) -> list[Finding]:
    """Compare ``claim_check_threshold`` with what one message may hold."""
    driver = broker_driver(app)
    if driver == "sqs":
        return [*_of_sqs(app)]
    return [*_of_rabbitmq(app)] if driver == "amqp" else []


def _of_sqs(app: Celery) -> Iterator[Finding]:
    settings, most = runtime_of(app).settings, int((_SQS - _HEADERS) / _GROWTH_ON_SQS)
    if settings.blob_url is None:
        yield Finding(
            code="sqs_message_limit",
            severity="warning",
            message=(
                f"SQS refuses messages above 256 KiB unless the queue was given more, which is {most:,} bytes of arguments: "
                "apply_async raises for larger ones. Set reliable_blob_url: then they are kept aside, and the message carries "
                "a reference."
            ),
        )
    elif settings.claim_check_threshold > most:
        yield Finding(
            code="claim_check_above_broker_limit",
            severity="error",
            message=(
                f"reliable_claim_check_threshold is {settings.claim_check_threshold:,}, but SQS refuses messages above 256 KiB "
                f"unless the queue was given more, which is {most:,} bytes of arguments: apply_async raises for what lies "
                f"between. Set it to at most {most}."
            ),
        )


def _of_rabbitmq(app: Celery) -> Iterator[Finding]:
    settings = runtime_of(app).settings
    if settings.blob_url is not None and settings.claim_check_threshold > _RABBITMQ:
        yield Finding(
            code="claim_check_above_broker_limit",
            severity="warning",
            message=(
                f"reliable_claim_check_threshold is {settings.claim_check_threshold:,}, but RabbitMQ 4 refuses messages above "
                f"16 MiB (max_message_size) by closing the channel. Set it to at most {_RABBITMQ}."
            ),
        )
