"""A Django project whose database is also the store of its tasks."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pymysql

if find_spec("MySQLdb") is None:
    pymysql.install_as_MySQLdb()

SECRET_KEY = "of a test"  # nothing is signed with it
INSTALLED_APPS = ["celery_reliable.django"]
USE_TZ = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("CR_TEST_FILE", "none.db")},
    "postgres": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": "127.0.0.1",
        "PORT": os.environ.get("CR_TEST_PORT", "1"),
    },
    "mariadb": {
        "ENGINE": "django.db.backends.mysql",
        "OPTIONS": {"isolation_level": "repeatable read"},  # the server's own; Django asks for less by default
        "NAME": "reliable",
        "USER": "root",
        "HOST": "127.0.0.1",
        "PORT": os.environ.get("CR_TEST_PORT", "1"),
    },
}
