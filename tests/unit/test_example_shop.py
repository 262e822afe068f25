"""The shop's own parts: settings from the environment, the application, the report."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from example_project import reports
from example_project.app import create_app
from example_project.settings import Settings


def test_settings_survive_the_way_through_the_environment() -> None:
    """What one process sets is what its children read."""
    settings = Settings(broker_url="redis://h:1/0", sections=7, lease_ttl=2.5, opened_at=time.time())
    assert Settings.from_environment(settings.to_environment()) == settings


def test_settings_that_the_environment_leaves_out_keep_their_defaults() -> None:
    """Other variables do not matter."""
    assert Settings.from_environment({"SHOP_SECTIONS": "7", "PATH": "/bin"}) == Settings(sections=7)


def test_a_setting_that_cannot_be_read_is_named() -> None:
    """With what was expected and found."""
    with pytest.raises(ValueError, match="expected int, found 'many' in SHOP_SECTIONS"):
        Settings.from_environment({"SHOP_SECTIONS": "many"})


def test_the_application_takes_its_settings_and_leaves_the_rest_to_the_preset() -> None:
    """Ours win, and what we do not set is crash-safe."""
    conf = create_app(Settings(broker_url="redis://h:1/0", lease_ttl=4.0)).conf
    assert (conf.broker_url, conf.reliable_lease_ttl) == ("redis://h:1/0", 4.0)
    assert conf.task_acks_late is True
    assert conf.beat_schedule["collect"]["task"] == "example_project.tasks.collect"


@pytest.mark.parametrize(("moment", "day"), [(100.0, 1), (109.9, 1), (110.0, 2), (135.0, 4)])
def test_a_day_begins_where_the_last_one_ends(moment: float, day: int) -> None:
    """The first has number 1."""
    assert reports.day_at(moment, opened_at=100.0, day_seconds=10.0) == day


def test_a_section_is_the_same_on_every_worker() -> None:
    """Else a report that was handed over would differ."""
    assert reports.section(3, 7) == reports.section(3, 7)
    assert reports.section(3, 7) != reports.section(4, 7)
    assert reports.numbers([reports.section(3, 7), reports.section(3, 8)]) == [7, 8]


def test_a_published_report_is_the_only_file_in_its_directory(tmp_path: Path) -> None:
    """Drafts do not stay, and publishing again replaces."""
    for line in ("section 001", "section 002"):
        path = reports.publish(str(tmp_path / "reports"), day=3, lines=[line])
    assert [file.name for file in path.parent.iterdir()] == ["report-day-3.txt"]
    assert path.read_text() == "Sales of day 3\nsection 002\n"
