"""Large arguments: kept aside, verified when they are read, and gone with the job."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, group

from celery_reliable import ConfigurationError, DuplicateTask, Permanent, ReliableTask, Transient
from celery_reliable.app_letters import letters_of
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.errors import BlobLost
from celery_reliable.payloads import ARGUMENTS_HEADER, Envelope
from celery_reliable.runtime import runtime_of
from celery_reliable.testing import Bench, in_memory
from celery_reliable.testing.bench import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 1000
LARGE = "x" * 5000
DAY = 86_400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where blobs go."""
    return tmp_path / "blobs"


@pytest.fixture
def app(folder: Path) -> Celery:
    """An app with a folder."""
    made = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    made.config_from_object("celery_reliable.presets")
    made.conf.update(
        reliable_store_url="memory://",
        reliable_blob_url=f"file://{folder}",
        reliable_claim_check_threshold=LIMIT,
        reliable_retry_backoff=0.0,
    )
    return made


@pytest.fixture
def bench(app: Celery) -> Iterator[Bench]:
    """The app's bench."""
    with in_memory(app) as made:
        yield made


@pytest.fixture
def ran() -> list[Any]:
    """What bodies were given."""
    return []


def store_in(app: Celery, ran: list[Any], *, name: str = "store", fails: int = 0, **options: Any) -> Any:
    """Register a task that takes a document."""

    def store(self: ReliableTask, document: str, note: str = "") -> str:
        ran.append((document, note))
        if self.attempt <= fails:
            raise Transient("away")
        return note

    return app.task(base=ReliableTask, bind=True, name=name, shared=False, **options)(store)


