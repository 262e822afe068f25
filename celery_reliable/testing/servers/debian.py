"""Download Debian packages and unpack them below a directory, as an ordinary user; nothing is installed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

TOOLS = ("apt-get", "dpkg-deb")
TIMEOUT = 300.0
PINNED_ROOT = "ROOTDIR=/usr/lib/erlang"


class PackagesUnavailable(Exception):
    """The packages cannot be had here; the text says why."""


def release() -> str:
    """Name this distribution, its version and the machine, as a folder name."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {"ID": platform.system().lower()}
    return "-".join(filter(None, (system["ID"], system.get("VERSION_ID"), platform.machine())))


def unpack(packages: tuple[str, ...], *, into: Path, search_path: str) -> None:
    """Download `packages` with what they need and the system lacks, and unpack them as `into`.

    Uses the machine's own apt sources with lists and caches of our own, so neither root nor a lock is needed. Several
    processes may ask at once: one works, the others wait. `into` appears complete or not at all. The tools are looked
    for on `search_path`.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool, path=search_path) is None]
    if missing:
        reason = f"this is no Debian or Ubuntu: {' and '.join(missing)} not found"
        raise PackagesUnavailable(reason)
    try:
        with _lock(into):
            if not into.exists():
                _fetch(packages, into=into, search_path=search_path)
    except subprocess.SubprocessError as exc:
        raise PackagesUnavailable(_describe(exc)) from exc
    except OSError as exc:
        reason = f"the cache {into.parent} cannot be written ({exc}); set CR_TEST_SERVERS_DIR to a folder that can"
        raise PackagesUnavailable(reason) from exc


@contextlib.contextmanager
def _lock(into: Path) -> Iterator[None]:
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(packages: tuple[str, ...], *, into: Path, search_path: str) -> None:
    logger.warning("fetching Debian packages for %s into %s, nothing is installed", packages[0], into)
    work = into.with_suffix(".partial")
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "packages", "root"):
        (work / folder).mkdir(parents=True)
    _download(packages, work=work, search_path=search_path)
    for package in sorted((work / "packages").glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(work / "root"), search_path=search_path)
    _unpin_erlang(work / "root", into=into)
    (work / "root").rename(into)
    shutil.rmtree(work)


def _download(packages: tuple[str, ...], *, work: Path, search_path: str) -> None:
    apt = (
        "apt-get",
        "-qq",
        f"-oDir::State::lists={work}/lists",
        f"-oDir::Cache={work}/cache",
        "-oDebug::NoLocking=1",
        "-oAcquire::Languages=none",
        # As root apt would become the user _apt, who cannot write here.
        "-oAPT::Sandbox::User=root",
    )
    install = ("--simulate", "--no-install-recommends", "--reinstall", "install", *packages)
    _run(*apt, "update", search_path=search_path)
    needed = re.findall(r"^Inst (\S+)", _run(*apt, *install, search_path=search_path), re.MULTILINE)
    _run(*apt, "download", *needed, search_path=search_path, folder=work / "packages")


def _unpin_erlang(root: Path, *, into: Path) -> None:
    """Tell Debian's erl where it really lies: its scripts name an absolute path."""
    for script in (*root.glob("usr/lib/erlang/bin/erl"), *root.glob("usr/lib/erlang/erts-*/bin/erl")):
        script.write_text(script.read_text().replace(PINNED_ROOT, f"ROOTDIR={into}/usr/lib/erlang"))


def _run(program: str, *words: str, search_path: str, folder: Path | None = None) -> str:
    environment = os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        (shutil.which(program, path=search_path) or program, *words),
        check=True,
        cwd=folder,
        env=environment,
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def _describe(exc: subprocess.SubprocessError) -> str:
    output = getattr(exc, "stderr", None) or ""
    return f"Debian packages could not be fetched: {exc}\n{output[-500:]}".strip()
