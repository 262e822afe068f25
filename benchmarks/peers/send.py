"""Submit jobs in a contender's environment: ``python -m benchmarks.peers.send MODULE KIND LABEL [KIND LABEL ...]``."""

from __future__ import annotations

import importlib
import sys


def main(module: str, *words: str) -> None:
    """Call the module's ``send(kind, label)`` for each pair; a refusal is the contender's answer, and printed."""
    send = importlib.import_module(module).send
    for kind, label in zip(words[::2], words[1::2], strict=True):
        try:
            send(kind, label)
        except Exception as exc:  # noqa: BLE001  # whatever the contender raises is what its user gets
            sys.stdout.write(f"{label} refused: {exc!r}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
