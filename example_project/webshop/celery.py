"""Make the Celery application: every setting is the Django project's."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.webshop.settings")

app = Celery("webshop", task_cls="celery_reliable:ReliableTask")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
