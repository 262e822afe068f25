"""What an app keeps to itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from celery import Celery

from celery_reliable import internals


def lone() -> None:
    """Be a body."""


def test_alias_is_a_task_of_its_own_to_workers() -> None:
    """They keep a tracer on each entry of ``app.tasks``; ``app._tasks`` can be added to while a task is bound."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    present: Any = app.task(name="present", shared=False, lazy=False)(lone)
    app.task(name="taken", shared=False, lazy=False)(lone)
    assert [internals.register_alias(app, type(present), name) for name in ("former", "former", "taken")] == [
        True,
        True,
        False,
    ]
    assert not app.finalized
    former = app.tasks["former"]
    assert (former.name, former is present, type(former) is type(present)) == ("present", False, True)


def test_settings_are_changed_for_a_block_and_connections_made_anew() -> None:
    """``Settings.changes``, ``_pool``, ``amqp._producer_pool``, ``_backend_cache`` and ``_local.backend``."""
    app = Celery("unit", broker="memory://one", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_priority = 3
    pool, backend, producers, before = app.pool, app.backend, app.producer_pool, dict(app.conf)
    with internals.changed_settings(app, {"broker_url": "memory://two", "result_backend": "rpc://"}):
        assert (app.conf.broker_url, app.connection_for_write().hostname) == ("memory://two", "two")
        assert app.pool is not pool
        assert app.producer_pool is not producers
        assert type(app.backend).__name__ == "RPCBackend"
    assert (dict(app.conf), app.conf.task_default_priority) == (before, 3)
    assert app.connection_for_write().hostname == "one"
    assert type(app.backend) is type(backend)


def test_the_app_that_celery_makes_up_is_told_from_a_project_s() -> None:
    """In a process of its own: what is asked for is the process's app."""
    program = "from celery_reliable.internals import loaded_app; print(loaded_app())"
    made = program + "; from celery import Celery; app = Celery('default'); print(loaded_app() is app)"
    run = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["None", "True"]


def test_a_worker_consumes_more_queues_than_it_was_told() -> None:
    """``Queues.select_add``, with ``-Q`` and without; an app that only knows them consumes none."""
    for chosen in (["fast"], None):
        app = Celery("unit", broker="memory://", set_as_current=False)
        app.conf.task_default_queue = "fast"
        internals.declare_like(app, "fast", ["fast.1", "fast.2"])
        internals.declare_like(app, "slow", ["slow.1"])
        app.amqp.queues.select(chosen)
        assert list(app.amqp.queues.consume_from) == ["fast"]
        internals.consume_also(app, lambda name: [f"{name}.1", f"{name}.2"])
        assert list(app.amqp.queues.consume_from) == ["fast", "fast.1", "fast.2"]
