"""The files that the how-to pages give to supervisors: they fit the settings beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_reliable.checks import Budget, fit, read_manifest

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
FILES = {
    "kubernetes": "kubernetes.yaml",
    "docker-compose": "compose.yaml",
    "systemd": "shop-worker.service",
    "supervisor": "supervisord.conf",
}


@pytest.mark.parametrize("page", FILES)
def test_the_file_of_a_how_to_fits_its_settings(page: str) -> None:
    """The grace period is long enough for the drain timeout that the page sets, and the signal arrives."""
    text = (HOW_TO / f"{page}.md").read_text("utf-8")
    found = re.search(r"reliable_drain_timeout = (\d+)", text)
    assert found
    assert f"files/{FILES[page]}" in text
    (worker,) = read_manifest(HOW_TO / "files" / FILES[page])
    assert worker.is_set is True
    assert fit(Budget(drain_timeout=float(found[1]), longest_time_limit=None), worker) == []


@pytest.mark.parametrize("page", FILES)
def test_the_probes_of_a_how_to_read_the_file_that_its_settings_name(page: str) -> None:
    """In the supervisor's file, or where the page says how to look."""
    text = (HOW_TO / f"{page}.md").read_text("utf-8")
    found = re.search(r'reliable_heartbeat_file = "(.+)"', text)
    assert found
    files = [HOW_TO / "files" / name for name in re.findall(r"literalinclude\} files/(\S+)", text)]
    words = re.sub(r"[\[\],\"']", " ", text + "".join(file.read_text("utf-8") for file in files)).split()
    asked = [
        words[at + 1] for at, word in enumerate(words) if word == "celery_reliable.probe" and words[at - 1] == "-m"
    ]
    assert asked
    assert set(asked) == {found[1]}


def test_no_file_of_the_how_to_pages_is_left_unchecked() -> None:
    """All are parsed: the two that are no workers by hand, those of Prometheus by its own programs (`test_prometheus`)."""
    others = {"shop-worker-check.service", "shop-worker-check.timer"}
    metrics = {"grafana-dashboard.json", "prometheus-rules.yaml", "prometheus-rules-test.yaml"}
    assert {path.name for path in (HOW_TO / "files").iterdir()} == {*FILES.values(), *others, *metrics}
    for name in others:
        assert "[Unit]" in (HOW_TO / "files" / name).read_text("utf-8")
    assert read_manifest(HOW_TO / "files" / "shop-worker-check.service") == []
