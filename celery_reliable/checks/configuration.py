"""Find what is dangerous in how an app is configured; nothing is connected to."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_reliable.checks.findings import Finding
from celery_reliable.checks.options import few, limit_of, own_tasks
from celery_reliable.errors import ConfigurationError
from celery_reliable.runtime import broker_driver, runtime_of
from celery_reliable.task import ReliableTask
from celery_reliable.wiring import WORKER_STEPS

if TYPE_CHECKING:
    from celery import Celery

_PICKLE: Final = {"pickle", "application/x-python-serialize"}
_VISIBILITY: Final = 3600.0  # kombu's default on Redis
_LONG: Final = 60.0  # seconds from which it matters that a message waits behind a task
_SHORTEST_KEY: Final = 32  # bytes: what HMAC-SHA256 makes full use of
_HERE: Final = frozenset({"", "localhost", "127.0.0.1", "::1"})
_OUTSIDE: Final = frozenset(
    {"requests", "httpx", "urlopen", "urllib3", "aiohttp", "boto3", "stripe", "smtplib", "send_mail", "EmailMessage"}
)
_CLIENTS: Final = frozenset(
    {
        "requests",
        "httpx",
        "urllib3",
        "aiohttp",
        "boto3",
        "botocore",
        "stripe",
        "smtplib",
        "twilio",
        "paramiko",
        "grpc",
        "zeep",
    }
)
"""Packages whose objects talk to other systems, by whatever name a module has them."""


@dataclass(frozen=True, slots=True)
class Given:
    """What is looked at: an app, and its tasks without Celery's own."""

    app: Celery
    tasks: list[Any]


def configuration_findings(app: Celery) -> list[Finding]:
    """Look at the settings of an app and at every task that is registered; imports and connects to nothing."""
    given = Given(app, own_tasks(app))
    checks = (
        _wiring,
        _acks,
        _content,
        _retries,
        _visibility,
        _prefetch,
        _eager,
        _queues,
        _lanes,
        _access,
        _outside,
        _monitors,
        _signing,
    )
    return [finding for check in checks for finding in check(given)]


def _wiring(given: Given) -> Iterator[Finding]:
    if not is_wired(given.app):
        yield Finding(
            "not_wired",
            "warning",
            "this app does not use celery_reliable: a killed worker, a double delivery and a failed task end as in plain "
            'Celery. Add app.config_from_object("celery_reliable.presets"), and base=ReliableTask to the tasks that matter.',
        )
        return
    try:
        runtime_of(given.app)
    except ConfigurationError as exc:
        yield Finding("settings_wrong", "error", f"{exc}")


def is_wired(app: Celery) -> bool:
    """Tell whether workers of an app have our bootsteps."""
    return WORKER_STEPS[0] in app.steps["worker"]


def _acks(given: Given) -> Iterator[Finding]:
    early = [task for task in given.tasks if not task.acks_late]
    if early:
        yield Finding(
            "early_ack",
            "error",
            f"{_names(early)}: acknowledged before it has run (task_acks_late is off): a worker that is killed or deployed in "
            "the middle of it loses the call. Set task_acks_late = True, which celery_reliable.presets does.",
        )
    lost = [task for task in given.tasks if task.acks_late and not task.reject_on_worker_lost]
    if lost:
        yield Finding(
            "lost_child_acked",
            "error",
            f"{_names(lost)}: a call whose process is killed, by the OOM killer for instance, is acknowledged and gone. Set "
            "task_reject_on_worker_lost = True, which celery_reliable.presets does; ReliableTask counts such losses.",
        )
    if given.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
        yield Finding(
            "runs_cancelled",
            "error",
            "worker_cancel_long_running_tasks_on_connection_loss is on: every hiccup of the broker kills all running tasks, "
            "half done. Remove it; celery_reliable acknowledges over the next connection.",
        )


def _content(given: Given) -> Iterator[Finding]:
    accepted = {str(one) for one in (*given.app.conf.accept_content, *(given.app.conf.result_accept_content or ()))}
    if accepted & _PICKLE or "pickle" in {given.app.conf.task_serializer, given.app.conf.result_serializer}:
        yield Finding(
            "pickle_accepted",
            "error",
            "pickle is accepted (accept_content) or written (task_serializer, result_serializer): whoever can write to the broker or the result backend can run any code in "
            'your workers. Set accept_content = ["json"], and send what JSON cannot carry by reference.',
        )


