"""Read from a supervisor's file how long it lets a worker end: Kubernetes, Compose, systemd, supervisord."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KUBERNETES_DEFAULT, _COMPOSE_DEFAULT, _SYSTEMD_DEFAULT, _SUPERVISORD_DEFAULT = 30.0, 10.0, 90.0, 10.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|sec|s|min|m|h)?\s*")
_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_SHELL_WORDS = 3  # sh -c "..."
_FOREVER = float("inf")


class ManifestError(Exception):
    """A file cannot be read as what its name says. The text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """One worker of a manifest: ``where`` it stands and the ``grace`` it gets, in seconds, from which ``setting``.

    ``spent_before`` are seconds of it that pass before the signal (a preStop hook); ``is_set`` is False for the
    supervisor's default; ``unit`` follows the number where the setting needs one.
    """

    where: str
    setting: str
    grace: float
    is_set: bool
    spent_before: float = 0.0
    stop_signal: str | None = None
    behind_shell: bool = False
    unit: str = ""

    def spelled(self, seconds: float) -> str:
        """Write a duration as the setting takes it."""
        return f"{seconds:g}{self.unit}"


def read_manifest(path: Path, *, named: Collection[str] = ()) -> list[Supervised]:
    """Return the workers of a file: those whose command runs ``celery worker``, and the containers that are ``named``.

    Raises `ManifestError` for a file that is missing or cannot be understood.
    """
    text = _text_of(path)
    if path.suffix == ".service":
        return list(_of_systemd(_sections(text, path), path))
    if path.suffix in {".conf", ".ini"}:
        return list(_of_supervisord(_sections(text, path, comment=";"), path))
    documents = [one for document in _documents(text, path) for one in _items(document)]
    return [worker for document in documents for worker in _of_document(document, path, named)]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ManifestError(f"{path}: cannot be read: {exc}; name an existing text file") from exc


# --- YAML


def _documents(text: str, path: Path) -> list[Any]:
    try:
        import yaml  # noqa: PLC0415  # an extra, needed only here
    except ModuleNotFoundError as exc:
        remedy = "pip install 'celery-reliable[manifests]'"
        raise ManifestError(f"{path}: reading YAML needs PyYAML, which is not installed; {remedy}") from exc
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as exc:
        raise ManifestError(f"{path}: expected YAML, found: {exc}; render templates first (helm template)") from exc


def _items(document: Any) -> list[Mapping[str, Any]]:
    if not isinstance(document, Mapping):
        return []
    if document.get("kind") == "List":
        return [item for item in document.get("items") or () if isinstance(item, Mapping)]
    return [document]


def _of_document(document: Mapping[str, Any], path: Path, named: Collection[str]) -> Iterator[Supervised]:
    try:
        if "kind" in document:
            yield from _of_kubernetes(document, path, named)
        else:
            yield from _of_compose(document, path, named)
    except (AttributeError, TypeError, ValueError) as exc:
        raise ManifestError(f"{path}: expected a Kubernetes or Compose file, found another shape: {exc}") from exc


def _of_kubernetes(document: Mapping[str, Any], path: Path, named: Collection[str]) -> Iterator[Supervised]:
    pod = _pod_of(document)
    grace = pod.get("terminationGracePeriodSeconds")
    name = f"{document['kind']} {(document.get('metadata') or {}).get('name', '')}"
    for container in pod.get("containers") or ():
        words = [*_words(container.get("command")), *_words(container.get("args"))]
        if not _is_worker(words, str(container.get("name")), named):
            continue
        lifecycle = container.get("lifecycle") or {}
        yield Supervised(
            where=f"{path}: {name}, container {container.get('name')}",
            setting="terminationGracePeriodSeconds",
            grace=_KUBERNETES_DEFAULT if grace is None else float(grace),
            is_set=grace is not None,
            spent_before=_slept(lifecycle.get("preStop") or {}),
            stop_signal=lifecycle.get("stopSignal"),
            behind_shell=_is_behind_shell(words),
        )