def blobs_in(folder: Path) -> list[Path]:
    """Return the files of blobs."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(message: Message) -> int:
    """Return about how large a message is on its way."""
    return len(json.dumps([message.args, message.kwargs, dict(message.options)], default=str))


def letters(bench: Bench) -> list[DeadLetter]:
    """Return the dead letters."""
    return [DeadLetter.from_bytes(body) for _, _, body in bench.store.letters().letters]


def test_message_and_retry_carry_a_reference(app: Celery, bench: Bench, ran: list[Any], folder: Path) -> None:
    """Below 2 KB; the blob goes with the job."""
    store_in(app, ran, fails=1).delay(LARGE, note="a")
    assert size_of(bench.submitted[0]) < 2000
    assert len(blobs_in(folder)) == 1
    bench.drain_all()
    assert ran == [(LARGE, "a")] * 2
    assert [size_of(message) < 2000 for message in bench.submitted] == [True, True]
    assert blobs_in(folder) == []


def test_small_arguments_stay_in_the_message(app: Celery, bench: Bench, ran: list[Any], folder: Path) -> None:
    """Up to the threshold, and all of them without a folder."""
    task = store_in(app, ran)
    task.delay("x" * (LIMIT - 100))
    assert bench.submitted[-1].args == ("x" * (LIMIT - 100),)
    other = Celery("shop", broker="memory://", set_as_current=False)
    other.conf.update(reliable_store_url="memory://", reliable_claim_check_threshold=LIMIT)
    with in_memory(other) as plain:
        store_in(other, ran).delay(LARGE)
        assert plain.submitted[-1].args == (LARGE,)
    assert blobs_in(folder) == []


def test_key_is_made_of_what_is_kept_aside(app: Celery, bench: Bench, ran: list[Any], folder: Path) -> None:
    """A second submission joins the first and leaves no blob behind; neither does one that is refused."""
    task = store_in(app, ran, idempotency_key="arguments")
    assert task.delay(LARGE).id == task.delay(document=LARGE).id
    assert task.delay(LARGE, "b").id != task.delay(LARGE).id
    strict = store_in(app, ran, name="strict", idempotency_key="s:{note}", on_conflict="raise")
    strict.delay(LARGE, "n")
    with pytest.raises(DuplicateTask):
        strict.delay(LARGE, "n")
    assert len(blobs_in(folder)) == 3
    bench.drain_all()
    assert len(ran) == 3
    assert blobs_in(folder) == []


def test_newest_arguments_win_aside_or_not(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """``on_conflict="replace"``: the store hands out the newer reference, or arguments in its place."""
    task = store_in(app, ran, idempotency_key="s:{note}", on_conflict="replace")
    for note, documents in (("a", ("old" * 999, LARGE)), ("b", (LARGE, "small")), ("c", ("small", LARGE))):
        for document in documents:
            task.delay(document, note)
        bench.drain_all()
        assert ran[-1] == (documents[-1], note)
    assert len(ran) == 3


def test_canvas_carries_references(app: Celery, bench: Bench, ran: list[Any], folder: Path) -> None:
    """Steps, members, callbacks and bodies; signatures that a project keeps stay as they are."""
    task = store_in(app, ran)
    kept = task.si(LARGE, "second")
    chain(task.si(LARGE, "first"), kept, task.si(LARGE, "third")).apply_async()
    group(task.si(LARGE, "g1"), task.si(LARGE, "g2")).apply_async()
    link = task.si(LARGE, "linked").set(link=[task.si(LARGE, "again")])
    task.apply_async((LARGE, "linking"), link=link)
    assert link.options["link"][0]["args"] == (LARGE, "again")
    assert [size_of(message) < 3000 for message in bench.submitted] == [True] * 4
    assert kept.args == (LARGE, "second")
    bench.drain_all()
    assert sorted(note for _, note in ran) == ["again", "first", "g1", "g2", "linked", "linking", "second", "third"]
    assert {document for document, _ in ran} == {LARGE}
    assert max(map(size_of, bench.submitted)) < 3000
    kept.apply_async()
    bench.drain_all()
    assert ran[-1] == (LARGE, "second")
    assert len(blobs_in(folder)) == 2  # those of the callbacks, which have no ids of their own when they are written


def test_result_of_the_step_before_comes_first(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """Small or as large as the rest."""

    def produce(size: int) -> str:
        return "r" * size

    def join(before: str, document: str, note: str = "") -> None:
        ran.append((before, document, note))

    first = app.task(base=ReliableTask, name="produce", shared=False)(produce)
    second = app.task(base=ReliableTask, name="join", shared=False)(join)
    for size in (3, 5000):
        chain(first.s(size), second.s(LARGE, note="n")).apply_async()
        bench.drain_all()
        assert ran[-1] == ("r" * size, LARGE, "n")
        assert max(map(size_of, bench.submitted)) < 2000


def test_letter_has_the_reference_and_can_be_replayed(app: Celery, bench: Bench, ran: list[Any], folder: Path) -> None:
    """The blob stays for it, also when the replay is done: the letter still names it. It is not searched."""

    def store(document: str) -> None:
        ran.append(document)
        if len(ran) == 1:
            raise Permanent("broken")

    app.task(base=ReliableTask, name="store", shared=False)(store).delay(LARGE)
    bench.drain_all()
    (letter,) = letters(bench)
    (path,) = blobs_in(folder)
    assert letter.arguments() is None
    assert letter.blobs == (str(path.relative_to(folder)),)
    assert "kept aside" in letter.call()
    assert len(letter.to_bytes()) < 8000
    letters_of(app).replay(letter.id, who="me")
    bench.drain_all()
    assert ran == [LARGE] * 2
    assert len(bench.failures) == 1
    assert blobs_in(folder) == [path]


def test_edited_letter_no_longer_refers_to_the_blob(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """Whole, since what is aside cannot be changed in part."""
    store_in(app, ran, fails=1, max_retries=0).delay(LARGE, "a")
    bench.drain_all()
    (letter,) = letters(bench)
    letters_of(app).replay(letter.id, who="me", args=["short"], kwargs={"note": "b"})
    bench.drain_all()
    assert ran[-1] == ("short", "b")


def spoil(folder: Path, path: Path, harm: str) -> None:
    """Do something to a blob."""
    content = path.read_bytes()
    if harm == "deleted":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(content[:-1])
    elif harm == "altered":
        path.write_bytes(b"y" + content[1:])
    elif harm == "swapped":
        (other,) = set(blobs_in(folder)) - {path}
        path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("harm", ["deleted", "truncated", "swapped", "altered", "elsewhere"])
def test_blob_that_is_not_what_was_put_ends_the_job(
    app: Celery, bench: Bench, ran: list[Any], folder: Path, harm: str
) -> None:
    """Permanent, with the reason; the body does not run."""
    task = store_in(app, ran)
    task.delay(LARGE)
    message = bench.waiting[0]
    (path,) = blobs_in(folder)
    task.delay("z" * len(LARGE))
    spoil(folder, path, harm)
    if harm == "elsewhere":
        message.options["headers"][ARGUMENTS_HEADER][0] = "../../etc/passwd"
    bench.deliver(message)
    (letter,) = letters(bench)
    assert (letter.reason, letter.error_type, ran) == ("permanent", "celery_reliable.errors.BlobLost", [])
    assert "blob " in letter.error_message


@pytest.mark.parametrize(
    ("content", "content_type", "reason"),
    [
        (b'"a result"', "application/json", "permanent"),
        (b"{", "application/json", "undecodable"),
        (b"\x80\x04N.", "application/x-python-serialize", "undecodable"),
        (b"{}", "application/x-nobody-knows", "undecodable"),
    ],
)
def test_blob_of_something_else_ends_the_job(  # noqa: PLR0917  # fixtures
    app: Celery, bench: Bench, ran: list[Any], content: bytes, content_type: str, reason: str
) -> None:
    """Also one that only pickle could read, which is not accepted."""
    store_in(app, ran).delay("small")
    message = bench.waiting[0]
    blobs = runtime_of(app).blobs
    assert blobs is not None
    ref = blobs.put(content, kind="results", ttl=60.0)
    encoding = "binary" if "python" in content_type else "utf-8"
    message.options["headers"][ARGUMENTS_HEADER] = [ref.path, ref.sha256, ref.size, content_type, encoding, ""]
    bench.deliver(message)
    (letter,) = letters(bench)
    assert (letter.reason, ran) == (reason, [])


@pytest.mark.parametrize("header", [1, "x", [], ["a", "b", "c", "d", "e", "f"], {"a": 1}, [[]] * 6])
def test_header_that_names_no_blob_ends_the_job(app: Celery, bench: Bench, ran: list[Any], header: Any) -> None:
    """Not the worker."""
    store_in(app, ran).delay("small")
    message = bench.waiting[0]
    message.options["headers"][ARGUMENTS_HEADER] = header
    bench.deliver(message)
    (letter,) = letters(bench)
    assert (letter.reason, ran) == ("permanent", [])
    assert letter.call()


def test_reference_of_another_message_is_not_followed(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """``headers=self.request.headers`` hands all of them on."""

    def first(self: ReliableTask, document: str) -> None:
        app.tasks["store"].apply_async(("own", "child"), headers=self.request.headers)
        app.send_task("store", ("own", "sent"), task_id="sent", headers=dict(self.request.headers))

    app.task(base=ReliableTask, bind=True, name="first", shared=False)(first)
    store_in(app, ran)
    app.tasks["first"].delay(LARGE)
    bench.drain_all()
    assert sorted(ran) == [("own", "child"), ("own", "sent")]


def test_folder_that_is_away_refuses_a_submission_and_makes_a_run_wait(
    app: Celery, bench: Bench, ran: list[Any], folder: Path
) -> None:
    """Nothing is published or stored then; no attempt is spent."""
    attempts: list[int] = []

    def store(self: ReliableTask, document: str) -> None:
        attempts.append(self.attempt)

    task = app.task(base=ReliableTask, bind=True, name="store", shared=False)(store)
    folder.write_text("a file in the folder's place")
    with pytest.raises(Transient, match="could not be written"):
        task.delay(LARGE)
    assert bench.submitted == []
    folder.unlink()
    task.delay(LARGE)
    away = folder.rename(folder.with_name("away"))
    folder.write_text("a file in the folder's place")
    assert bench.deliver(bench.waiting[0]) == "kept"
    folder.unlink()
    away.rename(folder)
    bench.drain_all()
    assert attempts == [1]


def test_folder_that_never_comes_back_has_an_end(app: Celery, bench: Bench, ran: list[Any], folder: Path) -> None:
    """As many waits as a task may snooze."""
    store_in(app, ran, max_snoozes=3).delay(LARGE)
    folder.rename(folder.with_name("away"))
    folder.write_text("a file in the folder's place")
    bench.drain_all()
    (letter,) = letters(bench)
    assert (letter.reason, ran) == ("exhausted", [])


def test_blob_outlives_eta_and_letter_and_is_renewed_by_a_late_run(
    app: Celery, bench: Bench, ran: list[Any], folder: Path
) -> None:
    """The sweep goes by the day in a blob's name."""
    task = store_in(app, ran, fails=9, max_retries=0)
    due = datetime.now(timezone.utc) + timedelta(days=90)
    task.apply_async((LARGE, "later"), eta=due)
    (path,) = blobs_in(folder)
    today = datetime.fromtimestamp(bench.clock(), timezone.utc)
    settings = runtime_of(app).settings
    assert path.parent.name >= (today + timedelta(days=90, seconds=settings.dead_letter_ttl)).date().isoformat()
    task.delay(LARGE, "old")
    message = bench.waiting[-1]
    bench.clock.seconds += 20 * DAY
    runtime_of(app).store.renew([], pulse_ttl=15.0)
    bench.deliver(message)
    (letter,) = letters(bench)
    last = datetime.fromtimestamp(bench.clock() + settings.dead_letter_ttl, timezone.utc).date().isoformat()
    assert letter.blobs[0].split("/")[1] >= last


