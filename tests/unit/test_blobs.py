"""Blobs: written once, verified when read, swept when nobody can refer to them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from celery_reliable.blobs import BlobRef, Blobs
from celery_reliable.errors import BlobLost, ConfigurationError, Transient
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.base import Job, Run
from celery_reliable.worker.blob_sweep import sweep
from celery_reliable.worker.preflight import check_settings
from tests.unit.test_task import job_task, make_app

DAY = 86_400.0
BEGIN = 1_900_000_000.0


class Clock:
    """The server's clock, moved by hand."""

    def __init__(self) -> None:
        """Begin some day."""
        self.seconds = BEGIN

    def __call__(self) -> int:
        """Microseconds."""
        return int(self.seconds * 1e6)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands."""
    return Clock()


@pytest.fixture
def blobs(tmp_path: Path, clock: Clock) -> Blobs:
    """A local folder that does not exist yet."""
    return Blobs(str(tmp_path / "deep" / "blobs"), now=clock)


def file_of(tmp_path: Path, ref: BlobRef) -> Path:
    """Where a blob lies."""
    return tmp_path / "deep" / "blobs" / ref.path


def test_what_was_put_comes_back(blobs: Blobs, tmp_path: Path) -> None:
    """Byte for byte; the reference says size and digest and survives being stored."""
    ref = blobs.put(b"\x00large", kind="checkpoints", ttl=DAY)
    assert blobs.get(BlobRef.from_bytes(ref.to_bytes())) == b"\x00large"
    assert ref.size == 6
    assert file_of(tmp_path, ref).read_bytes() == b"\x00large"


@pytest.mark.parametrize("url", ["file://{}", "{}", "memory://cr-blobs"])
def test_any_fsspec_folder_serves(url: str, tmp_path: Path, clock: Clock) -> None:
    """A URL, an absolute path, another file system."""
    blobs = Blobs(url.format(tmp_path), now=clock)
    ref = blobs.put(b"x", kind="results", ttl=DAY)
    assert blobs.get(ref) == b"x"
    clock.seconds += 3 * DAY
    assert blobs.sweep() == 1


def test_equal_values_are_blobs_of_their_own(blobs: Blobs) -> None:
    """So that removing one job's does not take another's."""
    one, other = (blobs.put(b"same", kind="results", ttl=DAY) for _ in range(2))
    blobs.remove(one)
    assert blobs.get(other) == b"same"


def test_missing_blob_is_lost_not_retried(blobs: Blobs, tmp_path: Path) -> None:
    """No attempt can bring it back."""
    ref = blobs.put(b"x", kind="results", ttl=DAY)
    file_of(tmp_path, ref).unlink()
    with pytest.raises(BlobLost, match=r"found nothing.*bring it back"):
        blobs.get(ref)
    blobs.remove(ref)  # no error


@pytest.mark.parametrize("body", [b"y", b"", b"xx"])
def test_altered_blob_is_refused(blobs: Blobs, tmp_path: Path, body: bytes) -> None:
    """By its SHA-256."""
    ref = blobs.put(b"x", kind="results", ttl=DAY)
    file_of(tmp_path, ref).write_bytes(body)
    with pytest.raises(BlobLost, match="SHA-256"):
        blobs.get(ref)


def test_foreign_path_is_not_read(blobs: Blobs) -> None:
    """A reference that somebody put into the store reads nothing else."""
    with pytest.raises(BlobLost, match="another path"):
        blobs.get(BlobRef("../../etc/hostname", "", 1))


def test_folder_that_cannot_be_reached_may_be_tried_again(tmp_path: Path, clock: Clock) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Transient, match="reliable_blob_url"):
        Blobs(str(tmp_path / "file"), now=clock).put(b"x", kind="results", ttl=DAY)


def test_sweep_takes_what_is_over_and_nothing_else(blobs: Blobs, clock: Clock, tmp_path: Path) -> None:
    """A day after the last day; the emptied folder goes; foreign files stay."""
    short, long = blobs.put(b"s", kind="results", ttl=DAY), blobs.put(b"l", kind="results", ttl=30 * DAY)
    foreign = tmp_path / "deep" / "blobs" / "results" / "notes.txt"
    foreign.write_text("mine")
    clock.seconds += DAY
    assert blobs.sweep() == 0
    clock.seconds += 2 * DAY
    assert blobs.sweep() == 1
    assert not file_of(tmp_path, short).parent.exists()
    assert blobs.get(long) == b"l"
    assert foreign.exists()


def test_sweep_is_bounded(blobs: Blobs, clock: Clock) -> None:
    """The rest comes next time."""
    for _ in range(5):
        blobs.put(b"x", kind="results", ttl=DAY)
    clock.seconds += 3 * DAY
    assert [blobs.sweep(limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_sweep_of_a_folder_that_does_not_exist_is_nothing(blobs: Blobs) -> None:
    """Nothing was ever kept aside."""
    assert blobs.sweep() == 0


def test_unknown_protocol_is_refused_with_a_remedy(clock: Clock) -> None:
    """When the worker starts."""
    with pytest.raises(ConfigurationError, match=r"reliable_blob_url.*nosuch.*install its driver"):
        Blobs("nosuch://bucket", now=clock).check()


def test_missing_fsspec_names_the_extra(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only projects with a folder need it."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigurationError, match=r"celery-reliable\[claim-check\]"):
        Blobs("memory://x", now=clock).check()


def test_worker_refuses_a_folder_that_it_can_never_reach() -> None:
    """With the other settings, before it takes a task."""
    app = make_app(reliable_blob_url="nosuch://bucket")
    with pytest.raises(ConfigurationError, match="reliable_blob_url"):
        check_settings(app)


def test_one_worker_of_the_fleet_sweeps(tmp_path: Path) -> None:
    """The first to ask, for an hour; it says how many went."""
    seen: list[tuple[str, Any]] = []
    app = make_app(reliable_blob_url=str(tmp_path), reliable_event_hooks=[lambda *event: seen.append(event)])
    old = tmp_path / "results" / "2001-01-01"
    old.mkdir(parents=True)
    for name in ("a", "b"):
        (old / name).write_text("x")
    runtime = runtime_of(app)
    assert [sweep(runtime, token="one"), sweep(runtime, token="other")] == [2, 0]
    assert seen == [("blobs_swept", {"count": 2})]
    (tmp_path / "results").rmdir()


def test_folder_that_is_away_does_not_end_the_sweeper() -> None:
    """It says so, and tries again in an hour."""
    seen: list[Any] = []
    app = make_app(reliable_blob_url="nosuch://bucket", reliable_event_hooks=[lambda *event: seen.append(event[0])])
    assert sweep(runtime_of(app), token="one") == 0
    assert seen == ["blob_failed"]


def test_result_of_a_done_job_that_the_backend_forgot_is_brought_back(tmp_path: Path) -> None:
    """For who submits its key again; one that is lost is no error of the submission, but of asking for it."""
    app = make_app(reliable_blob_url=str(tmp_path))
    task, runtime = job_task(app, idempotency_key="job:{x}"), runtime_of(app)
    assert runtime.blobs is not None
    for x, lost in ((1, False), (2, True)):
        ref = runtime.blobs.put(b'"large"', kind="results", ttl=DAY)
        first = task.delay(x)
        job = Job(f"job:{x}", "declared")
        run = runtime.store.claim(job, task_id=first.id, life=0, token="t", ttl=9, max_deliveries=5, record_ttl=99)
        assert isinstance(run, Run)
        outcome = ref.to_bytes()
        runtime.store.complete(job, task_id=first.id, fence=run.fence, token="t", outcome=outcome, marker_ttl=99)
        if lost:
            runtime.blobs.remove(ref)
        again = task.delay(x)
        assert (again.id, again.state) == (first.id, "SUCCESS")
        if lost:
            with pytest.raises(BlobLost):
                again.get(timeout=1)
        else:
            assert again.get(timeout=1) == "large"
