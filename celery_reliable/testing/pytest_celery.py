"""Run a suite that uses pytest-celery without Docker: as processes of this machine.

In the suite's ``conftest.py``::

    pytest_plugins = ["celery_reliable.testing.pytest_celery"]

Where a Docker daemon answers, containers are used as before. ``CR_TEST_DOCKER=0`` asks for processes all the same, ``1``
insists on Docker.

.. versionadded:: 0.1
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import docker
import pytest
from docker.errors import DockerException
from pytest_docker_tools.wrappers import container

from celery_reliable.testing.local_docker import local_docker

SETTING: Final = "CR_TEST_DOCKER"
ANSWERS_WITHIN: Final = 5  # seconds


@pytest.fixture(scope="session")
def docker_client() -> Iterator[Any]:  # Any: docker's client is not typed
    """Give pytest-docker-tools a client of the Docker daemon, or of this machine's processes where there is none."""
    daemon = find_daemon(os.environ.get(SETTING, ""))
    if daemon is not None:
        yield daemon
        return
    with pytest.MonkeyPatch.context() as patch, local_docker() as client:
        # Tests that run in a container would else look for the others on its network.
        patch.setattr(container, "tests_inside_container", lambda: False)
        yield client


def find_daemon(wanted: str) -> Any | None:
    """Return a client of the Docker daemon if one answers and is not unwanted. Raises what docker raises if it is a must."""
    if wanted == "0":
        return None
    try:
        client = docker.from_env(timeout=ANSWERS_WITHIN)
        client.ping()
    except DockerException:
        if wanted == "1":
            raise
        return None
    return docker.from_env()
