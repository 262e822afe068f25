"""Find the names that no setting and no task option has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from celery_reliable.settings.messages import nearest, spelled

if TYPE_CHECKING:
    from celery_reliable.settings.model import Configuration

PREFIX = "reliable_"
TASK_ONLY = (
    "idempotency_key",
    "fingerprint_args",
    "checkpoint_version",
    "overlap_key",
    "concurrency_key",
    "fairness_key",
    "payload_version",
    "upgrades",
    "aliases",
)


def unknown_settings(conf: Configuration, *, known: Collection[str], namespace: str) -> list[str]:
    """Say which names in a configuration look like ours and are not, or are spelled so that Celery ignores them."""
    readable = {PREFIX + name for name in known} | {spelled(PREFIX + name, namespace) for name in known}
    return [
        _unknown_setting(key, name, known=known, namespace=namespace)
        for key, name in sorted(_ours(conf, namespace=namespace))
        if key not in readable and not _is_import(conf.get(key, None))
    ]


def has_reliable_settings(conf: Configuration) -> bool:
    """Tell whether a configuration has any ``reliable_*`` setting, a mistyped one included."""
    return any(_ours(conf, namespace=namespace_of(conf)))


def namespace_of(conf: Configuration) -> str:
    """Return the prefix of the project's own names, "" without one.

    Celery reads a configuration at its first look-up, and knows the namespace only then.
    """
    conf.get(PREFIX, None)
    return getattr(conf, "prefix", None) or ""


def _ours(conf: Configuration, *, namespace: str) -> Iterator[tuple[str, str]]:
    """Iterate over the names in a configuration that mean a ``reliable_*`` setting, and over what they mean.

    In whatever case; in a namespace only the names that carry it, or Celery's own lower case.
    """
    for key in conf.keys():  # noqa: SIM118  # iterating over a Celery configuration is the same, over a Protocol not
        name = key.lower().removeprefix(namespace.lower())
        foreign = bool(namespace) and name == key.lower() and name != key
        if name.startswith(PREFIX) and not foreign:
            yield key, name


def unknown_options(given: Iterable[str], *, known: Collection[str], per_task: Collection[str]) -> list[str]:
    """Say which names are no options of a task."""
    return [_unknown_option(name, known=known, per_task=per_task) for name in given if name not in per_task]


def _unknown_setting(key: str, name: str, *, known: Collection[str], namespace: str) -> str:
    bare = name.removeprefix(PREFIX)
    if bare in known:
        return f"{key}: Celery does not read this spelling; write {spelled(name, namespace)}"
    if bare in TASK_ONLY:
        return f"{key}: belongs to one task, not to the settings; write @app.task({bare}=...)"
    candidates = {bare_name: spelled(PREFIX + bare_name, namespace) for bare_name in known}
    return f"{key}: unknown setting, {nearest(bare, candidates)} Rename or remove it"


def _unknown_option(name: str, *, known: Collection[str], per_task: Collection[str]) -> str:
    if name in known:
        return f"{name}: not a task option; set {PREFIX}{name} for the whole project"
    return f"{name}: unknown option, {nearest(name, {option: option for option in (*per_task, *TASK_ONLY)})} Rename or remove it"


def _is_import(value: object) -> bool:
    """Tell what a configuration module merely imported from what it sets."""
    return isinstance(value, ModuleType) or callable(value)
