"""Large results: the backend has a reference, and whoever asks for the result has the result."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task
from celery.app.task import Context
from kombu.utils import json as kombu_json
from kombu.utils.encoding import ensure_bytes

from celery_reliable import ReliableTask, Transient, large_results
from celery_reliable.blobs import BlobRef
from celery_reliable.errors import BlobLost
from celery_reliable.runtime import runtime_of
from celery_reliable.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from celery.result import AsyncResult

    from celery_reliable.testing import Bench

LIMIT = 1000
LARGE = "x" * 5000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where blobs go."""
    return tmp_path / "blobs"


def make_app(**conf: Any) -> Celery:
    """Return an app whose results stay in this process."""
    made = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    made.config_from_object("celery_reliable.presets")
    made.conf.update(reliable_store_url="memory://", reliable_claim_check_threshold=LIMIT, **conf)
    return made


def add_produce(app: Celery, **options: Any) -> ReliableTask:
    """Register a task that returns so many characters."""

    def produce(size: int) -> str:
        return "x" * size

    task: ReliableTask = app.task(base=ReliableTask, name="produce", shared=False, **options)(produce)
    return task


@pytest.fixture
def app(folder: Path) -> Celery:
    """An app with a folder."""
    return make_app(reliable_blob_url=f"file://{folder}")


@pytest.fixture
def bench(app: Celery) -> Iterator[Bench]:
    """The app's bench."""
    with in_memory(app) as made:
        yield made


def ran(app: Celery, bench: Bench, size: int, **options: Any) -> AsyncResult[Any]:
    """Return the result of a job that has run, as another part of the process would ask for it."""
    task = app.tasks["produce"] if "produce" in app.tasks else add_produce(app, **options)
    task_id = task.delay(size).id
    bench.drain_all()
    return app.AsyncResult(task_id)


def stored(app: Celery, task_id: str) -> Any:
    """Return what the backend has."""
    return ensure_bytes(app.backend.get(app.backend.get_key_for_task(task_id)))


def blobs_in(folder: Path) -> list[Path]:
    """Return the files of blobs."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_backend_has_a_reference_and_its_reader_the_result(app: Celery, bench: Bench, folder: Path) -> None:
    """Below 2 KB; of store and backend together one blob."""
    result = ran(app, bench, len(LARGE))
    assert len(stored(app, result.id)) < 2000
    assert (result.get(timeout=1), result.result, app.backend.get_result(result.id)) == (LARGE,) * 3
    assert len(blobs_in(folder)) == 1


def test_small_results_stay_as_they_are(app: Celery, bench: Bench, folder: Path) -> None:
    """And whatever was stored before there was a folder."""
    result = ran(app, bench, 10)
    assert kombu_json.loads(stored(app, result.id))["result"] == "x" * 10
    app.backend.store_result("old", LARGE, "SUCCESS")
    assert app.AsyncResult("old").get(timeout=1) == LARGE
    assert blobs_in(folder) == []


@pytest.mark.parametrize("conf", [{}, {"result_serializer": "pickle", "result_accept_content": ("pickle",)}])
def test_without_a_folder_or_with_another_serializer_nothing_is_changed(folder: Path, conf: dict[str, Any]) -> None:
    """The backend is Celery's own then, and has the whole result."""
    app = make_app(**conf, **({"reliable_blob_url": f"file://{folder}"} if conf else {}))
    with in_memory(app) as bench:
        result = ran(app, bench, len(LARGE))
        assert len(stored(app, result.id)) > len(LARGE)
        assert result.get(timeout=1) == LARGE
    assert "meta_from_decoded" not in vars(app.backend)


def test_state_is_known_without_the_result(app: Celery, bench: Bench, folder: Path) -> None:
    """A lost result is told to who asks for it, and what is not lost is read once."""
    result = ran(app, bench, len(LARGE))
    (path,) = blobs_in(folder)
    away = path.rename(path.with_suffix(".away"))
    assert (result.state, result.ready(), result.successful()) == ("SUCCESS", True, True)
    for _ in range(2):
        with pytest.raises(BlobLost, match="found nothing; somebody removed or changed it"):
            result.get(timeout=1)
    away.rename(path)
    assert result.get(timeout=1) == LARGE
    path.unlink()
    assert result.get(timeout=1) == LARGE


