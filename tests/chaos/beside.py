"""Do something in a thread while a block runs, and hear of what went wrong there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """Do ``work`` until the event is set, as it is at the end of the block, and when the work ends: then the block may end early.

    What the work raised is raised after the block.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, stopped)
        done.add_done_callback(lambda _: stopped.set())
        try:
            yield stopped
        finally:
            stopped.set()
    done.result()
