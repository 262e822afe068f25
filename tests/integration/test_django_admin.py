"""The pages in Django's admin, on a store in the project's database and on one in Redis.

Each is a process of its own with all tests of `apps/django_pages.py`: Django's settings are one for a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGES = "tests/integration/apps/django_pages.py"


@pytest.mark.parametrize("store", ["database", "redis"])
def test_the_pages_show_and_change_the_store(tmp_path: Path, redis_url: str, store: str) -> None:
    """Through Django's test client; a real browser drives them in `tests/browser`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "example_project.webshop.settings"}
    environment |= {"WEBSHOP_DIRECTORY": str(tmp_path), "WEBSHOP_BROKER_URL": redis_url, "WEBSHOP_DEBUG": "0"}
    environment |= {"WEBSHOP_STORE_URL": "django://default" if store == "database" else redis_url}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", PAGES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
