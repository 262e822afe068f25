"""Hold one call of a task as it came to ``apply_async``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_reliable import claim_check, overlap
from celery_reliable.errors import ConfigurationError
from celery_reliable.keys import Identity
from celery_reliable.payloads import VERSION_HEADER
from celery_reliable.runtime import Runtime
from celery_reliable.settings.model import RULES

if TYPE_CHECKING:
    from celery_reliable.task import ReliableTask

SIGNATURES = ("link", "link_error", "chain", "chord")
_CANVAS = (*SIGNATURES, "group_id")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a task as it came to ``apply_async``; ``options`` are those under which it is sent."""

    task: ReliableTask
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    task_id: str | None
    declared: str | None
    options: dict[str, Any]
    importance: str | None = None

    @property
    def has_canvas(self) -> bool:
        """Whether something is chained to this call."""
        return bool(self.options) and any(self.options.get(name) for name in _CANVAS)

    @property
    def version(self) -> int:
        """The payload version of the arguments: this code's, unless the signature that is sent names another."""
        return (self.options.get("headers") or {}).get(VERSION_HEADER) or self.task.payload_version

    @property
    def aside(self) -> claim_check.Aside | None:
        """Where the arguments are that the signature does not carry itself."""
        headers = self.options.get("headers")
        return claim_check.Aside.of(headers) if headers else None

    def whole(self, runtime: Runtime) -> claim_check.Arguments:
        """Return all arguments. Raises what `claim_check.whole` raises."""
        aside = self.aside
        if aside is None:
            return self.args, self.kwargs
        return claim_check.whole(aside, self.args, self.kwargs, app=self.task.app, runtime=runtime)

    def with_headers(self, **changed: Any) -> Call:
        """Return a copy with other headers; None takes one out."""
        headers = {**(self.options.get("headers") or {}), **changed}
        kept = {name: value for name, value in headers.items() if value is not None}
        return replace(self, options={**self.options, "headers": kept})


def headers_given(call: Call) -> Mapping[str, Any]:
    """Return the headers that came with a call."""
    return call.options.get("headers") or {}


def overlap_of(call: Call) -> str:
    """Return what the call does when another of its kind runs. Raises `ConfigurationError` for an unknown word."""
    headers, settings = headers_given(call), call.task.reliable_settings
    word = headers.get(overlap.POLICY_HEADER)
    complaint = None if word is None else RULES["overlap"].complaint(word, default=settings.overlap)
    if complaint:
        msg = f"{call.task.name}: header {overlap.POLICY_HEADER}: {complaint}"
        raise ConfigurationError(msg)
    return overlap.policy_in(headers, default=settings.overlap)


def facts_of(call: Call, identity: Identity) -> dict[str, Any]:
    """Return what every event of a submission names."""
    return {"task": call.task.name, "task_id": identity.task_id, "key": identity.job.key}
