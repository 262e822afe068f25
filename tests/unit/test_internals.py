"""What we rely on of Celery 5.7 and kombu 5.7 without their documenting it. A failure here means: read their changes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from celery import Celery, Task
from celery.backends.base import DisabledBackend
from celery.exceptions import Retry
from celery.worker import request as celery_request
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.transport.redis import Channel, QoS

from celery_reliable import ReliableTask, internals


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


def test_sending_options_are_those_of_the_class_and_the_call(task: Any) -> None:
    """``Task._get_exec_options``."""
    options = internals.sending_options(task, {"priority": 3})
    assert (options["time_limit"], options["priority"]) == (9, 3)


def test_prepared_retry_publishes_nothing(task: Any) -> None:
    """``Task.retry`` of an eager request returns its signature."""
    prepared = internals.prepared_retry(task, args=(2,), countdown=7, max_retries=99, exc=ValueError("x"))
    assert isinstance(prepared, Retry)
    assert (prepared.sig.args, prepared.sig.options["countdown"]) == ((2,), 7)
    assert task.request.is_eager is False


def test_result_is_kept_unless_ignored_or_without_a_backend(task: Any) -> None:
    """``get_actual_ignore_result`` and ``DisabledBackend``."""
    assert isinstance(task.backend, DisabledBackend)
    assert internals.keeps_result(task) is False


def test_create_request_cls_overrides_what_we_keep_out_of_our_request() -> None:
    """``execute_using_pool`` and ``on_success``; everything else of ours must survive."""
    source = inspect.getsource(celery_request.create_request_cls)
    overridden = {
        line.strip().split("(")[0].removeprefix("def ")
        for line in source.splitlines()
        if line.strip().startswith("def ")
    }
    assert overridden - {"create_request_cls"} == {"execute_using_pool", "on_success"}


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (celery_request.Request, ["_announce_revoked", "on_failure", "on_timeout", "revoked", "_eta_timer_entry"]),
        (Task, ["_get_exec_options", "signature_from_request", "on_bound"]),
        (Consumer, ["apply_eta_task", "call_soon"]),
        (state, ["active_requests", "task_reserved", "task_ready", "task_scheduled"]),
        (QoS, ["restore_by_tag", "ack", "reject"]),
        (
            Channel,
            ["_lookup", "_q_for_pri", "_get_message_priority", "conn_or_acquire", "unacked_key", "global_keyprefix"],
        ),
    ],
)
def test_names_we_use_are_still_there(owner: Any, names: list[str]) -> None:
    """By name; the integration tests show that they still do the same."""
    assert [name for name in names if not hasattr(owner, name)] == []


def test_restore_by_tag_still_takes_the_end_of_the_list() -> None:
    """``leftmost=False`` is the near end."""
    assert inspect.signature(QoS.restore_by_tag).parameters["leftmost"].default is False