def test_altered_result_is_refused(app: Celery, bench: Bench, folder: Path) -> None:
    """By its SHA-256; also one of the same size."""
    result = ran(app, bench, len(LARGE))
    (path,) = blobs_in(folder)
    path.write_bytes(path.read_bytes().replace(b"x", b"y", 1))
    with pytest.raises(BlobLost, match="SHA-256"):
        result.get(timeout=1)


def test_members_of_a_group_are_joined(app: Celery, bench: Bench, folder: Path) -> None:
    """By both of Celery's ways; a lost one is an error of the join."""
    ids = [ran(app, bench, size).id for size in (len(LARGE), 10, 2000)]
    whole = ["x" * len(LARGE), "x" * 10, "x" * 2000]

    def joined() -> Any:
        return app.GroupResult("g", [app.AsyncResult(one) for one in ids])

    assert (joined().join(timeout=1), joined().join_native(timeout=1)) == (whole, whole)
    for path in blobs_in(folder):
        path.unlink()
    for join in (joined().join, joined().join_native):
        with pytest.raises(BlobLost):
            join(timeout=1)


def result_of(app: Celery, task_id: str, *, pauses: Sequence[float]) -> AsyncResult[Any]:
    """Ask a backend that tries again after such pauses."""
    backend = type(app.backend)(app=app, url="memory://")
    large_results.prepare(app, backend, pauses=pauses)
    return app.AsyncResult(task_id, backend=backend)


def test_folder_that_is_away_is_tried_again(app: Celery, bench: Bench, folder: Path) -> None:
    """For some seconds; then the caller is told, and may ask again."""
    task_id = ran(app, bench, len(LARGE)).id
    away = folder.rename(folder.with_name("away"))
    folder.write_text("a file in the folder's place")
    result = result_of(app, task_id, pauses=(0.0, 0.0))
    with pytest.raises(Transient, match="could not be read"):
        result.get(timeout=1)
    patient = result_of(app, task_id, pauses=(0.01,) * 1000)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(patient.get(timeout=1)))
    asking.start()
    back = folder.with_name("back")
    back.symlink_to(away)
    back.replace(folder)  # in one step: in a folder that is there a missing blob is lost
    asking.join(timeout=30)
    assert (found, result.get(timeout=1)) == ([LARGE], LARGE)


@pytest.mark.parametrize(
    ("expires", "days"), [(86_400, 8), (30 * 86_400, 31), (None, 36_501)], ids=["a day", "a month", "never"]
)
def test_blob_outlives_the_reference(folder: Path, expires: int | None, days: int) -> None:
    """The sweep goes by the day in its name; what does not expire is not swept."""
    app = make_app(reliable_blob_url=f"file://{folder}", result_expires=expires)
    with in_memory(app) as bench:
        ran(app, bench, len(LARGE), idempotency_key="one:{size}")
        (path,) = blobs_in(folder)
        day = datetime.fromisoformat(f"{path.parent.name}T00:00:00+00:00")
        assert (day - datetime.fromtimestamp(bench.clock(), timezone.utc)).days + 1 == days


def test_result_that_nobody_may_ask_for_lives_as_long_as_its_marker(folder: Path) -> None:
    """Whatever the results of others do."""
    app = make_app(reliable_blob_url=f"file://{folder}", result_expires=None)
    with in_memory(app) as bench:
        task = add_produce(app, ignore_result=True)
        task.apply_async((len(LARGE),), link=task.si(1))
        bench.drain_all()
        (path,) = blobs_in(folder)
        assert path.parent.name < "2028"


def test_result_that_is_stored_again_is_a_reference(app: Celery, bench: Bench, folder: Path) -> None:
    """Where a caller joins a job whose result the backend has forgotten."""
    result = ran(app, bench, len(LARGE), idempotency_key="one:{size}")
    app.backend.forget(result.id)
    again = app.tasks["produce"].delay(len(LARGE))
    assert (again.id, app.AsyncResult(again.id).get(timeout=1)) == (result.id, LARGE)
    assert len(stored(app, result.id)) < 2000
    assert len(blobs_in(folder)) == 1


