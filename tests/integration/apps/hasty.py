"""The app of `worker` for tests that wait for a wait to end: of what is drawn at random it draws the least."""

from __future__ import annotations

import random

from celery_reliable.runtime import runtime_of
from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage


class Least(random.Random):
    """A random number is the lowest that may be drawn."""

    def uniform(self, a: float, b: float) -> float:
        """Return the lower end."""
        return min(a, b)


app = make_app(Stage.from_environment())
runtime_of(app).random = Least()