def _retries(given: Given) -> Iterator[Finding]:
    endless = [task for task in given.tasks if not isinstance(task, ReliableTask) and task.max_retries is None]
    if endless:
        yield Finding(
            "retries_unbounded",
            "warning",
            f"{_names(endless)}: max_retries is None, so a call that can never succeed is tried for ever. Set a number; "
            "ReliableTask has five, and keeps what failed for good.",
        )


def _visibility(given: Given) -> Iterator[Finding]:
    """Only without our worker steps: they extend what a worker holds."""
    if is_wired(given.app) or broker_driver(given.app) != "redis":
        return
    timeout = float((given.app.conf.broker_transport_options or {}).get("visibility_timeout", _VISIBILITY))
    longer = [task for task in given.tasks if task.acks_late and (limit_of(given.app, task) or timeout + 1) > timeout]
    if longer:
        yield Finding(
            "visibility_short",
            "error",
            f"{_names(longer)}: may run longer than the visibility timeout of {timeout:g} s (broker_transport_options); Redis "
            "then gives it to a second worker while the first still runs, and so it does to every ETA beyond it. Set a time "
            "limit below it; with celery_reliable a worker extends whatever it holds.",
        )


def _prefetch(given: Given) -> Iterator[Finding]:
    multiplier = given.app.conf.worker_prefetch_multiplier
    long = [task for task in given.tasks if task.acks_late and (limit_of(given.app, task) or _LONG) >= _LONG]
    if multiplier != 1 and long:
        yield Finding(
            "prefetch_hoards",
            "warning",
            f"worker_prefetch_multiplier is {multiplier}: behind {_names(long)} a busy worker keeps {multiplier or 'all'} "
            "messages a process that an idle one could run now. Set it to 1.",
        )


def _eager(given: Given) -> Iterator[Finding]:
    if given.app.conf.task_always_eager:
        yield Finding(
            "eager",
            "error",
            "task_always_eager is on: tasks run in the caller's process, and nothing here is kept or tried again by a worker. "
            "Leave it to tests.",
        )


def _queues(given: Given) -> Iterator[Finding]:
    if broker_driver(given.app) != "amqp":
        return
    dropping = [
        queue.name
        for queue in given.app.amqp.queues.values()
        if _argument(queue, "x-queue-type") == "quorum"
        and not _argument(queue, "x-dead-letter-exchange")
        and _argument(queue, "x-delivery-limit") not in {-1, "-1"}
    ]
    if dropping:
        yield Finding(
            "quorum_drops",
            "warning",
            f"quorum queue {', '.join(dropping)} has no dead-letter exchange: RabbitMQ 4 deletes a message at its twentieth "
            "delivery, and says nothing. Set x-dead-letter-exchange, or x-delivery-limit to -1: celery_reliable counts itself.",
        )
    if (given.app.conf.broker_transport_options or {}).get("confirm_publish") is False:
        yield Finding(
            "publish_unconfirmed",
            "error",
            "confirm_publish is off (broker_transport_options): a message that is lost on its way to RabbitMQ counts as sent. "
            "Remove it: celery_reliable confirms every publish.",
        )


def _lanes(given: Given) -> Iterator[Finding]:
    keyed = [task for task in given.tasks if getattr(task, "fairness_key", None) is not None]
    if keyed and not given.app.conf.get("reliable_fair_queues"):
        yield Finding(
            "fairness_without_lanes",
            "warning",
            f"{_names(keyed)}: has a fairness_key, and no queue is shared fairly: who floods the queue starves all others. Name "
            'it: reliable_fair_queues = {"celery": {}}.',
        )


def _access(given: Given) -> Iterator[Finding]:
    connection = given.app.connection_for_read()
    host, driver = connection.hostname or "", connection.transport.driver_type
    if host in _HERE or host.startswith("/") or "://" in host:
        return  # the last is what kombu (5.7) makes of redis+cluster and others: the whole address, password and all
    if driver == "amqp" and (connection.userid, connection.password) == ("guest", "guest"):
        yield Finding(
            "broker_open",
            "info",
            f"broker_url: {host} is entered as guest with the password that every RabbitMQ begins with. Give each project a user "
            "of its own, and delete guest.",
        )
    if driver == "redis" and not connection.password:
        yield Finding(
            "broker_open",
            "info",
            f"broker_url: {host} is entered without a password: who reaches its port can send any task, and read every "
            "argument. Set a password (requirepass, or ACLs), or be sure of the network.",
        )