def test_folder_that_is_away_when_the_body_has_run_leaves_the_result_whole(
    app: Celery, bench: Bench, folder: Path
) -> None:
    """In store and backend."""
    folder.write_text("a file in the folder's place")
    result = ran(app, bench, len(LARGE))
    assert len(stored(app, result.id)) > len(LARGE)
    assert result.get(timeout=1) == LARGE


def test_results_on_their_way_by_messages_are_brought_back(app: Celery, bench: Bench, folder: Path) -> None:
    """The backend ``rpc://`` hands over what it receives undecoded."""
    blobs = runtime_of(app).blobs
    assert blobs is not None
    ref = blobs.put(kombu_json.dumps(LARGE).encode(), kind="results", ttl=60.0)
    other = make_app(reliable_blob_url=f"file://{folder}", result_backend="rpc://")
    caller = other.AsyncResult("sent")
    other.backend.result_consumer.consume_from("sent")
    request = Context(id="sent", reply_to=other.thread_oid, correlation_id="sent")
    other.backend.store_result("sent", large_results.KeptResult(ref), "SUCCESS", request=request)
    assert caller.get(timeout=10) == LARGE


def test_plain_tasks_keep_their_results_in_the_backend(app: Celery, bench: Bench, folder: Path) -> None:
    """Nothing of ours runs them."""
    app.backend.mark_as_done("plain", LARGE, Context(id="plain"))
    assert len(stored(app, "plain")) > len(LARGE)
    assert app.AsyncResult("plain").get(timeout=1) == LARGE


READER = """
import sys
from celery import Celery
from celery_reliable import ReliableTask

app = Celery("web", backend=f"file://{sys.argv[1]}", set_as_current=False)
app.config_from_object("celery_reliable.presets")
app.conf.update(reliable_store_url="memory://", reliable_blob_url=sys.argv[2] or None)
app.task(base=ReliableTask, name="never bound", shared=False)(print)
print(app.AsyncResult("large").get(timeout=5))
assert not app.finalized
"""


def test_process_that_only_asks_for_results_has_them(app: Celery, bench: Bench, folder: Path, tmp_path: Path) -> None:
    """It binds no task. One without the folder is told what it lacks, and never gets the reference for the result."""
    results = tmp_path / "results"
    results.mkdir()
    blobs = runtime_of(app).blobs
    assert blobs is not None
    ref = blobs.put(kombu_json.dumps(LARGE).encode(), kind="results", ttl=60.0)
    writer = make_app(reliable_blob_url=f"file://{folder}", result_backend=f"file://{results}")
    writer.backend.store_result("large", large_results.KeptResult(ref), "SUCCESS")

    def read(url: str) -> Any:
        command = [sys.executable, "-c", READER, str(results), url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert read(f"file://{folder}").stdout.strip() == LARGE
    refused = read("")
    assert refused.returncode == 1
    assert "reliable_blob_url" in refused.stderr.splitlines()[-1]


@pytest.mark.parametrize("found", [[], ["a", "b"], 7, "xyz", ["a", "b", "c"]])
def test_reference_that_is_none_is_an_error(app: Celery, found: Any) -> None:
    """Not a result."""
    backend = app.backend
    text = kombu_json.dumps({"status": "SUCCESS", "result": {"__type__": large_results.MARKER, "__value__": found}})
    backend.set(backend.get_key_for_task("odd"), text)
    with pytest.raises(Exception, match=r"unpack|invalid literal|other path"):
        app.AsyncResult("odd").get(timeout=1)


def test_tasks_with_a_backend_of_their_own_store_whole_results(app: Celery, bench: Bench) -> None:
    """One that somebody else has made does not know references."""
    own = Celery("own", backend="cache+memory://", set_as_current=False).backend
    assert large_results.reference(own, BlobRef("results/2099-01-01/ab", "", 1), blobs=runtime_of(app).blobs) is None
    assert isinstance(add_produce(app, backend=own), Task)
