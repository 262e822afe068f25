"""All that a suite for pytest-celery needs to run without Docker."""

from __future__ import annotations

pytest_plugins = ["celery_reliable.testing.pytest_celery"]
