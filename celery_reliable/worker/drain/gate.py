"""Keep tasks from beginning whose message was handed back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery.worker import state


class Refused(Exception):
    """The message of this task was handed back before it began."""


class Gate:
    """Stands before the pool. On threads and green pools a task may wait in the pool for long before it begins."""

    def __init__(self, *, is_handed_back: Callable[[Any], bool], kind: str) -> None:
        """Take the question to ask about a message, and the kind of pool."""
        self.lock = threading.RLock()
        self.in_body = False
        self._is_handed_back = is_handed_back
        self._children = kind == "prefork"
        self._refusal = _refusal(kind)

    def has_begun(self, request: Any) -> bool:
        """Whether a request runs, or is on its way into a child and cannot be called back."""
        if request is None:
            return False
        on_its_way = self._children and request._apply_result is not None  # noqa: SLF001  # set when sent to the pool (5.7)
        return on_its_way or request in state.active_requests

    def put_before(self, pool: Any) -> None:
        """Wrap the pool's ``apply_async``, which Celery's requests look up once, when their classes are made."""
        pool.apply_async = self._guarded(pool.apply_async)

    def _guarded(self, apply_async: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(
            target: Any, args: Any = None, kwargs: Any = None, *, accept_callback: Any = None, **options: Any
        ) -> Any:
            request = getattr(accept_callback, "__self__", None)
            message = getattr(request, "message", None)
            if message is None:
                return apply_async(target, args, kwargs, accept_callback=accept_callback, **options)
            if self._is_handed_back(message):
                return None
            if self._children:
                return apply_async(target, args, kwargs, accept_callback=accept_callback, **options)
            accept = self._accepting(accept_callback, message)
            return apply_async(self._marked(target), args, kwargs, accept_callback=accept, **options)

        return guarded

    def _accepting(self, accept: Callable[..., Any], message: Any) -> Callable[..., Any]:
        def accepting(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                if self._is_handed_back(message):
                    raise self._refusal
                return accept(*args, **kwargs)

        return accepting

    def _marked(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """Tell a body from Celery's own code around it: only there a signal handler may use the broker connection."""

        def marked(*args: Any, **kwargs: Any) -> Any:
            self.in_body = True
            try:
                return target(*args, **kwargs)
            finally:
                self.in_body = False

        return marked


def _refusal(kind: str) -> type[BaseException]:
    """Return what ends a greenlet, or a job of a thread pool, without a word."""
    if kind in {"gevent", "eventlet"}:
        from greenlet import GreenletExit  # type: ignore[import-untyped]  # noqa: PLC0415  # only where it is the pool

        exit_: type[BaseException] = GreenletExit
        return exit_
    return Refused
