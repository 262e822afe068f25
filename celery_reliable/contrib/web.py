"""Answer 429 with Retry-After when a queue is full, in Django, Flask, Starlette and FastAPI.

``QueueFull`` that leaves a view becomes ``{"error": "queue_full", "retry_after": 12}``; what waits in which queue is not told
to clients. Importing this module imports no framework.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from math import ceil
from typing import Any

from celery_reliable.errors import QueueFull

STATUS = 429
_UNKNOWN = 5.0  # seconds

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def retry_after(exc: QueueFull) -> int:
    """Return the whole seconds of a Retry-After header."""
    return max(ceil(_UNKNOWN if exc.retry_after is None else exc.retry_after), 1)


def _body(exc: QueueFull) -> str:
    return json.dumps({"error": "queue_full", "retry_after": retry_after(exc)})


class DjangoQueueFull:
    """Django: ``MIDDLEWARE = [..., "celery_reliable.contrib.web.DjangoQueueFull"]``.

    .. versionadded:: 0.1
    """

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        """Take the next in line."""
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        """Pass the request on."""
        return self._get_response(request)

    def process_exception(self, request: Any, exception: Exception) -> Any:
        """Answer for a full queue; every other error is Django's."""
        if not isinstance(exception, QueueFull):
            return None
        from django.http import HttpResponse  # noqa: PLC0415  # for projects that have it

        headers = {"Retry-After": str(retry_after(exception))}
        return HttpResponse(_body(exception), status=STATUS, content_type="application/json", headers=headers)


def flask_queue_full(exc: QueueFull) -> tuple[str, int, dict[str, str]]:
    """Flask: ``app.register_error_handler(QueueFull, flask_queue_full)``.

    .. versionadded:: 0.1
    """
    return _body(exc), STATUS, {"Content-Type": "application/json", "Retry-After": str(retry_after(exc))}


class AsgiQueueFull:
    """Starlette, FastAPI and whatever else speaks ASGI: ``app.add_middleware(AsgiQueueFull)``.

    .. versionadded:: 0.1
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        """Take the next in line."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer for a full queue unless an answer has begun."""
        begun = False

        async def watched(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except QueueFull as exc:
            if begun or scope["type"] != "http":
                raise
            headers = [(b"content-type", b"application/json"), (b"retry-after", str(retry_after(exc)).encode())]
            await send({"type": "http.response.start", "status": STATUS, "headers": headers})
            await send({"type": "http.response.body", "body": _body(exc).encode()})
