"""A suite for pytest-celery runs on this machine's processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from docker.errors import DockerException, NotFound

from celery_reliable.testing.local_docker import local_docker
from celery_reliable.testing.processes import process_table
from celery_reliable.testing.pytest_celery import find_daemon
from celery_reliable.testing.waiting import wait_until
from tests.integration.test_pytest_plugin import run_pytest
from tests.integration.workers import ROOT

pytestmark = pytest.mark.integration

SUITE = ROOT / "tests" / "integration" / "docker_suite"
PLUGINS = ("-p", "pytest_docker_tools.plugin", "-p", "pytest_celery.plugin", "-p", "no:cacheprovider")


def test_a_suite_runs_without_docker(tmp_path: Path) -> None:
    """Its worker, RabbitMQ and Redis (as result backend) are processes, and none is left."""
    words = (*PLUGINS, "--import-mode=importlib", f"--rootdir={ROOT}", "-c", os.devnull, f"--basetemp={tmp_path / 'b'}")
    before = {entry.pid for entry in process_table()}
    printed = run_pytest(
        *words, SUITE / "suite.py", "-k", "rabbitmq_broker", folder=tmp_path, env={"CR_TEST_DOCKER": "0"}
    )
    assert "1 passed" in printed
    assert "celery_rabbitmq_broker-celery_redis_backend" in printed
    ours = [entry.pid for entry in process_table() if entry.pid not in before and entry.parent == os.getpid()]
    assert ours == []


def test_a_daemon_is_used_where_one_answers_and_may_be_a_must(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No daemon answers behind a socket that is not there."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert find_daemon("") is None
    assert find_daemon("0") is None
    with pytest.raises(DockerException):
        find_daemon("1")


def test_a_program_in_place_of_a_container(tmp_path: Path) -> None:
    """Volume, environment, signals and restarts are those of a container; what nothing can stand for is said."""
    program = (
        "import os, signal, time; print(open('hello.txt').read(), os.environ['WHERE'], flush=True); time.sleep(60)"
    )
    with local_docker() as client:
        volume = client.volumes.create("files")
        (volume.path / "hello.txt").write_text("from the volume")
        options: dict[str, Any] = {
            "volumes": {"files": {"bind": "/app", "mode": "rw"}},
            "environment": {"WHERE": "/app/x"},
        }
        container = client.containers.run("mine", ["python", "-c", program], **options)
        wait_until(lambda: b"from the volume" in container.logs(), 10.0, "the program's output")
        assert f"{volume.path}/x".encode() in container.logs()
        assert container.status == "running"
        container.restart()
        wait_until(lambda: container.logs().count(b"from the volume") == 2, 10.0, "its output again")
        container.kill("TERM")
        wait_until(lambda: container.status == "exited", 10.0, "its end by SIGTERM")
        container.kill(signal.SIGKILL)  # twice is once
        with pytest.raises(NotFound, match="localstack"):
            client.containers.run("localstack/localstack")
    assert not volume.path.exists()
