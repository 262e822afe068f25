"""What the workers of a run load: ``celery -A tests.chaos.worker_app worker``. SIGUSR2 has one write its stacks to its log."""

from __future__ import annotations

import faulthandler
import signal

from tests.chaos.app import make_app
from tests.chaos.site import Site

faulthandler.register(signal.SIGUSR2, all_threads=True)
app = make_app(Site.from_environment())
