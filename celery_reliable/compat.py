"""Tell which changes of task signatures break messages that are already on their way.

A snapshot of all signatures is kept beside the code, and compared with the code in CI: a message that an old version
published must still fit the new version, and the other way round while a deploy rolls.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from celery_reliable.errors import ConfigurationError

FORMAT: Final = 1

Severity = Literal["error", "warning"]
ParameterKind = Literal["positional", "keyword", "rest", "keyword rest"]

_KINDS: Final[Mapping[Any, ParameterKind]] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "rest",
    inspect.Parameter.VAR_KEYWORD: "keyword rest",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a task's body. ``default`` and ``type`` are source-like texts; None where there is none."""

    name: str
    kind: ParameterKind = "positional"
    default: str | None = None
    type: str | None = None

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is None and self.kind in ("positional", "keyword")


@dataclass(frozen=True, slots=True)
class TaskSignature:
    """What a message of a task must fit: its parameters and its ``payload_version``.

    ``upgrades`` are the versions from which this code lifts a message to the next one; a snapshot does not keep them.
    """

    parameters: tuple[Parameter, ...]
    version: int = 1
    upgrades: frozenset[int] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, signature: inspect.Signature, *, version: int = 1, upgrades: Iterable[int] = ()) -> TaskSignature:
        """Read a body's signature, without ``self``."""
        return cls(tuple(_parameter(one) for one in signature.parameters.values()), version, frozenset(upgrades))

    def lifts(self, before: TaskSignature) -> bool:
        """Tell whether upgrades lead from the version before to this one, so that its messages come in this shape."""
        return before.version < self.version and self.upgrades.issuperset(range(before.version, self.version))

    def named(self) -> dict[str, Parameter]:
        """Return the parameters that have a name of their own, by it."""
        return {one.name: one for one in self.parameters if one.kind in ("positional", "keyword")}

    def order(self) -> list[str]:
        """Return the names that a call may fill by position."""
        return [one.name for one in self.parameters if one.kind == "positional"]

    def takes_any(self, kind: ParameterKind) -> bool:
        """Tell whether there is ``*args`` or ``**kwargs``."""
        return any(one.kind == kind for one in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference that messages on their way can meet: an ``error`` breaks them, a ``warning`` may surprise."""

    code: str
    severity: Severity
    task: str
    message: str
    remedy: str


def _parameter(found: inspect.Parameter) -> Parameter:
    empty = inspect.Parameter.empty
    default = None if found.default is empty else repr(found.default)
    return Parameter(name=found.name, kind=_KINDS[found.kind], default=default, type=_type_text(found.annotation))


def _type_text(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# --- snapshots


def snapshot(tasks: Mapping[str, TaskSignature]) -> str:
    """Return the text that `read_snapshot` reads: sorted, one change a line in a diff."""
    found = {name: _fields(signature) for name, signature in sorted(tasks.items())}
    return json.dumps({"format": FORMAT, "tasks": found}, indent=2, sort_keys=True) + "\n"


def read_snapshot(text: str, *, name: str) -> dict[str, TaskSignature]:
    """Read a snapshot; ``name`` is the file's, for the message. Raises `ConfigurationError` for anything else."""
    try:
        found = json.loads(text)
        tasks = {FORMAT: found["tasks"]}[found["format"]]
        return {task: _signature(fields) for task, fields in tasks.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        msg = (
            f"{name}: expected a snapshot of format {FORMAT}, found {exc!r}; "
            f"write it anew: celery -A PROJECT reliable compat snapshot > {name}"
        )
        raise ConfigurationError(msg) from exc


def _fields(signature: TaskSignature) -> dict[str, Any]:
    return {"parameters": [asdict(one) for one in signature.parameters], "version": signature.version}


def _signature(fields: Mapping[str, Any]) -> TaskSignature:
    return TaskSignature(tuple(Parameter(**one) for one in fields["parameters"]), fields["version"])


# --- comparing


def compare(old: Mapping[str, TaskSignature], new: Mapping[str, TaskSignature]) -> list[Change]:
    """Return what a deploy from ``old`` to ``new`` would do to messages on their way, worst first.

    A raised ``payload_version`` keeps new messages from old workers; old ones come to new workers all the same. It excuses
    a change where upgrades lift them.
    """
    changes = [change for task in sorted(old) for change in _task_changes(task, old[task], new)]
    return sorted(changes, key=lambda change: (change.severity, change.task))


def _task_changes(task: str, before: TaskSignature, new: Mapping[str, TaskSignature]) -> Iterator[Change]:
    after = new.get(task)
    if after is None:
        yield _gone(task, before, new)
    elif after.version < before.version:
        yield _version_lowered(task, before, after)
    elif not after.lifts(before):
        for rule in _RULES:
            yield from rule(task, before, after)


def _change(code: str, task: str, message: str, *, severity: Severity = "error") -> Change:
    return Change(code=code, severity=severity, task=task, message=message, remedy=_REMEDIES[code])


def _gone(task: str, before: TaskSignature, new: Mapping[str, TaskSignature]) -> Change:
    twins = [name for name, signature in new.items() if signature == before and name.rpartition(".")[2] in task]
    likely = f"; {twins[0]} has the same signature" if twins else ""
    return _change(
        "task-removed",
        task,
        f"the task is gone{likely}: its messages will be parked, then dead-lettered as unregistered",
    )


def _version_lowered(task: str, before: TaskSignature, after: TaskSignature) -> Change:
    story = f"from {before.version} to {after.version}"
    return _change("version-lowered", task, f"payload_version went {story}: messages of the newer one will be parked")


def _removed(task: str, before: TaskSignature, after: TaskSignature) -> Iterator[Change]:
    if after.takes_any("keyword rest"):
        return
    for name in before.named().keys() - after.named().keys():
        twin = _twin(name, before, after)
        code = "parameter-renamed" if twin else "parameter-removed"
        yield _change(
            code, task, f"parameter {name} is {f'now {twin}' if twin else 'gone'}: messages that carry it do not fit"
        )


def _twin(name: str, before: TaskSignature, after: TaskSignature) -> str | None:
    """Return the new name of a parameter that has the same place, type and default as the old one."""
    old, new = before.order(), after.order()
    if name not in old or len(new) <= old.index(name):
        return None
    candidate = after.named()[new[old.index(name)]]
    known = before.named()[name]
    same = (candidate.type, candidate.default) == (known.type, known.default)
    return candidate.name if same and candidate.name not in before.named() else None


def _added(task: str, before: TaskSignature, after: TaskSignature) -> Iterator[Change]:
    renamed = {_twin(name, before, after) for name in before.named()}
    for name, parameter in after.named().items():
        if name not in before.named() and parameter.required and name not in renamed:
            message = f"parameter {name} is new and required: messages on their way do not have it"
            yield _change("required-parameter-added", task, message)


def _changed(task: str, before: TaskSignature, after: TaskSignature) -> Iterator[Change]:
    for name, known in before.named().items():
        now = after.named().get(name)
        if now is None:
            continue
        if now.required and not known.required:
            message = f"parameter {name} lost its default: messages that left it out do not fit"
            yield _change("parameter-became-required", task, message)
        elif known.default != now.default:
            message = (
                f"parameter {name} defaults to {now.default}, was {known.default}: messages that left it out change"
            )
            yield _change("default-changed", task, message, severity="warning")
        if known.type and now.type and known.type != now.type:
            yield _change(
                "type-changed", task, f"parameter {name} is {now.type}, was {known.type}: messages carry the old type"
            )


def _moved(task: str, before: TaskSignature, after: TaskSignature) -> Iterator[Change]:
    """Tell parameters that are still there, but that a call by position no longer fills."""
    order = after.order()
    moved = [name for place, name in enumerate(before.order()) if order[place : place + 1] != [name]]
    kept = [name for name in moved if name in after.named()]
    if kept:
        message = f"{', '.join(kept)} moved: by position come {', '.join(order) or 'none'}, messages bind elsewhere"
        yield _change("order-changed", task, message)


_REMEDIES: Final[Mapping[str, str]] = {
    "task-removed": "keep it until its messages are done, or name it in the aliases of the task that it is now",
    "version-lowered": "only ever raise payload_version",
    "parameter-renamed": "take both for one release, or raise payload_version and add an upgrade",
    "parameter-removed": "take both for one release, or raise payload_version and add an upgrade",
    "required-parameter-added": "give it a default, or raise payload_version and add an upgrade",
    "parameter-became-required": "keep the default for one release",
    "default-changed": "check that calls already made may mean the new value",
    "type-changed": "take both types for one release, or raise payload_version and add an upgrade",
    "order-changed": "keep the order and add new parameters at the end",
}

_Rule = Callable[[str, TaskSignature, TaskSignature], Iterator[Change]]
_RULES: Final[tuple[_Rule, ...]] = (_removed, _added, _changed, _moved)
