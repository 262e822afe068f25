"""The app that workers run: ``celery -A tests.integration.apps.worker worker``."""

from __future__ import annotations

import os

from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage

app = make_app(Stage.from_environment(), task_cls=os.environ.get("CR_TASK_CLS") == "1")