def _outside(given: Given) -> Iterator[Finding]:
    found = [task for task in given.tasks if isinstance(task, ReliableTask) and not task.has_key_rule and _talks(task)]
    if found:
        yield Finding(
            "no_key_talks_outside",
            "warning",
            f"{_names(found)}: calls another system, and has no idempotency_key: a double click, a repeated webhook or a "
            'repeated request is a second effect there. Declare one, such as idempotency_key="charge:{order_id}".',
        )


def _monitors(given: Given) -> Iterator[Finding]:
    """Only where Sentry is: nothing is imported for it."""
    if not any(map(_is_check_in, given.app.conf.get("reliable_event_hooks") or ())):
        return
    sentry = sys.modules.get("sentry_sdk")
    integration = sentry.get_client().get_integration("celery") if sentry is not None else None
    if integration is None or not integration.monitor_beat_tasks:
        return
    doubled = _watched_twice(given.app, left_out=integration.exclude_beat_tasks or ())
    if doubled:
        yield Finding(
            "monitors_doubled",
            "error",
            f"{doubled}: Sentry's CeleryIntegration(monitor_beat_tasks=True) and the event hook check_in both tell of these slots: "
            "two check-ins a slot, and an error at the first retry of a job that then succeeds. Remove monitor_beat_tasks, or "
            "name them in exclude_beat_tasks.",
        )


def _watched_twice(app: Celery, *, left_out: Iterable[str]) -> str:
    """Name the entries of reliable tasks that are not left out; a schedule in a database is not looked at."""
    entries = {name: entry for name, entry in (app.conf.beat_schedule or {}).items() if isinstance(entry, dict)}
    ours = [name for name, entry in entries.items() if isinstance(app.tasks.get(entry.get("task")), ReliableTask)]
    ends = [one if one.endswith("$") else f"{one}$" for one in left_out]  # as sentry-sdk (2) reads them
    if not entries:
        return "" if ends else "every entry of the schedule"
    found = [name for name in ours if not any(re.search(end, name) for end in ends)]
    return f"beat_schedule: {few(found)}" if found else ""


def _is_check_in(hook: Any) -> bool:
    if isinstance(hook, str):
        return hook.replace(":", ".") == "celery_reliable.contrib.sentry.check_in"
    return type(hook).__module__ == "celery_reliable.contrib.sentry.check_ins"


def _signing(given: Given) -> Iterator[Finding]:
    try:
        settings = runtime_of(given.app).settings if is_wired(given.app) else None
    except ConfigurationError:
        return  # told above
    if settings is None or not settings.signing_keys:
        return
    shortest = min(map(len, settings.signing_keys))
    if shortest < _SHORTEST_KEY:
        yield Finding(
            "signing_key_short",
            "error",
            f"reliable_signing_keys: a key has {shortest} bytes: whoever sees one message can find it by trying, and forge any "
            f'other. Take {_SHORTEST_KEY} random bytes or more: python -c "import secrets; print(secrets.token_urlsafe(32))".',
        )
    if settings.signing == "warn":
        yield Finding(
            "signing_not_enforced",
            "warning",
            "reliable_signing is 'warn': a message that nobody has signed is told of (event unsigned) and runs all the same, so "
            "nothing is protected yet. Remove the setting once no such event comes any more.",
        )


# --- what the checks ask


def _talks(task: Any) -> bool:
    """Tell whether a task, or a function of its module that it calls, uses something that talks to another system."""
    run = getattr(task.run, "__func__", task.run)
    own = [run, *(one for one in _used(run) if _is_neighbour(one, of=run))]
    return any(set(_names_in(one)) & _OUTSIDE or any(map(_is_client, _used(one))) for one in own)


def _names_in(function: Any) -> Iterator[str]:
    code = getattr(function, "__code__", None)
    for one in _codes(code) if code is not None else ():
        yield from one.co_names


def _used(function: Any) -> list[Any]:
    """Return what the names in a function stand for in its module."""
    known = getattr(function, "__globals__", {})
    return [known[name] for name in _names_in(function) if name in known]


def _is_neighbour(found: Any, *, of: Any) -> bool:
    return isinstance(found, types.FunctionType) and found.__module__ == of.__module__


def _is_client(found: Any) -> bool:
    """Tell whether a module, class, function or object is one of a package that talks to other systems."""
    if isinstance(found, types.ModuleType):
        origin = found.__name__
    else:
        origin = getattr(found if callable(found) else type(found), "__module__", None) or ""
    return str(origin).partition(".")[0] in _CLIENTS


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _argument(queue: Any, name: str) -> Any:
    return (queue.queue_arguments or {}).get(name)


def _names(tasks: Iterable[Any]) -> str:
    return few(task.name for task in tasks)
