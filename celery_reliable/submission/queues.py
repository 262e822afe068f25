"""Let a call into its queue: in its lane, later, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery import current_task

from celery_reliable import internals, keys
from celery_reliable.keys import Identity
from celery_reliable.runtime import Runtime
from celery_reliable.submission.calls import Call, facts_of

if TYPE_CHECKING:
    from celery_reliable.flow.admission import Admission


def admit(call: Call, identity: Identity, *, admission: Admission | None) -> dict[str, Any]:
    """Return when a call may be sent; facts about its queue if it is to be shed instead. Raises `QueueFull`.

    What a worker sends for work that was accepted (the next step of a chain, a callback, the body of a chord) is never held
    up. What is chained to others is not shed, since these would wait for it.
    """
    if admission is None or _goes_on():
        return {}
    queue = internals.target_queue(call.task, call.options, call.args, call.kwargs)
    importance = call.importance or call.task.reliable_settings.importance
    may_shed = importance == "best_effort" and not call.has_canvas
    waiting = admission.ask(queue, may_shed=may_shed, headroom=identity.job.kind == "slot")
    return {} if waiting is None else {"queue": queue, "depth": waiting.depth, "age": waiting.age}


def _goes_on() -> bool:
    """Tell whether a worker submits outside of the body that it runs."""
    return hasattr(current_task, "reliable_settings") and keys.current_parent() is None


def in_lane(call: Call, identity: Identity, *, runtime: Runtime) -> Call:
    """Return a call as it goes into the lane of its fairness key; into the queue itself if it has none.

    What a key cannot be made of is no reason to refuse the call: that is told once for each task.
    """
    lanes, task = runtime.lanes, call.task
    if (
        lanes is None
        or type(task).fairness_key is None
        or internals.sending_options(task, call.options).get("exchange")
    ):
        return call
    queue = internals.target_queue(task, call.options, call.args, call.kwargs)
    if queue not in lanes:
        return call
    try:
        key = str(task.fairness_name(*call.whole(runtime), version=call.version))
    except Exception as exc:  # noqa: BLE001  # whatever a project's callable raises
        if (task.name, "fairness_key") not in runtime.warned:
            runtime.warned.add((task.name, "fairness_key"))
            runtime.events.emit("no_fairness_key", **facts_of(call, identity), queue=queue, error=str(exc))
        return call
    lane = lanes.chosen(queue, key=key, task_id=identity.task_id)
    return replace(call, options={**call.options, "queue": lane})
