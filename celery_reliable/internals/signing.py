"""Sign each task message that this process publishes, whoever sends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kombu import serialization

if TYPE_CHECKING:
    from celery import Celery


Sign = Callable[[Mapping[str, Any], Any, tuple[str, str]], str | None]
"""Returns the signature of a message by its headers, body, content type and encoding; None for none."""


def sign_messages(app: Celery, *, header: str, sign: Sign) -> None:
    """Let ``sign`` write a header into each task message that this process publishes, whoever sends it. Twice is once.

    All of them go through ``AMQP.send_task_message`` (5.7), which is made once from ``_create_task_sender``. It hands the body
    to ``Producer.publish`` after the receivers of ``before_task_publish``, so what these change is signed, too.
    """
    amqp: Any = app.amqp
    if "_create_task_sender" in vars(amqp):
        return
    make = amqp._create_task_sender  # noqa: SLF001

    def create_task_sender() -> Any:
        send = make()

        def send_signed(producer: Any, name: str, message: Any, **options: Any) -> Any:
            return send(_SigningProducer(producer, message[2], header=header, sign=sign), name, message, **options)

        return send_signed

    amqp._create_task_sender = create_task_sender  # noqa: SLF001
    vars(amqp).pop("send_task_message", None)


class _SigningProducer:
    """Stand for a producer while one task message is sent; an event of the same sending goes through unsigned."""

    def __init__(self, producer: Any, body: Any, *, header: str, sign: Sign) -> None:
        self._producer, self._body, self._header, self._sign = producer, body, header, sign

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *, headers: Any = None, serializer: Any = None, **options: Any) -> Any:
        """Serialise as ``Producer._prepare`` (5.7) would, and sign what goes on the wire, compression apart."""
        if body is not self._body:
            return self._producer.publish(body, headers=headers, serializer=serializer, **options)
        content_type, encoding, raw = serialization.dumps(body, serializer or self._producer.serializer)
        signature = self._sign(headers, raw, (content_type, encoding))
        signed = {name: value for name, value in headers.items() if name != self._header}
        if signature is not None:
            signed[self._header] = signature
        return self._producer.publish(
            raw, headers=signed, content_type=content_type, content_encoding=encoding, **options
        )
