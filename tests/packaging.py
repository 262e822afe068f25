"""Install the built wheel into a fresh environment and use it there: ``python -m tests.packaging dist``.

`make package` builds and calls this. What is tested is the wheel: it runs in a directory from which the checkout cannot be
imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

SHOP = """
from celery import Celery
from celery_reliable import ReliableTask

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.config_from_object("celery_reliable.presets")
app.conf.reliable_store_url = "memory://"


@app.task(base=ReliableTask, idempotency_key="charge:{order_id}")
def charge(order_id):
    return order_id
"""
USE = """
import importlib.metadata, sys
import celery_reliable
from celery_reliable.stores.redis import load_scripts
from celery_reliable.testing import assert_submitted, in_memory
from shop import app, charge

assert celery_reliable.__version__ == importlib.metadata.version("celery-reliable")
assert sys.prefix in celery_reliable.__file__, celery_reliable.__file__
assert all(load_scripts().values())
with in_memory(app) as bench:
    charge.delay(12)
    assert_submitted(charge, order_id=12)
    bench.drain_all()
    assert not bench.failures
plugins = {one.name for one in importlib.metadata.entry_points(group="pytest11")}
assert "celery_reliable.testing.pytest_plugin" in plugins, plugins
"""
FILES = ("py.typed", "stores/lua/claim.lua", "stores/sql/statements/record.sql", "stores/sql/ddl/0001.sqlite.sql")
IN_SOURCE = ("tests/unit/test_package.py", "docs/index.md", "LICENSE", "Makefile", "CHANGELOG.md")


def main() -> None:
    """Raise at the first thing that is not as it should be."""
    folder = Path(sys.argv[1]).resolve()
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_files(wheel, source)
    with tempfile.TemporaryDirectory() as directory:
        use(wheel, Path(directory))
    sys.stdout.write(f"{wheel.name} and {source.name} are as they should be\n")


def check_files(wheel: Path, source: Path) -> None:
    """Look for what is no Python and is needed all the same."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        metadata = archive.read(next(name for name in inside if name.endswith("/METADATA"))).decode()
    assert not [name for name in FILES if f"celery_reliable/{name}" not in inside], sorted(inside)
    assert not [name for name in inside if name.startswith(("tests/", "docs/"))]
    # What a bill of materials is made of: who it is, under which licence, on what it depends and when.
    assert "License-Expression: BSD-3-Clause" in metadata
    assert "License-File: LICENSE" in metadata
    assert f"{folder_of(inside)}/licenses/LICENSE" in inside
    assert re.search(r"^Requires-Dist: celery<6,>=5\.7$", metadata, re.MULTILINE), metadata
    assert re.search(r"^Requires-Dist: pymysql.*; extra == 'mariadb'$", metadata, re.MULTILINE), metadata
    with tarfile.open(source) as tape:
        names = {name.partition("/")[2] for name in tape.getnames()}
    assert not [name for name in IN_SOURCE if name not in names], sorted(names)


def folder_of(names: set[str]) -> str:
    """Return the name of the wheel's folder of metadata."""
    return next(name.partition("/")[0] for name in names if ".dist-info/" in name)


def use(wheel: Path, directory: Path) -> None:
    """Import it, call a task in memory, ask the command line and the probe."""
    venv.create(directory / "venv", with_pip=True)
    python = str(directory / "venv" / "bin" / "python")
    (directory / "shop.py").write_text(SHOP)
    run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", str(wheel), cwd=directory)
    run(python, "-m", "pip", "--disable-pip-version-check", "check", cwd=directory)
    run(python, "-c", USE, cwd=directory)
    commands = run(python, "-m", "celery", "-A", "shop", "reliable", "--help", cwd=directory)
    assert all(command in commands for command in ("check", "dlq", "purge", "schema")), commands
    assert "max-age" in run(python, "-m", "celery_reliable.probe", "--help", cwd=directory)


def run(*words: str, cwd: Path) -> str:
    """Return what a command prints; raise with its output when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main()
