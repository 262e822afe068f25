"""Lend a bound task with a request to the tests of what Celery does not document."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_reliable import ReliableTask


@pytest.fixture
def task() -> Any:
    """A bound task with a request, as inside a worker."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"

    def body(self: ReliableTask, x: int) -> None: ...

    made: Any = app.task(base=ReliableTask, bind=True, name="unit.job", queue="fast", time_limit=9, shared=False)(body)
    made.push_request(id="i", args=(1,), kwargs={}, retries=0, called_directly=False, is_eager=False, delivery_info={})
    yield made
    made.pop_request()
