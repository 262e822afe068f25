"""Lift the arguments of an older message, one version at a time, to what its task takes now.

An upgrade takes the arguments of a call of version n by name, and returns those of version n + 1. Nothing here looks at
the message's key: a job stays the same job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from celery_reliable.errors import ConfigurationError, IncompatiblePayload, Snooze, Transient

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Step:
    """One upgrade. ``positional`` are the names of what its version took by position; None: those of the task now."""

    lift: Upgrade
    positional: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """Arguments as the task takes them now; ``dropped`` names those that it does not know."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What a task takes now, and the upgrades by which older arguments become that."""

    task: str
    signature: inspect.Signature
    steps: dict[int, Step] = field(default_factory=dict)
    names: frozenset[str] | None = None
    """What the task takes by name; None: anything."""

    @classmethod
    def of(cls, task: str, signature: inspect.Signature) -> Shape:
        """Read a body's signature, without ``self``."""
        parameters = signature.parameters.values()
        names = frozenset(one.name for one in parameters if one.kind in _BY_NAME)
        return cls(task, signature, {}, None if _rest(signature, inspect.Parameter.VAR_KEYWORD) else names)

    def add(
        self, function: object, *, from_version: object, version: int, positional: Sequence[str] | None = None
    ) -> None:
        """Register an upgrade. Raises `ConfigurationError` for one that can never be needed, and for a second one."""
        msg = _wrong_step(function, from_version, version=version, known=self.steps)
        if msg:
            raise ConfigurationError(f"task {self.task}: upgrade from_version={from_version!r}: {msg}")
        names = None if positional is None else tuple(positional)
        self.steps[from_version] = Step(function, names)  # type: ignore[index, arg-type]  # checked just now

    def check(self, version: int) -> None:
        """Raise `ConfigurationError` when upgrades do not lead to ``version`` one after the other.

        The first ones may be missing: messages that are older than the oldest upgrade become dead letters.
        """
        missing = sorted(set(range(min(self.steps, default=version), version)) - self.steps.keys())
        if missing:
            msg = (
                f"task {self.task}: payload_version is {version} and there are upgrades from {sorted(self.steps)}, none from "
                f"{', '.join(map(str, missing))}: older messages cannot be lifted; add @task.upgrade(from_version={missing[0]})"
            )
            raise ConfigurationError(msg)

    def takes(self, kwargs: Mapping[str, Any], *, version: int, known: int) -> bool:
        """Tell, in a fraction of a microsecond, that `fitted` would change nothing: what nearly every message is."""
        current = version >= known or not self.steps
        return current and (not kwargs or self.names is None or kwargs.keys() <= self.names)

    def fitted(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, version: int, known: int) -> Fitted:
        """Return the arguments of a message of ``version`` as the code of version ``known`` takes them.

        Raises `IncompatiblePayload` when no upgrades lead there, or one of them fails; what an upgrade raises to be
        tried again (`Transient`, `Snooze`) is passed on. Whether all required arguments are there is not looked at.
        """
        if version >= known or not self.steps:
            return self._without_unknown(args, kwargs)
        if version not in self.steps:
            oldest = min(self.steps)
            raise self._incompatible(
                f"no upgrade leads from version {version} of the payload, the oldest is from {oldest}"
            )
        # A copy: the message may be sent once more, as it was.
        arguments = deepcopy(self._by_name(args, kwargs, step=self.steps[version], version=version))
        for number in range(version, known):
            arguments = self._lifted(arguments, number=number)
        return self._unbound(arguments)

    def _lifted(self, arguments: dict[str, Any], *, number: int) -> dict[str, Any]:
        step = self.steps.get(number)
        if step is None:
            raise self._incompatible(f"there is no upgrade from version {number}")
        try:
            lifted: Any = step.lift(arguments)  # whatever a project's function returns
        except (Transient, Snooze):
            raise
        except Exception as exc:  # a project's function: whatever it raises, the message stays as it was
            raise self._incompatible(f"the upgrade from version {number} failed ({type(exc).__name__}: {exc})") from exc
        if not isinstance(lifted, dict) or not all(isinstance(name, str) for name in lifted):
            found = type(lifted).__name__
            raise self._incompatible(
                f"the upgrade from version {number} returned a {found}, expected the arguments by name"
            )
        return lifted

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, step: Step, version: int) -> dict[str, Any]:
        names = step.positional
        if names is None:
            names = tuple(one.name for one in self.signature.parameters.values() if one.kind in _BY_POSITION)
        arguments = dict(zip(names, args, strict=False))
        rest = _rest(self.signature, inspect.Parameter.VAR_POSITIONAL)
        if len(args) > len(names) and not rest:
            raise self._incompatible(
                f"a message of version {version} has {len(args)} arguments by position, {len(names)} are named; "
                f"name all that this version took: @task.upgrade(from_version={version}, positional=(...))"
            )
        if len(args) > len(names):
            arguments[rest] = list(args[len(names) :])
        twice = sorted(arguments.keys() & kwargs.keys())
        if twice:
            raise self._incompatible(f"a message of version {version} has {', '.join(twice)} twice")
        return {**arguments, **kwargs}

    def _unbound(self, arguments: dict[str, Any]) -> Fitted:
        """Return arguments by name as a call."""
        rest = _rest(self.signature, inspect.Parameter.VAR_KEYWORD)
        own = {name: value for name, value in arguments.items() if name in self.signature.parameters and name != rest}
        more = {name: value for name, value in arguments.items() if name not in own}
        bound = inspect.BoundArguments(self.signature, {**own, **({rest: more} if rest else {})})
        try:
            return Fitted(tuple(bound.args), dict(bound.kwargs), () if rest else tuple(sorted(more)))
        except TypeError as exc:
            raise self._incompatible(f"what the upgrades returned is no call of it ({exc})") from exc

    def _without_unknown(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fitted:
        if self.names is None or kwargs.keys() <= self.names:
            return Fitted(tuple(args), dict(kwargs))
        kept = {name: value for name, value in kwargs.items() if name in self.names}
        return Fitted(tuple(args), kept, tuple(sorted(kwargs.keys() - kept.keys())))

    def _incompatible(self, why: str) -> IncompatiblePayload:
        return IncompatiblePayload(
            f"task {self.task}: {why}; add or mend the upgrade, deploy it, and replay the letter"
        )


def _rest(signature: inspect.Signature, kind: Any) -> str:  # Any: an enumeration that the inspect module keeps private
    """Return the name of ``*args`` or ``**kwargs``; "" where there is none."""
    return next((one.name for one in signature.parameters.values() if one.kind is kind), "")


def _wrong_step(function: object, from_version: object, *, version: int, known: Mapping[int, Step]) -> str:
    if not isinstance(from_version, int) or isinstance(from_version, bool) or from_version < 1:
        return "expected a whole number from 1; it is the version that the upgrade takes"
    if from_version >= version:
        return (
            f"payload_version is {version}, so no message comes from a version that needs it; raise payload_version to "
            f"{from_version + 1}, or name the version before"
        )
    if from_version in known:
        return "there is one already; an upgrade lifts by one version, keep one"
    if not callable(function):
        return f"expected a function of the arguments, found {type(function).__name__}"
    return ""
