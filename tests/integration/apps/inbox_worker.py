"""Tasks whose effect is a row in a database; `pay` through SQLAlchemy, `pay_all` and `pay_some` through Django."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy

from celery_reliable import ReliableTask
from tests.integration.apps.jobs import make_app, note, stage_of
from tests.integration.apps.stage import Stage

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

PAYMENTS = "CREATE TABLE IF NOT EXISTS payment (label varchar(80) NOT NULL, fence bigint NOT NULL)"
PAY = "INSERT INTO payment (label, fence) VALUES (:label, :fence)"


@cache
def engine_of(url: str, pid: int) -> Engine:
    """Return the engine of one process."""
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


def pay(self: Any, label: str) -> str:
    """Pay in an inbox; a run waits at the gate of its number inside the transaction, if there is one."""
    note(self, label)
    stage = stage_of(self)
    with engine_of(os.environ["CR_TEST_EFFECTS"], os.getpid()).connect() as connection:
        with self.inbox(connection) as done:
            connection.execute(sqlalchemy.text(PAY), {"label": label, "fence": self.fence})
            stage.meet("effect", label)
            done.result = f"paid by run {len(stage.entries(label))}"
        stage.meet("committed", label)
    return str(done.result)


def pay_all(self: Any, label: str) -> str:
    """Pay in the body of a task that says ``inbox=True``."""
    from django.db import connection  # noqa: PLC0415  # for workers of a Django project

    note(self, label)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO payment (label, fence) VALUES (%s, %s)", [label, self.fence])
    stage_of(self).meet("effect", label)
    return f"paid by run {len(stage_of(self).entries(label))}"


def pay_some(self: Any, label: str) -> str:
    """Pay in an ``atomic`` block of the inbox."""
    with self.inbox() as done:
        done.result = pay_all(self, label)
    stage_of(self).meet("committed", label)
    return str(done.result)


def app_of(stage: Stage) -> Any:
    """Return the app of `jobs` with these tasks."""
    app = make_app(stage)
    for body, options in ((pay, {}), (pay_all, {"inbox": True}), (pay_some, {})):
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False, **options)(body)
    return app


if "CR_STAGE" in os.environ:
    app = app_of(Stage.from_environment())
