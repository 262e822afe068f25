"""The example's Django project with the store in a database of its own; everything else is in the first one."""

from __future__ import annotations

from example_project.webshop.settings import *  # noqa: F403
from example_project.webshop.settings import DATABASES as _DATABASES
from example_project.webshop.settings import DIRECTORY

DATABASES = {**_DATABASES, "store": {**_DATABASES["default"], "NAME": DIRECTORY / "store.sqlite3"}}
CELERY_RELIABLE_STORE_URL = "django://store"
