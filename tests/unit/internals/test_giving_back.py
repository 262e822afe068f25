"""Giving messages back to the near end of their queue."""

from __future__ import annotations

import inspect

from kombu.transport import virtual
from kombu.transport.redis import QoS

from celery_reliable import internals


def test_restore_by_tag_still_takes_the_end_of_the_list() -> None:
    """``leftmost=False`` is the near end."""
    assert inspect.signature(QoS.restore_by_tag).parameters["leftmost"].default is False


def test_held_tags_are_those_delivered_and_not_acked() -> None:
    """``_delivered`` and ``_dirty``."""
    qos = virtual.QoS(None)
    qos._on_collect.cancel()
    qos.append("message", "one")
    qos.append("message", "two")
    qos.ack("one")
    assert internals.held_tags(qos) == ["two"]
