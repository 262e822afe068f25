"""Print the oldest allowed version of each dependency as a constraint for pip: ``python -m tests.oldest > FILE``.

Of what the package and its optional features need. The tests' own tools, and those that build, stay at their newest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOOLS = ("test", "lint", "docs", "package", "demo")
LIST = re.compile(r"^(\S+) = \[(.*?)\]$", re.MULTILINE | re.DOTALL)
BOUND = re.compile(r'"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)')


def constraints(pyproject: str) -> Iterator[str]:
    """Yield ``name==version`` for each lower bound. Read without a parser of TOML, which Python 3.10 has not."""
    project, _, rest = pyproject.partition("[project.optional-dependencies]")
    extras = rest.partition("\n[")[0]
    lists = [*LIST.findall(project), *LIST.findall(extras)]
    for name, entries in lists:
        if name not in TOOLS and name != "requires":
            for package, version in BOUND.findall(entries):
                yield f"{package}=={version}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints(Path("pyproject.toml").read_text("utf-8"))) + "\n")
