"""Tell the story in words, with the time of each sentence."""

from __future__ import annotations

import time
from collections.abc import Callable

from example_project.demo.picture import Mood, Said

ACTS = {
    "open": "opening",
    "a": "told to stop",
    "b": "killed",
    "c": "five times",
    "d": "poison",
    "close": "closing",
}


class Narrator:
    """Remember what was said; pass it on at once if somebody listens."""

    def __init__(self, listener: Callable[[Said], None] | None = None) -> None:
        """Begin to count the seconds."""
        self._began = time.monotonic()
        self._listener = listener
        self.act = "open"
        self.said: list[Said] = []

    @property
    def seconds(self) -> float:
        """Return how long the story has been going on."""
        return time.monotonic() - self._began

    def begin(self, act: str) -> None:
        """Turn the page: ``act`` is one of `ACTS`."""
        self.act = act
        self.say(ACTS[act], mood="act")

    def say(self, text: str, *, mood: Mood = "plain") -> None:
        """Say one sentence."""
        said = Said(self.seconds, self.act, text, mood)
        self.said.append(said)
        if self._listener:
            self._listener(said)
