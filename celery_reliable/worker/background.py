"""Run one thread beside a worker or its consumer, from its first start until it is told to end."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """One thread of a bootstep. It begins once, however often the step is started; after an end it may begin anew."""

    __slots__ = ("_ending", "_name", "_run", "_thread")

    def __init__(self, run: Callable[[], None], *, name: str) -> None:
        """Take what the thread does: it must return soon after `wait` has said so."""
        self._run, self._name = run, name
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, unless it was started already."""
        if self._thread is None:
            self._ending.clear()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def end(self, *, patience: float = 0.0) -> None:
        """Tell the thread to end, and wait so many seconds for it. May be called twice, and before `begin`."""
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None and patience:
            thread.join(timeout=patience)

    def wait(self, seconds: float) -> bool:
        """Sleep, in the thread, for so many seconds or until the end. True: it is time to end."""
        return self._ending.wait(seconds)
