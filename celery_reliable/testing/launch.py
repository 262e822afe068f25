"""Start `celery` on a project's app under other settings; what the workers and beats of a test run.

    python -m celery_reliable.testing.launch shop '{"broker_url": "redis://..."}' worker --pool solo

`celery worker` takes Celery's own settings on its command line, but none of ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import celery
from celery.app.utils import find_app


def main(words: Sequence[str]) -> None:
    """Take the app's name as after ``celery -A``, settings as JSON, and what follows ``celery -A name``."""
    name, conf, *command = words
    celery.maybe_patch_concurrency(command)  # as `python -m celery` does, before anything of the project is imported
    app = find_app(name)
    app.conf.update(json.loads(conf))
    app.start(command)


if __name__ == "__main__":
    main(sys.argv[1:])
