"""Two releases of one project: ``CR_RELEASE`` says which of them a worker has.

The second one has renamed a task, changed what others take, and has a task that the first does not know.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from celery import Celery

from celery_reliable import ReliableTask, Transient
from celery_reliable.runtime import forget_runtime
from tests.integration.apps.jobs import CONF, note
from tests.integration.apps.stage import VARIABLE, Stage


def make_release(stage: Stage, number: int) -> Celery:
    """Return the app of a release."""
    app = Celery("shop", broker=stage.broker, backend=stage.backend, set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update({**CONF, "reliable_store_url": stage.store, "reliable_event_hooks": (stage.hook,), **stage.conf})
    app.stage = stage
    (_first if number == 1 else _second)(app)
    return app


@contextlib.contextmanager
def release(stage: Stage, number: int) -> Iterator[Celery]:
    """The app of a release to submit with, closed at the end."""
    app = make_release(stage, number)
    try:
        yield app
    finally:
        forget_runtime(app)
        if hasattr(app.backend, "result_consumer"):
            app.backend.result_consumer.subscribed_to.clear()
        app.close()


def _task(app: Celery, body: Any, **options: Any) -> Any:
    return app.task(base=ReliableTask, bind=True, name=f"shop.{body.__name__}", shared=False, **options)(body)


def _first(app: Celery) -> None:
    def charge(self: Any, order_id: int, amount: float, label: str) -> str:
        note(self, label, order_id=order_id, cents=round(amount * 100))
        return f"{order_id}:{round(amount * 100)}"

    def greet(self: Any, name: str, label: str) -> str:
        note(self, label, name=name)
        return f"hello {name}"

    def mail(self: Any, label: str) -> str:
        note(self, label)
        return "sent"

    def total(self: Any, before: Any, amount: float, label: str) -> int:
        note(self, label, before=before)
        return round(amount * 100)

    _task(app, charge, idempotency_key="charge:{order_id}")
    _task(app, greet)
    _task(app, mail, idempotency_key="arguments")
    _task(app, total)


def _second(app: Celery) -> None:
    def charge(self: Any, order_id: int, cents: int, label: str, currency: str = "EUR", *, fail: int = 0) -> str:
        note(self, label, order_id=order_id, cents=cents)
        if self.attempt <= fail:
            raise Transient("not yet")
        return f"{order_id}:{cents}"

    def greet(self: Any, name: str, label: str, title: str = "") -> str:
        note(self, label, name=name, title=title)
        return f"hello {title}{name}"

    def letter(self: Any, label: str, copies: int = 1) -> str:
        note(self, label, copies=copies)
        return "sent"

    def total(self: Any, before: Any, cents: int, label: str) -> int:
        note(self, label, before=before)
        return cents

    def invoice(self: Any, label: str) -> str:
        note(self, label)
        return "written"

    def lift(arguments: dict[str, Any]) -> dict[str, Any]:
        amount = arguments.pop("amount")
        if amount < 0:
            raise ValueError(f"amount {amount} is below zero")
        return {**arguments, "cents": round(amount * 100)}

    for body, positional in ((charge, ("order_id", "amount", "label")), (total, ("before", "amount", "label"))):
        key = {"idempotency_key": "charge:{order_id}"} if body is charge else {}
        _task(app, body, payload_version=2, **key).upgrade(from_version=1, positional=positional)(lift)
    _task(app, greet)
    _task(app, letter, idempotency_key="arguments", aliases=("shop.mail",))
    _task(app, invoice)


if VARIABLE in os.environ:
    app = make_release(Stage.from_environment(), int(os.environ["CR_RELEASE"]))
