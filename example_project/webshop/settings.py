"""Configure the shop. What differs between machines comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path

import django

DIRECTORY = Path(os.environ.get("WEBSHOP_DIRECTORY", "."))

SECRET_KEY = os.environ.get("WEBSHOP_SECRET_KEY", "only for a demonstration on this machine")
DEBUG = os.environ.get("WEBSHOP_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "example_project.webshop.urls"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "celery_reliable.django",
    "example_project.webshop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# Two that write at once wait for each other, instead of failing when the second one wants to write, too: from Django 5.1 on.
WAITING = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DIRECTORY / "webshop.sqlite3",
        "OPTIONS": {"timeout": 20, **(WAITING if django.VERSION >= (5, 1) else {})},
        "ATOMIC_REQUESTS": True,
        "CONN_MAX_AGE": 60,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

CELERY_TASK_TIME_LIMIT = 300
CELERY_BROKER_URL = os.environ.get("WEBSHOP_BROKER_URL", "redis://127.0.0.1:6379/0")
CELERY_RESULT_BACKEND = os.environ.get("WEBSHOP_RESULT_URL", CELERY_BROKER_URL)
CELERY_RELIABLE_STORE_URL = os.environ.get("WEBSHOP_STORE_URL", "django://default")
CELERY_RELIABLE_LEASE_TTL = float(os.environ.get("WEBSHOP_LEASE_TTL", "15"))
CELERY_RELIABLE_MAX_RETRIES = 2
CELERY_RELIABLE_RETRY_BACKOFF = 0.2
CELERY_BEAT_SCHEDULE = {
    "report": {"task": "webshop.report", "schedule": float(os.environ.get("WEBSHOP_REPORT_EVERY", "3600"))}
}
