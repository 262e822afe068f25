"""Make the Celery application of the shop.

The adoption of celery_reliable is one line here, ``config_from_object``, and ``base=ReliableTask`` on each task. The rest
is what any project sets: where the broker is, how long a lease lasts, what beat fires.
"""

from __future__ import annotations

from celery import Celery

from example_project.settings import Settings


def create_app(settings: Settings) -> Celery:
    """Return the application for these settings. Connects to nothing."""
    app = Celery("shop", include=["example_project.tasks"])
    app.config_from_object("celery_reliable.presets")
    app.conf.update(
        broker_url=settings.broker_url,
        result_backend=settings.broker_url,
        task_time_limit=300,
        reliable_lease_ttl=settings.lease_ttl,
        reliable_drain_timeout=settings.drain_timeout,
        reliable_retry_backoff=settings.retry_backoff,
        beat_schedule={
            "collect": {
                "task": "example_project.tasks.collect",
                "schedule": settings.collect_every,
                "args": [settings.opened_at],
            }
        },
    )
    return app


settings = Settings.from_environment()
app = create_app(settings)
