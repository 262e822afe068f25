"""What we use of Celery 5.7 and kombu 5.7 without their documenting it. A failure here means: read their changes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from celery import Task
from celery.backends.base import BaseBackend
from celery.worker import request as celery_request
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.transport import redis as redis_transport
from kombu.transport.redis import Channel, MultiChannelPoller, QoS


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (celery_request.Request, ["_announce_revoked", "on_failure", "on_timeout", "revoked", "_eta_timer_entry"]),
        (Task, ["_get_exec_options", "signature_from_request", "on_bound"]),
        (Consumer, ["apply_eta_task", "call_soon", "call_soon_ack", "create_task_handler", "on_decode_error"]),
        (Consumer, ["on_unknown_message", "on_unknown_task", "on_invalid_task"]),
        (BaseBackend, ["mark_as_failure"]),
        (Channel, ["_brpop_read", "conn_or_acquire", "Message", "sep"]),
        (
            state,
            [
                "active_requests",
                "reserved_requests",
                "scheduled_requests",
                "task_reserved",
                "task_ready",
                "task_scheduled",
            ],
        ),
        (QoS, ["restore_by_tag", "ack", "reject", "restore_unacked_once", "_flush"]),
        (MultiChannelPoller, ["_pause_brpop", "_update_brpop_polling", "on_readable"]),
        (redis_transport, ["_socket_readable"]),
        (Channel, ["_get_pool", "_lookup", "_do_restore_message", "pool", "close"]),
        (
            Channel,
            ["_lookup", "_q_for_pri", "_get_message_priority", "conn_or_acquire", "unacked_key", "global_keyprefix"],
        ),
    ],
)
def test_names_we_use_are_still_there(owner: Any, names: list[str]) -> None:
    """By name; the integration tests show that they still do the same."""
    assert [name for name in names if not hasattr(owner, name)] == []


def test_create_request_cls_overrides_what_we_keep_out_of_our_request() -> None:
    """``execute_using_pool`` and ``on_success``; everything else of ours must survive."""
    source = inspect.getsource(celery_request.create_request_cls)
    overridden = {
        line.strip().split("(")[0].removeprefix("def ")
        for line in source.splitlines()
        if line.strip().startswith("def ")
    }
    assert overridden - {"create_request_cls"} == {"execute_using_pool", "on_success"}
