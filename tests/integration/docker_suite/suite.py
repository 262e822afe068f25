"""A suite as pytest-celery's users write them. Run by `test_pytest_celery` with a pytest of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from pytest_celery import CeleryTestSetup

from tests.integration.docker_suite import tasks

if TYPE_CHECKING:
    from celery import Celery

DEADLINE = 30


class Setup(CeleryTestSetup):  # type: ignore[misc]  # pytest-celery is not typed
    """Leases that end soon."""

    @classmethod
    def update_app_config(cls, app: Celery) -> None:
        """See pytest-celery."""
        app.conf.update(reliable_lease_ttl=3, reliable_event_hooks=())


@pytest.fixture
def celery_setup_cls() -> type[CeleryTestSetup]:
    """The setup with our settings."""
    return Setup


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[Any]) -> set[Any]:
    """The worker knows our tasks, too."""
    return {*default_worker_tasks, tasks}


def test_a_killed_worker_s_job_goes_on_after_its_restart(celery_setup: CeleryTestSetup) -> None:
    """With each broker: ready, works, is killed, works again; nothing needs Docker."""
    worker = celery_setup.worker
    assert celery_setup.ready(ping=True, control=True)
    result = tasks.count.s(30).apply_async(queue=worker.worker_queue)
    worker.wait_for_log("counts page 3.")
    worker.kill()
    assert worker.container.status == "exited"
    worker.restart()
    assert result.get(timeout=DEADLINE) == 30
    assert worker.logs().count("counts page 1.") == 1
    assert worker.get_running_processes_info(["pid"])
    found = worker.container.exec_run(["python", "-c", "import sys; print(sys.executable)"])
    assert found == (0, f"{sys.executable}\n".encode())
