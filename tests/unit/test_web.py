"""What web frameworks answer when a queue is full."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from typing import Any

import flask
import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from celery_reliable import QueueFull
from celery_reliable.contrib.web import AsgiQueueFull, flask_queue_full


class Full:
    """A view's error."""

    def __call__(self, *_: Any) -> Any:
        """Raise it."""
        raise QueueFull("full", queue="reports", depth=9, retry_after=11.2)


def test_django_answers_429() -> None:
    """In a project of its own."""
    script = """
        from django.conf import settings
        settings.configure(SECRET_KEY="shop", ROOT_URLCONF=__name__, MIDDLEWARE=["celery_reliable.contrib.web.DjangoQueueFull"], ALLOWED_HOSTS=["*"])
        import django
        django.setup()
        from django.test import Client
        from django.urls import path
        from celery_reliable import QueueFull
        def full(request):
            raise QueueFull("full", queue="reports", retry_after=11.2)
        def broken(request):
            raise LookupError
        urlpatterns = [path("full", full), path("broken", broken)]
        answer = Client().get("/full")
        print(answer.status_code, answer["Retry-After"], answer["Content-Type"], answer.content.decode())
        print(Client(raise_request_exception=False).get("/broken").status_code)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    first, second = run.stdout.splitlines()
    assert first == '429 12 application/json {"error": "queue_full", "retry_after": 12}'
    assert second == "500"


def test_flask_answers_429() -> None:
    """With an error handler."""
    app = flask.Flask(__name__)
    app.add_url_rule("/full", view_func=Full(), endpoint="full")
    app.register_error_handler(QueueFull, flask_queue_full)
    answer = app.test_client().get("/full")
    assert (answer.status_code, answer.headers["Retry-After"], answer.get_json()["error"]) == (429, "12", "queue_full")


def test_starlette_answers_429() -> None:
    """With a middleware; other answers and errors pass."""

    def full(_: Any) -> Any:
        Full()()

    def well(_: Any) -> Any:
        return PlainTextResponse("well")

    def broken(_: Any) -> Any:
        raise LookupError

    routes = [Route("/full", full), Route("/well", well), Route("/broken", broken)]
    app = Starlette(routes=routes)
    app.add_middleware(AsgiQueueFull)

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return [await client.get(path) for path in ("/full", "/well", "/broken")]

    refused, passed, failed = asyncio.run(answers())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "12")
    assert refused.json() == {"error": "queue_full", "retry_after": 12}
    assert (passed.text, failed.status_code) == ("well", 500)


def test_an_answer_that_has_begun_is_not_answered_again() -> None:
    """The error goes on to the server."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        Full()()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any: ...

    with pytest.raises(QueueFull):
        asyncio.run(AsgiQueueFull(app)({"type": "http"}, receive, send))
    assert sent == ["http.response.start"]
