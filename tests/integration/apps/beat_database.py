"""The app of a beat whose schedule is in a database: ``celery -A tests.integration.apps.beat_database beat``.

Run as a program it makes the database, with rows given as JSON.
"""

from __future__ import annotations

import json
import sys

import django
from django.conf import settings

from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage

stage = Stage.from_environment()
settings.configure(
    INSTALLED_APPS=["django_celery_beat"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(stage.directory / "rows.sqlite3"),
            "OPTIONS": {"timeout": 20},
        }
    },
    USE_TZ=True,
    TIME_ZONE="UTC",
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)
django.setup()
app = make_app(stage)


def main(rows: list[dict[str, object]]) -> None:
    """Make tables and rows."""
    from django.core.management import call_command  # noqa: PLC0415  # models exist after the setup
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    broken = CrontabSchedule.objects.create(minute="77")
    for row in rows:
        schedule = {"crontab": broken} if row.pop("broken", False) else {"interval": second}
        PeriodicTask.objects.create(**schedule, **row)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
