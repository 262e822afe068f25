"""Tasks that write late: `deliver` through SQLAlchemy, `deliver_by_model` through Django."""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy
from sqlalchemy.orm import Session

from celery_reliable import ReliableTask
from tests.integration.apps.jobs import make_app, note, stage_of
from tests.integration.apps.stage import Stage


def _begin(task: Any, label: str) -> str:
    """Note the start, and wait if that is planned; return which run this is."""
    note(task, label)
    run = f"run {len(stage_of(task).entries(label))}"
    stage_of(task).meet("paused", label)
    return run


def deliver(self: Any, label: str, number: int) -> str:
    """Write through SQLAlchemy."""
    from celery_reliable.contrib.sqlalchemy import fenced_update  # noqa: PLC0415  # as Django's, where it is used
    from tests.integration.apps.parcels.tables import Parcel  # noqa: PLC0415

    run = _begin(self, label)
    engine = sqlalchemy.create_engine(os.environ["CR_TEST_EFFECTS"])
    with Session(engine) as session, session.begin():
        fenced_update(session, Parcel, Parcel.id == number, fence=self.fence, state=run)
    return run


def deliver_by_model(self: Any, label: str, number: int) -> str:
    """Write through Django."""
    from celery_reliable.django import fenced_update  # noqa: PLC0415  # Django's settings are read
    from tests.integration.apps.parcels.models import Parcel  # noqa: PLC0415

    run = _begin(self, label)
    fenced_update(Parcel.objects.using("postgres").filter(pk=number), fence=self.fence, status=run)
    return run


def app_of(stage: Stage) -> Any:
    """Return the app of `jobs` with these tasks."""
    app = make_app(stage)
    for body in (deliver, deliver_by_model):
        app.task(base=ReliableTask, bind=True, name=body.__name__, shared=False)(body)
    return app


if "CR_STAGE" in os.environ:
    import django

    django.setup()
    app = app_of(Stage.from_environment())
