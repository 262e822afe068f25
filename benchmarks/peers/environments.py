"""Make the environment of a contender, once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.peers.contenders import Contender

ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENTS: Final = ROOT / ".peers"
_STAMP: Final = ".made"


def environment(contender: Contender) -> Path:
    """Return the folder of a contender's programs, after making its environment unless it is there."""
    folder = ENVIRONMENTS / contender.name
    wanted = "\n".join(contender.requirements)
    stamp = folder / _STAMP
    if not stamp.exists() or stamp.read_text() != wanted:
        _make(contender, folder)
        stamp.write_text(wanted)
    return folder / "bin"


def interpreter(contender: Contender) -> str:
    """Return the interpreter that a contender needs: this one, or one of pyenv's or on PATH; empty if there is none."""
    if not contender.python:
        return sys.executable
    # pyenv's own first: what it puts on PATH stands for versions that are not chosen, too.
    own = Path.home().glob(f".pyenv/versions/{contender.python.removeprefix('python')}.*/bin/python")
    return next(map(str, sorted(own)), "") or shutil.which(contender.python) or ""


def versions(contender: Contender) -> dict[str, str]:
    """Return the versions that are installed, by name."""
    words = (str(ENVIRONMENTS / contender.name / "bin" / "python"), "-m", "pip", "list", "--format=freeze")
    found = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    pairs = (line.split("==", 1) for line in found.splitlines() if "==" in line)
    return {name.replace("_", "-").lower(): version for name, version in pairs}


def _make(contender: Contender, folder: Path) -> None:
    subprocess.run((interpreter(contender), "-m", "venv", "--clear", str(folder)), check=True)
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    subprocess.run((*pip, *contender.requirements), check=True, cwd=ROOT)
