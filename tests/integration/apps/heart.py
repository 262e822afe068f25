"""A worker whose consumer can be brought to a standstill, and made deaf behind Celery's back, by remote control."""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command

from tests.integration.apps.worker import app

__all__ = ["app"]


@control_command(args=[("pipe", str)])
def stand_still(state: Any, pipe: str) -> None:
    """Block the thread of the consumer's loop, greenlets included, until somebody writes to the pipe."""
    app.stage.note("standing still")
    (app.stage.directory / pipe).read_text()


@control_command()
def go_deaf(state: Any) -> None:
    """Cancel the consumer at the broker: Celery goes on as if it consumed."""
    consumer = state.consumer.task_consumer
    for tag in list(consumer._active_tags.values()):
        consumer.channel.basic_cancel(tag, **({} if hasattr(consumer.channel, "qos") else {"nowait": True}))
