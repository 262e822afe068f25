"""What the workers of a run load: ``celery -A tests.chaos.worker_app worker``."""

from __future__ import annotations

from tests.chaos.app import make_app
from tests.chaos.site import Site

app = make_app(Site.from_environment())
