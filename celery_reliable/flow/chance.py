"""Name what the features need of a source of randomness, so that a test can give one with a seed."""

from __future__ import annotations

from typing import Protocol


class Random(Protocol):
    """What is needed of `random.Random`."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between ``a`` and ``b``."""
        ...