def test_ledger_keeps_the_reference(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """And not the body: what is published again is as small as the message."""
    task = store_in(app, ran, on_conflict="replace", idempotency_key="arguments")
    kept: list[bytes] = []
    submit = bench.store.submit

    def spy(*args: Any, **kwargs: Any) -> Any:
        kept.append(kwargs["envelope"])
        return submit(*args, **kwargs)

    bench.store.submit = spy  # type: ignore[method-assign]  # what is handed to the store
    task.delay(LARGE)
    (raw,) = kept
    assert len(raw) < 2000
    assert Envelope.from_bytes(raw).options["headers"][ARGUMENTS_HEADER][2] > LIMIT


def test_retry_with_other_arguments_is_put_aside_anew(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """What the body leaves out comes from the blob."""

    def store(self: ReliableTask, document: str, note: str = "") -> None:
        ran.append((document, note))
        if self.attempt == 1:
            raise self.retry(kwargs={"note": "b"})
        if self.attempt == 2:
            raise self.retry(args=("small",), kwargs={"note": "c"})

    app.task(base=ReliableTask, bind=True, name="store", shared=False)(store).delay(LARGE, note="a")
    bench.drain_all()
    assert ran == [(LARGE, "a"), (LARGE, "b"), ("small", "c")]
    assert [ARGUMENTS_HEADER in message.options["headers"] for message in bench.submitted] == [True, True, False]


def test_tasks_with_an_overlap_key_keep_their_arguments(app: Celery, bench: Bench, ran: list[Any]) -> None:
    """The worker reads the key from the message."""
    store_in(app, ran, overlap="forbid", overlap_key="s:{note}").delay(LARGE, "a")
    assert bench.submitted[-1].args == (LARGE, "a")


class Cipher:
    """Turns bytes around a key, and knows what it made."""

    def __init__(self, key: int) -> None:
        """Take a key."""
        self._key = key

    def encrypt(self, data: bytes) -> bytes:
        """Mark and turn."""
        return bytes((byte + self._key) % 256 for byte in b"mine" + data)

    def decrypt(self, token: bytes) -> bytes:
        """Turn back; refuse what has no mark."""
        data = bytes((byte - self._key) % 256 for byte in token)
        if not data.startswith(b"mine"):
            raise ValueError("another key")
        return data[4:]


def test_contents_can_be_encrypted(app: Celery, ran: list[Any], folder: Path) -> None:
    """Another key cannot read them."""
    app.conf.reliable_blob_cipher = Cipher(7)
    task = store_in(app, ran)
    with in_memory(app) as bench:
        task.delay(LARGE)
        (path,) = blobs_in(folder)
        assert LARGE[:9].encode() not in path.read_bytes()
        bench.drain_all()
        assert ran == [(LARGE, "")]
        task.delay(LARGE)
        lost = bench.waiting[0]
    app.conf.reliable_blob_cipher = Cipher(8)
    with in_memory(app) as bench:
        bench.deliver(lost)
        (failure,) = bench.failures
        assert isinstance(failure, BlobLost)
        assert "reliable_blob_cipher" in str(failure)
    for wrong in ("nowhere.cipher", "json.cipher", "json.dumps"):
        app.conf.reliable_blob_cipher = wrong
        with in_memory(app), pytest.raises(ConfigurationError, match=r"reliable_blob_cipher: expected"):
            task.delay(LARGE)
    app.conf.reliable_blob_cipher = object()
    with (
        pytest.raises(ConfigurationError, match=r"reliable_blob_cipher: expected an object with encrypt"),
        in_memory(app),
    ):
        pass