def _pod_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the pod in whatever makes it: a Deployment, StatefulSet, DaemonSet, Job, CronJob, or a Pod itself."""
    spec = document.get("spec") or {}
    spec = (spec.get("jobTemplate") or {}).get("spec") or spec
    return (spec.get("template") or {}).get("spec") or spec


def _slept(hook: Mapping[str, Any]) -> float:
    if "sleep" in hook:
        return float(hook["sleep"]["seconds"])
    found = re.search(r"\bsleep\s+(\d+(?:\.\d+)?)", " ".join(_words((hook.get("exec") or {}).get("command"))))
    return float(found[1]) if found else 0.0


def _of_compose(document: Mapping[str, Any], path: Path, named: Collection[str]) -> Iterator[Supervised]:
    for name, service in (document.get("services") or {}).items():
        words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
        if not _is_worker(words, str(name), named):
            continue
        grace = service.get("stop_grace_period")
        yield Supervised(
            where=f"{path}: service {name}",
            setting="stop_grace_period",
            grace=_COMPOSE_DEFAULT if grace is None else _seconds(str(grace)),
            is_set=grace is not None,
            stop_signal=service.get("stop_signal"),
            behind_shell=_is_behind_shell(words),
            unit="s",
        )


# --- systemd and supervisord


def _sections(text: str, path: Path, *, comment: str | None = None) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=comment)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd tells Foo from foo
    try:
        parser.read_string(re.sub(r"\\\n\s*", " ", text))
    except configparser.Error as exc:
        raise ManifestError(f"{path}: expected sections and settings, found: {exc}") from exc
    return parser


def _of_systemd(parser: configparser.RawConfigParser, path: Path) -> Iterator[Supervised]:
    words = _words(parser.get("Service", "ExecStart", fallback=""))
    if not _is_worker(words, path.stem, ()):
        return
    grace = parser.get("Service", "TimeoutStopSec", fallback=parser.get("Service", "TimeoutSec", fallback=None))
    yield Supervised(
        where=str(path),
        setting="TimeoutStopSec",
        grace=_SYSTEMD_DEFAULT if grace is None else _seconds(grace),
        is_set=grace is not None,
        stop_signal=parser.get("Service", "KillSignal", fallback=None),
        behind_shell=_is_behind_shell(words) and parser.get("Service", "KillMode", fallback="") in {"process", "mixed"},
    )


def _of_supervisord(parser: configparser.RawConfigParser, path: Path) -> Iterator[Supervised]:
    for section in parser.sections():
        words = _words(parser.get(section, "command", fallback=""))
        if not (section.startswith("program:") and _is_worker(words, section, ())):
            continue
        grace = parser.get(section, "stopwaitsecs", fallback=None)
        group = parser.get(section, "stopasgroup", fallback="false").lower() in {"true", "1", "yes", "on"}
        yield Supervised(
            where=f"{path}: {section}",
            setting="stopwaitsecs",
            grace=_SUPERVISORD_DEFAULT if grace is None else float(grace),
            is_set=grace is not None,
            stop_signal=f"SIG{parser.get(section, 'stopsignal', fallback='TERM').removeprefix('SIG')}",
            behind_shell=_is_behind_shell(words) and not group,
        )


# --- commands and durations


def _words(command: Any) -> list[str]:
    if not command:
        return []
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def _is_worker(words: list[str], name: str, named: Collection[str]) -> bool:
    text = " ".join(words)
    return name in named or re.search(r"\bcelery\b.*\bworker\b", text, re.DOTALL) is not None


def _is_behind_shell(words: list[str]) -> bool:
    """Whether a shell stays between: it replaces itself by a single command, of several it needs ``exec``."""
    if len(words) < _SHELL_WORDS or Path(words[0]).name not in _SHELLS or not words[1].endswith("c"):
        return False
    script = words[2].strip()
    several = re.search(r"[;&|\n]", script) is not None
    return several and re.search(r"\bexec\b[^;&|\n]*\bcelery\b", script) is None


def _seconds(text: str) -> float:
    """Read ``90``, ``1m30s``, ``1min 30s``, ``infinity``."""
    if text.strip() == "infinity":
        return _FOREVER
    total, rest = 0.0, text.strip()
    while rest:
        found = _DURATION.match(rest)
        if found is None:
            raise ValueError(f"expected a duration such as 1m30s, found {text!r}")
        total += float(found[1]) * _UNITS[found[2] or "s"]
        rest = rest[found.end() :]
    return total
