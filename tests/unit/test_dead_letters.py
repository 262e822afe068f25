"""Dead letters: the record, the search, and replays that neither lose nor double."""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from celery_reliable.dead_letters import (
    REASONS,
    DeadLetter,
    DeadLetters,
    Filter,
    Replay,
    Report,
    Step,
    Worker,
    fingerprint_of,
    letter_id_of,
)
from celery_reliable.dead_letters.stack import MESSAGE_LIMIT, TRACEBACK_LIMIT
from celery_reliable.errors import ReplayRefused
from celery_reliable.events import Events
from celery_reliable.payloads import Envelope, RawMessage
from celery_reliable.stores.base import Dead, Done, Job, Over, Run
from celery_reliable.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import ModuleType

NOON = 1_790_000_000.0
DAY = 86_400.0
TASK = "shop.tasks.charge_order"
LETTERS: dict[str, Any] = {"letter_ttl": 30 * DAY, "letter_max": 10_000}
CLAIM: dict[str, Any] = {"ttl": 15.0, "max_deliveries": 5, "record_ttl": 7 * DAY}


class Clock:
    """A clock that moves when told to."""

    now = NOON

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Pass the time."""
        self.now += seconds


class Killed(BaseException):
    """The replayer's process ends here."""


class Broker:
    """A queue of published envelopes, in front of which a replayer may die."""

    def __init__(self) -> None:
        """Nothing sent, nobody dies."""
        self.sent: list[Envelope] = []
        self.dies = ""

    def __call__(self, envelope: Envelope) -> None:
        """Publish, and kill the replayer when that is wanted."""
        if self.dies == "before the publish":
            raise Killed
        self.sent.append(envelope)
        if self.dies == "after the publish":
            raise Killed


def envelope(
    task: str = TASK, task_id: str = "t1", *args: Any, header: dict[str, Any] | None = None, **kwargs: Any
) -> Envelope:
    """A call as `submit` keeps it."""
    headers = {"reliable": header or {"i": task_id, "s": int(NOON * 1e6), "l": 1}, "trace": "abc"}
    options = {"queue": "payments", "headers": headers, "chain": [{"task": "shop.tasks.ship"}]}
    return Envelope(task, task_id, json.dumps([args, kwargs]), options=options)


def letter_of(task_id: str = "t1", *, exc: BaseException | None = None, **changes: Any) -> DeadLetter:
    """The letter of a call that died."""
    given: dict[str, Any] = {
        "reason": "permanent",
        "envelope": envelope(TASK, task_id, 12, currency="EUR"),
        "now": NOON,
        "job": Job(task_id, "own", int(NOON * 1e6)),
        "life": 1,
        "attempts": 3,
        **changes,
    }
    return DeadLetter.of(exc or ValueError("card declined"), **given)


class Desk:
    """A store with letters, a broker, and operators."""

    def __init__(self) -> None:
        """An empty store."""
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.broker = Broker()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.letters = self.operator()

    def operator(self, **options: Any) -> DeadLetters:
        """Another process that works on the same letters."""
        events = Events([lambda name, fields: self.events.append((name, fields))])
        given: dict[str, Any] = {"clock": self.clock, "sleep": self.clock.sleep, **options}
        return DeadLetters(self.store, events=events, publish=self.broker, **given)

    def bury(self, letter: DeadLetter) -> str:
        """Let a job run and die, as a worker would."""
        job = letter.job
        assert job is not None
        run = self.store.claim(job, task_id=letter.task_id, life=letter.life, token="w", **CLAIM)
        assert isinstance(run, Run)
        self.store.bury(
            job,
            task_id=letter.task_id,
            fence=run.fence,
            token="w",
            letter_id=letter.id,
            letter=letter.to_bytes(),
            **LETTERS,
        )
        return letter.id

    def keep(self, letter: DeadLetter) -> str:
        """Keep a letter that has no claim."""
        self.store.keep_letter(letter.id, letter=letter.to_bytes(), **LETTERS)
        return letter.id

    def work(self) -> list[str]:
        """Let a worker receive everything that was sent; return the bodies of what ran."""
        ran = []
        while self.broker.sent:
            message = self.broker.sent.pop(0)
            header = message.options["headers"]["reliable"]
            job = Job(header.get("key") or header["i"], header.get("k", "own"), header["s"])
            run = self.store.claim(
                job, task_id=message.task_id, life=header["l"], fingerprint=header.get("f", ""), token="w", **CLAIM
            )
            if isinstance(run, Run):
                ran.append(message.body)
                self.store.complete(
                    job, task_id=message.task_id, fence=run.fence, token="w", outcome=b"ok", marker_ttl=DAY
                )
            else:
                assert isinstance(run, Done | Over | Dead)
        return ran


@pytest.fixture
def desk() -> Desk:
    """An empty desk."""
    return Desk()


def refused(reason: str) -> pytest.RaisesExc[ReplayRefused]:
    """A replay refused for this reason."""
    return pytest.RaisesExc(ReplayRefused, check=lambda exc: exc.reason == reason)


class TestRecord:
    """What a letter holds, as bytes and for people."""

    def test_every_field_survives_the_store(self) -> None:
        """What is read back equals what was written, down to the last field."""
        full = replace(
            letter_of(
                worker=Worker("host-1", 42, "5.7.0", "0.1.0"),
                tenant="acme",
                evidence=[b'{"signal": 9}'],
                blobs=["s3://b/1"],
            ),
            replays=(Replay("ann@ops", NOON, "t2", edited=True, published=True),),
            original=envelope(),
        )
        assert DeadLetter.from_bytes(full.to_bytes()) == full

    @pytest.mark.parametrize("text", ["Grüße", "支払い", "😀", "\ud800 lone", 'quote " back \\', "\x1b[2J\x00"])
    def test_any_text_survives(self, text: str) -> None:
        """Arguments and messages in any script, and what is no valid text, come back the same."""
        letter = letter_of(exc=ValueError(text), envelope=envelope(TASK, "t1", text))
        read = DeadLetter.from_bytes(letter.to_bytes())
        assert (read.error_message, read.arguments()) == (text, ([text], {}))

    def test_binary_body_survives_and_is_described(self) -> None:
        """A pickled call is kept byte for byte and shown by its size and type."""
        raw = bytes(range(123))
        body = base64.b64encode(raw).decode()
        call = Envelope(TASK, "t1", body, "application/x-python-serialize", "binary", {})
        read = DeadLetter.from_bytes(letter_of(envelope=call).to_bytes())
        assert read.envelope == call
        assert read.call() == "<binary 123 bytes application/x-python-serialize>"
        assert read.arguments() is None

    def test_stored_text_is_plain_json(self) -> None:
        """A letter can be read in redis-cli: JSON, not compressed, however long the call."""
        stored = json.loads(letter_of(envelope=envelope(TASK, "t1", "x" * 5000)).to_bytes())
        assert stored["task"] == TASK
        assert stored["envelope"]["task_id"] == "t1"

    def test_call_is_shown_as_it_was_written(self) -> None:
        """People see the arguments, not a repr of a message."""
        assert (
            letter_of(envelope=envelope(TASK, "t1", 12, "Grüße", currency="EUR")).call()
            == '(12, "Grüße", currency="EUR")'
        )

    def test_option_that_is_not_json_does_not_stop_the_burial(self) -> None:
        """Writing a letter never fails: an odd option is kept as its text."""
        odd = replace(envelope(), options={"queue": "q", "odd": {1}})
        read = DeadLetter.from_bytes(letter_of(envelope=odd).to_bytes())
        assert read.envelope is not None
        assert read.envelope.options["odd"] == "{1}"

    def test_traceback_begins_where_the_task_s_own_code_does(self) -> None:
        """The way there is ours and the same each time; where there is no other code, it is the place."""

        def own_code() -> None:
            raise ValueError("never")

        ours: dict[str, Any] = {"__name__": "celery_reliable.execution.life"}
        exec("def call(body):\n    return body()\ndef fail():\n    raise ValueError('ours')", ours)
        for body, first in ((own_code, "own_code"), (ours["fail"], "call")):
            with pytest.raises(ValueError, match=r"never|ours") as told:
                ours["call"](body)
            failure = told.value
            failure = failure.with_traceback(failure.__traceback__.tb_next)  # type: ignore[union-attr]  # this test's own
            _, place, *_ = DeadLetter.of(failure, envelope=None, reason="permanent", now=NOON).traceback.splitlines()
            assert place.endswith(f"in {first}")

    def test_message_and_traceback_are_bounded_with_head_and_tail(self) -> None:
        """A megabyte of error text takes a few kilobytes, and both of its ends can be read."""
        letter = letter_of(exc=_raised("BEGIN" + "x" * 1_000_000 + "END"))
        assert len(letter.error_message) <= MESSAGE_LIMIT
        assert len(letter.traceback) <= TRACEBACK_LIMIT
        assert letter.error_message.startswith("BEGIN")
        assert letter.error_message.endswith("END")
        assert "characters left out" in letter.error_message
        assert letter.traceback.startswith("Traceback")
        assert letter.traceback.rstrip().endswith("END")

    def test_message_without_exception_is_bounded_too(self) -> None:
        """Reasons without an exception carry a message of their own."""
        letter = DeadLetter.of(None, reason="poison", envelope=envelope(), now=NOON, message="y" * 10_000)
        assert len(letter.error_message) <= MESSAGE_LIMIT
        assert (letter.error_type, letter.traceback) == ("", "")

    def test_exception_that_cannot_be_printed_is_still_buried(self) -> None:
        """A ``__str__`` that raises costs the message, not the letter."""

        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        letter = letter_of(exc=Odd())
        assert "cannot be made: RuntimeError" in letter.error_message

    def test_same_key_and_life_is_the_same_letter(self) -> None:
        """Burying twice is one letter; the next life of a key has another."""
        assert letter_of().id == letter_of(exc=OSError()).id == letter_id_of("t1", life=1)
        assert letter_of(life=2).id != letter_of(life=1).id

    def test_letter_of_a_newer_version_can_be_read(self) -> None:
        """Fields that this version does not know are left out."""
        stored = json.loads(letter_of().to_bytes())
        raw = json.dumps({**stored, "v": 9, "mood": "bad", "worker": {**stored["worker"], "zone": "b"}}).encode()
        assert DeadLetter.from_bytes(raw) == letter_of()

    @pytest.mark.parametrize("raw", [b"", b"\x80pickle", b"[]", b"{}", b'{"id": 1}', b"null", b'"text"'])
    def test_anything_else_is_a_value_error(self, raw: bytes) -> None:
        """Foreign bytes give one known error."""
        with pytest.raises(ValueError, match=r"dead letter|Expecting"):
            DeadLetter.from_bytes(raw)

    def test_reasons_are_the_closed_set_of_the_design(self) -> None:
        """DESIGN section 5 rule 7, and T10."""
        named = "permanent exhausted poison time_limit expired unregistered undecodable invalid incompatible mismatch rejected"
        assert set(REASONS) == {*named.split(), "lost", "stale"}


def _raised(message: str) -> ValueError:
    with pytest.raises(ValueError) as caught:
        raise ValueError(message)
    return caught.value


SOURCE = """
{padding}
class Refused(Exception):
    pass

def outer(value, depth=0):
    return {name}(value, depth)

def {name}(value, depth):
    if depth:
        return {name}(value, depth - 1)
    try:
        lookup(value)
    except LookupError as exc:
        raise Refused(f"{{value}} at {{object()}}") {cause}

def lookup(value):
    return {{}}[value]
"""


def _module(folder: Path, *, padding: int = 0, name: str = "inner", cause: str = "from exc") -> ModuleType:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "billing.py"
    path.write_text(SOURCE.format(padding="\n" * padding, name=name, cause=cause))
    spec = importlib.util.spec_from_file_location("billing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _failure(call: Callable[..., object], *args: object) -> BaseException:
    try:
        call(*args)
    except Exception as exc:  # noqa: BLE001  the error is what is looked at
        return exc
    pytest.fail("nothing was raised")


class TestFingerprint:
    """Which errors are the same."""

    def test_same_error_from_other_lines_values_and_machines_is_one_group(self, tmp_path: Path) -> None:
        """Line numbers, values, addresses, install folders and the depth of a recursion do not count."""
        here = _module(tmp_path / "a" / "shop")
        there = _module(tmp_path / "srv" / "releases" / "77" / "shop", padding=40)
        one, two = _failure(here.outer, "x"), _failure(there.outer, "yyy", 30)
        assert str(one) != str(two)
        assert fingerprint_of(one) == fingerprint_of(two)

    def test_other_function_type_or_cause_is_another_group(self, tmp_path: Path) -> None:
        """The path through the code, the type, and the cause behind it count."""
        # Each in a folder of its own: Python may take the cached bytecode of a file that was rewritten within a second.
        plain = _failure(_module(tmp_path / "1" / "a").outer, "x")
        renamed = _failure(_module(tmp_path / "2" / "a", name="other").outer, "x")
        uncaused = _failure(_module(tmp_path / "3" / "a", cause="from None").outer, "x")
        assert len({fingerprint_of(exc) for exc in (plain, renamed, uncaused, ValueError("x"))}) == 4

    def test_celery_s_own_frames_do_not_count(self) -> None:
        """An upgrade of Celery does not change a group."""
        celery_like = {"__name__": "celery.app.trace", "body": _raises}
        exec("def call():\n    body()", celery_like)
        renamed = {"__name__": "celery.app.trace", "body": _raises}
        exec("def other_name():\n    body()", renamed)
        assert fingerprint_of(_failure(celery_like["call"])) == fingerprint_of(_failure(renamed["other_name"]))  # type: ignore[arg-type]

    def test_chain_that_bites_its_tail_ends(self) -> None:
        """Exceptions may point at each other; the fingerprint is made all the same."""
        one, two = ValueError(), KeyError()
        one.__cause__, two.__cause__ = two, one
        assert fingerprint_of(one)

    def test_letter_without_exception_groups_by_reason_and_task(self) -> None:
        """Poison of one task is one group."""
        poison = [DeadLetter.of(None, reason="poison", envelope=envelope(task_id=name), now=NOON) for name in "ab"]
        late = DeadLetter.of(None, reason="stale", envelope=envelope(), now=NOON)
        assert poison[0].error_fingerprint == poison[1].error_fingerprint != late.error_fingerprint


def _raises() -> None:
    raise RuntimeError


class TestSearch:
    """Finding letters among many."""

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            (Filter(), {"a", "b", "c"}),
            (Filter(task="shop.*"), {"a", "b"}),
            (Filter(task="*mail"), {"c"}),
            (Filter(reason="poison"), {"c"}),
            (Filter(error="ValueError"), {"a"}),
            (Filter(error="json.*Error"), {"b"}),
            (Filter(error="JSONDecodeError"), {"b"}),
            (Filter(since=NOON - 10), {"b", "c"}),
            (Filter(until=NOON - 10), {"a"}),
            (Filter(queue="slow"), {"c"}),
            (Filter(tenant="acme"), {"b"}),
            (Filter(text="größe"), {"b"}),
            (Filter(text="CARD DECLINED"), {"a"}),
            (Filter(text="task-c"), {"c"}),
            (Filter(ids=("task-b",)), {"b"}),
            (Filter(statuses=("replayed",)), set()),
            (Filter(task="shop.*", text="größe", error="ValueError"), set()),
        ],
    )
    def test_filter_finds(self, desk: Desk, wanted: Filter, found: set[str]) -> None:
        """Each part of a filter narrows the choice."""
        self.fill(desk)
        assert {letter.task_id[-1] for letter in desk.letters.search(wanted)} == found

    @staticmethod
    def fill(desk: Desk) -> None:
        """Three letters that differ in everything."""
        shop = envelope(TASK, "task-a", 1)
        desk.bury(letter_of("task-a", envelope=shop, now=NOON - 3600))
        other = envelope(TASK, "task-b", "GRÖSSE XL größe")
        desk.bury(letter_of("task-b", exc=json.JSONDecodeError("bad", "", 0), envelope=other, tenant="acme"))
        mail = replace(envelope("office.mail", "task-c"), options={"queue": "slow"})
        desk.keep(DeadLetter.of(None, reason="poison", envelope=mail, now=NOON, message="killed 5 times"))

    def test_pages_of_the_store_are_read_as_they_are_needed(self, desk: Desk) -> None:
        """1201 letters are more than two pages; all are found, once, newest first, and the first without the rest."""
        for number in range(1201):
            desk.keep(letter_of(f"n{number:04}", job=None, letter_id=f"{number:04}"))
        found = desk.letters.search()
        assert next(found).id == "1200"
        assert [letter.id for letter in found] == [f"{number:04}" for number in range(1199, -1, -1)]

    def test_a_page_tells_what_fits_and_where_to_go_on(self, desk: Desk) -> None:
        """One page of the store each, whatever fits: whoever must answer soon stops between two."""
        for number in range(5):
            desk.keep(letter_of(f"n{number}", job=None, letter_id=f"{number}"))
        wanted = Filter(ids=("0", "3"))
        pages = list(desk.letters.pages(wanted, size=2))
        assert [([letter.id for letter in page.letters], page.looked) for page in pages] == [
            (["3"], 2),
            ([], 2),
            (["0"], 1),
        ]
        [rest] = desk.letters.pages(wanted, pages[1].cursor, size=2)
        assert (rest.letters, rest.cursor) == (pages[2].letters, "")

    def test_group_of_a_letter_finds_its_like(self, desk: Desk) -> None:
        """Same error in the same place, counted with tasks and times."""
        for number in range(3):
            desk.bury(letter_of(f"a{number}", exc=_raised(f"{number}"), now=NOON + number))
        desk.bury(letter_of("b", exc=OSError()))
        largest, smaller = desk.letters.groups()
        assert (largest.count, largest.first, largest.last, largest.tasks) == (3, NOON, NOON + 2, (TASK,))
        assert (smaller.count, largest.sample.task_id) == (1, "a2")
        assert len(list(desk.letters.search(Filter(group=largest.fingerprint[:6])))) == 3

    def test_letter_that_cannot_be_read_is_listed_and_can_be_dropped(self, desk: Desk) -> None:
        """One foreign record hides nothing else."""
        desk.store.keep_letter("odd", letter=b"\x80", **LETTERS)
        desk.bury(letter_of())
        assert [letter.reason for letter in desk.letters.search()] == ["permanent", "undecodable"]
        with refused("no_body"):
            desk.letters.replay("odd", who="ann")
        assert desk.letters.discard("odd", who="ann")

    def test_stats_count_what_waits_for_a_decision(self, desk: Desk) -> None:
        """By status, reason, task and group; replayed letters only by status."""
        self.fill(desk)
        desk.letters.replay(letter_of("task-a").id, who="ann")
        stats = desk.letters.stats()
        assert stats.statuses == {"dead": 2, "replayed": 1}
        assert stats.reasons == {"permanent": 1, "poison": 1}
        assert stats.queues == {"payments": 1, "slow": 1}
        assert (stats.store["kept"], stats.store["buried"], stats.store["replayed"]) == (3, 3, 1)

    def test_beginning_of_an_id_finds_the_letter(self, desk: Desk) -> None:
        """An operator types as much of a letter's or task's id as is needed."""
        letter_id = desk.bury(letter_of("task-a"))
        assert [found.id for found in desk.letters.find(letter_id[:6])] == [letter_id]
        assert [found.id for found in desk.letters.find("task-")] == [letter_id]
        assert desk.letters.find("nothing") == []


class TestReplay:
    """Sending a letter back to its queue."""

    def test_replayed_call_is_the_call_as_it_was(self, desk: Desk) -> None:
        """Same task, arguments, queue, headers and canvas; new id, life and trace, nothing that would delay or expire it, or watch a slot."""
        call = envelope(
            TASK,
            "t1",
            12,
            currency="EUR",
            header={"k": "declared", "key": "order:12", "i": "t1", "s": 5, "l": 1, "f": "ff"},
        )
        traced = {"sentry-trace": "1-2", "baggage": "a=b", "reliable_schedule": 60.0}
        late = {
            **call.options,
            "headers": {**call.options["headers"], **traced, "headers": {**traced, "tenant": "x"}},
            "eta": "2026-01-01T00:00:00Z",
            "expires": "2026-01-01T00:00:00Z",
            "countdown": 3,
            "retries": 4,
        }
        job = Job("order:12", "declared", 5)
        desk.bury(letter_of(envelope=replace(call, options=late), job=job, fingerprint="ff"))
        new_id = desk.letters.replay(letter_id_of("order:12", life=1), who="ann")
        [sent] = desk.broker.sent
        header = {"k": "declared", "key": "order:12", "i": new_id, "s": int(NOON * 1e6), "l": 2, "f": "ff"}
        headers = {"trace": "abc", "headers": {"tenant": "x"}, "reliable": header, "reliable_replays": 1}
        assert sent == Envelope(TASK, new_id, call.body, options={**call.options, "headers": headers})
        assert new_id != "t1"

    def test_replayed_job_runs_and_its_old_message_does_not(self, desk: Desk) -> None:
        """The replay is a new life of the key; a late copy of the old message is over."""
        letter = letter_of()
        desk.bury(letter)
        desk.letters.replay(letter.id, who="ann")
        assert letter.envelope is not None
        assert letter.job is not None
        answer = desk.store.claim(letter.job, task_id="t1", life=1, token="old", **CLAIM)
        assert answer == Over("ended")
        assert desk.work() == [letter.envelope.body]

    def test_letter_without_key_is_replayed_under_its_new_id(self, desk: Desk) -> None:
        """A message that no worker could claim goes back as it came."""
        letter_id = desk.keep(letter_of(job=None, reason="unregistered", life=0))
        new_id = desk.letters.replay(letter_id, who="ann")
        assert desk.broker.sent[0].options["headers"]["reliable"]["i"] == new_id
        assert len(desk.work()) == 1

    def test_message_from_elsewhere_gets_no_identity(self, desk: Desk) -> None:
        """A call that never was a submission of ours stays one without."""
        plain = replace(envelope(), options={"queue": "q"})
        desk.keep(letter_of(job=None, envelope=plain))
        desk.letters.replay(letter_of(job=None).id, who="ann")
        assert desk.broker.sent[0].options == {"queue": "q", "headers": {"reliable_replays": 1}}

    def test_letter_tells_who_replayed_it_and_when(self, desk: Desk) -> None:
        """The record is kept with the letter, and told to the hooks."""
        letter_id = desk.bury(letter_of())
        new_id = desk.letters.replay(letter_id, who="ann@ops")
        letter = desk.letters.show(letter_id)
        assert letter is not None
        assert letter.replays == (Replay("ann@ops", NOON, new_id, edited=False, published=True),)
        assert letter.status == "replayed"
        assert desk.events == [
            (
                "letter_replayed",
                {"letter_id": letter_id, "task": TASK, "task_id": new_id, "key": letter.key, "by": "ann@ops"},
            )
        ]

    def test_second_replay_is_refused_and_names_the_new_task(self, desk: Desk) -> None:
        """A letter replayed already is not published again."""
        letter_id = desk.bury(letter_of())
        new_id = desk.letters.replay(letter_id, who="ann")
        with refused("replayed") as caught:
            desk.letters.replay(letter_id, who="ann")
        assert new_id in str(caught.value)
        assert len(desk.broker.sent) == 1

    @pytest.mark.parametrize("dies", ["before the publish", "after the publish"])
    def test_replayer_killed_around_the_publish_is_picked_up(self, desk: Desk, dies: str) -> None:
        """Running the replay again sends the job under the same id; it runs once, whatever was sent before."""
        letter_id = desk.bury(letter_of())
        desk.broker.dies = dies
        with pytest.raises(Killed):
            desk.letters.replay(letter_id, who="ann")
        killed = desk.letters.show(letter_id)
        assert killed is not None
        assert killed.status == "replaying"
        assert [task_id for task_id, _ in desk.store.ledger()] == [killed.replays[0].new_id]
        desk.broker.dies = ""
        assert desk.letters.replay(letter_id, who="ann") == killed.replays[0].new_id
        assert len(desk.work()) == 1
        with refused("replayed"):
            desk.letters.replay(letter_id, who="ann")

    def test_replayer_killed_after_its_job_ran_does_not_run_it_twice(self, desk: Desk) -> None:
        """The copy that a second replayer sends finds the job done."""
        letter_id = desk.bury(letter_of())
        desk.broker.dies = "after the publish"
        with pytest.raises(Killed):
            desk.letters.replay(letter_id, who="ann")
        assert len(desk.work()) == 1
        desk.broker.dies = ""
        desk.letters.replay(letter_id, who="ann")
        assert desk.work() == []

    def test_ledger_s_copy_of_a_killed_replay_runs_as_the_new_life(self, desk: Desk) -> None:
        """What a sweep would publish is the replayed call, in a life that the claim accepts."""
        letter_id = desk.bury(letter_of())
        desk.broker.dies = "before the publish"
        with pytest.raises(Killed):
            desk.letters.replay(letter_id, who="ann")
        [(task_id, raw)] = desk.store.ledger()
        desk.broker.sent.append(Envelope.from_bytes(raw))
        assert desk.broker.sent[0].task_id == task_id
        assert len(desk.work()) == 1

    def test_other_operator_leaves_a_replay_at_work_alone_for_ten_seconds(self, desk: Desk) -> None:
        """What somebody else began this moment is his; after 10 seconds he is taken for dead and it is finished."""
        letter_id = desk.bury(letter_of())
        desk.broker.dies = "before the publish"
        with pytest.raises(Killed):
            desk.letters.replay(letter_id, who="ann")
        desk.broker.dies = ""
        with refused("replayed"):
            desk.letters.replay(letter_id, who="bob")
        desk.clock.sleep(10)
        desk.letters.replay(letter_id, who="bob")
        assert len(desk.work()) == 1

    def test_eight_operators_at_once_run_a_letter_once(self, desk: Desk) -> None:
        """All have read the letter as dead when the first one goes on: one wins, the others are refused."""
        letter_id = desk.bury(letter_of())
        all_have_read = threading.Barrier(8)
        outcomes: list[str] = []

        def replay(number: int) -> None:
            operator = desk.operator(objection=lambda _: "" if all_have_read.wait(10) >= 0 else "never")
            try:
                operator.replay(letter_id, who=f"op{number}")
            except ReplayRefused as exc:
                outcomes.append(exc.reason)
            else:
                outcomes.append("done")

        threads = [threading.Thread(target=replay, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["done", *["replayed"] * 7]
        assert len(desk.broker.sent) == 1

    def test_publish_that_fails_is_passed_on_and_can_be_finished(self, desk: Desk) -> None:
        """The broker's error reaches the caller; the letter waits for the next replay."""
        letter_id = desk.bury(letter_of())

        def away(_: Envelope) -> None:
            raise ConnectionRefusedError

        broken = DeadLetters(desk.store, events=Events(), publish=away)
        with pytest.raises(ConnectionRefusedError):
            broken.replay(letter_id, who="ann")
        desk.letters.replay(letter_id, who="ann")
        assert len(desk.work()) == 1

    def test_superseded_letter_is_refused(self, desk: Desk) -> None:
        """A key that was submitted again is not taken from its new job."""
        job = Job("order:12", "declared")
        letter_id = desk.bury(letter_of(job=job))
        desk.store.submit(job, task_id="t9", envelope=b"e", ttl=DAY)
        with refused("superseded"):
            desk.letters.replay(letter_id, who="ann")
        assert desk.broker.sent == []

    def test_letter_is_replayed_when_what_was_submitted_since_has_expired(self, desk: Desk) -> None:
        """Nothing has come of the key; a look before says so, too."""
        job = Job("order:12", "declared")
        letter_id = desk.bury(letter_of(job=job))
        desk.store.submit(job, task_id="t9", envelope=b"e", ttl=DAY)
        with refused("superseded"):
            desk.letters.check(letter_id, who="ann")
        desk.store.settle(job, task_id="t9", state="expired", ttl=DAY)
        desk.letters.check(letter_id, who="ann")
        desk.letters.replay(letter_id, who="ann")
        assert len(desk.broker.sent) == 1

    def test_missing_letter_is_refused(self, desk: Desk) -> None:
        """A letter that was discarded meanwhile is named with what to do."""
        with refused("gone") as caught:
            desk.letters.replay("nothing", who="ann")
        assert "Submit the call again" in str(caught.value)

    def test_call_of_a_task_that_no_longer_exists_is_refused_unless_forced(self, desk: Desk) -> None:
        """No worker could run it; nothing is marked or published."""
        letter_id = desk.bury(letter_of())
        operator = desk.operator(objection=lambda call: "no such task" if call.task == TASK else "")
        with refused("no_task") as caught:
            operator.replay(letter_id, who="ann")
        assert TASK in str(caught.value)
        assert desk.store.letter(letter_id) == ("dead", letter_of().to_bytes())
        operator.replay(letter_id, who="ann", force=True)
        assert len(desk.broker.sent) == 1

    def test_edited_call_is_what_must_fit(self, desk: Desk) -> None:
        """Arguments that no longer fit their task are refused; an edit that fits them is not."""
        letter_id = desk.bury(letter_of())
        operator = desk.operator(objection=lambda call: "" if "13" in call.body else "amount is missing")
        with refused("no_task") as caught:
            operator.replay(letter_id, who="ann")
        assert "amount is missing" in str(caught.value)
        operator.replay(letter_id, who="ann", args=[13])
        assert len(desk.work()) == 1

    def test_letter_without_a_call_is_refused(self, desk: Desk) -> None:
        """There is nothing to publish."""
        letter_id = desk.keep(DeadLetter.of(None, reason="undecodable", envelope=None, task_id="m1", now=NOON))
        with refused("no_body"):
            desk.letters.replay(letter_id, who="ann")

    def test_message_that_could_not_be_read_goes_back_by_force(self, desk: Desk) -> None:
        """As it was, under a new id if it has one; the ledger keeps nothing that a sweep could publish."""
        sent: list[RawMessage] = []
        operator = desk.operator(publish_raw=sent.append)
        raw = RawMessage(queue="q", body="/w==", content_type="x/y", headers={"id": "m1", "task": TASK, "mine": 1})
        letter_id = desk.keep(DeadLetter.of(None, reason="undecodable", envelope=None, task_id="m1", raw=raw, now=NOON))
        with refused("no_body") as caught:
            operator.replay(letter_id, who="ann")
        assert "--force puts it back into queue q" in str(caught.value)

        new_id = operator.replay(letter_id, who="ann", force=True)
        assert sent == [replace(raw, headers={"id": new_id, "task": TASK, "mine": 1, "reliable_replays": 1})]
        assert list(desk.store.ledger()) == []
        with refused("replayed"):
            operator.replay(letter_id, who="ann", force=True)

    def test_queue_item_that_is_no_message_never_goes_back(self, desk: Desk) -> None:
        """No worker could read it; force changes nothing."""
        raw = RawMessage(queue="q", body="/w==", item=True)
        letter_id = desk.keep(DeadLetter.of(None, reason="undecodable", envelope=None, task_id="x", raw=raw, now=NOON))
        with refused("no_body"):
            desk.letters.replay(letter_id, who="ann", force=True)

    def test_call_without_a_key_leaves_no_ledger_entry(self, desk: Desk) -> None:
        """Nobody would end it: the task may be a plain one."""
        letter_id = desk.keep(DeadLetter.of(None, reason="unregistered", envelope=envelope(), now=NOON))
        desk.letters.replay(letter_id, who="ann")
        assert list(desk.store.ledger()) == []

    def test_died_again_letter_counts_its_loops(self, desk: Desk) -> None:
        """The second letter of a job says that a replay went before it, and can be replayed in its turn."""
        desk.bury(letter_of())
        desk.letters.replay(letter_of().id, who="ann")
        again = desk.broker.sent.pop()
        second = letter_of(again.task_id, envelope=again, job=letter_of().job, life=2)
        desk.bury(second)
        assert second.loops == 1
        desk.letters.replay(second.id, who="ann")
        assert desk.broker.sent[0].options["headers"]["reliable_replays"] == 2
        with refused("replayed"):
            desk.letters.replay(letter_of().id, who="ann")


class TestEdit:
    """Changing the arguments of one letter."""

    def test_edited_call_runs_and_the_original_is_kept(self, desk: Desk) -> None:
        """What is not given stays; the first envelope can be looked up for ever."""
        letter_id = desk.bury(letter_of())
        desk.letters.replay(letter_id, who="ann", kwargs={"currency": "USD"})
        assert [json.loads(body) for body in desk.work()] == [[[12], {"currency": "USD"}]]
        letter = desk.letters.show(letter_id)
        assert letter is not None
        assert letter.original == letter_of().envelope
        assert letter.replays[0].edited

    def test_edited_call_takes_a_new_fingerprint(self, desk: Desk) -> None:
        """The claim compares the fingerprint of what was published, not of what died."""
        letter_id = desk.bury(letter_of(job=Job("order:12", "declared"), fingerprint="old"))
        operator = desk.operator(fingerprint=lambda envelope: f"new{len(envelope.body)}"[:8])
        operator.replay(letter_id, who="ann", args=[13])
        assert desk.broker.sent[0].options["headers"]["reliable"]["f"].startswith("new")
        assert len(desk.work()) == 1

    def test_binary_call_can_only_be_replaced_as_a_whole(self, desk: Desk) -> None:
        """Half an edit of what cannot be read is refused; a whole one is JSON from then on."""
        pickled = Envelope(TASK, "t1", "gASV", "application/x-python-serialize", "binary", {"queue": "q"})
        letter_id = desk.keep(letter_of(job=None, envelope=pickled))
        with refused("no_body"):
            desk.letters.replay(letter_id, who="ann", args=[1])
        desk.letters.replay(letter_id, who="ann", args=[1], kwargs={})
        [sent] = desk.broker.sent
        assert (sent.body, sent.content_type, sent.content_encoding) == ("[[1],{}]", "application/json", "utf-8")

    def test_part_of_a_body_that_is_not_edited_stays_as_written(self, desk: Desk) -> None:
        """Values only Celery's JSON knows pass through, and so does a third part."""
        body = '[[{"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}], {"a": 1}, {"chord": null}]'
        letter_id = desk.keep(letter_of(job=None, envelope=replace(envelope(), body=body)))
        desk.letters.replay(letter_id, who="ann", kwargs={"a": 2})
        args, kwargs, rest = json.loads(desk.broker.sent[0].body)
        assert (args, kwargs, rest) == (json.loads(body)[0], {"a": 2}, {"chord": None})

    def test_killed_edited_replay_goes_on_with_the_same_edit_only(self, desk: Desk) -> None:
        """The same command finishes it; another edit cannot ride on a replay that was begun."""
        letter_id = desk.bury(letter_of())
        desk.broker.dies = "before the publish"
        with pytest.raises(Killed):
            desk.letters.replay(letter_id, who="ann", args=[13])
        desk.broker.dies = ""
        with refused("replayed"):
            desk.letters.replay(letter_id, who="ann", args=[14])
        desk.letters.replay(letter_id, who="ann", args=[13])
        assert [json.loads(body)[0] for body in desk.work()] == [[13]]


class TestReplayMany:
    """Replaying what a filter finds."""

    def test_all_that_fit_are_replayed_newest_first(self, desk: Desk) -> None:
        """The report counts them, and each step is told as it happens."""
        for number in range(3):
            desk.bury(letter_of(f"n{number}"))
        steps: list[Step] = []
        report = desk.letters.replay_many(Filter(), who="ann", on_progress=steps.append)
        assert report == Report(total=3, replayed=3, refused={})
        assert [(step.done, step.total) for step in steps] == [(1, 3), (2, 3), (3, 3)]
        assert [step.new_id for step in steps] == [sent.task_id for sent in desk.broker.sent]
        assert len(desk.work()) == 3
        assert desk.letters.replay_many(Filter(), who="ann").total == 0

    def test_dry_run_changes_nothing_and_tells_what_would_be_refused(self, desk: Desk) -> None:
        """Every letter and the store's counts stay as they are."""
        desk.bury(letter_of("a"))
        desk.keep(DeadLetter.of(None, reason="undecodable", envelope=None, task_id="m1", now=NOON))
        before = [(letter_id, status, body) for letter_id, status, body in desk.store.letters().letters]
        report = desk.letters.replay_many(Filter(), who="ann", dry_run=True)
        assert report == Report(total=2, replayed=1, refused={"no_body": 1})
        assert list(desk.store.letters().letters) == before
        assert (desk.broker.sent, desk.store.letter_counts()["replayed"]) == ([], 0)

    def test_rate_is_kept(self, desk: Desk) -> None:
        """Eleven letters at 10 a second take one second, and a stall is not made up for by a burst."""
        for number in range(11):
            desk.bury(letter_of(f"n{number}"))
        times: list[float] = []

        def slow(step: Step) -> None:
            times.append(desk.clock.now)
            if step.done == 5:
                desk.clock.sleep(3.0)

        desk.letters.replay_many(Filter(), who="ann", rate=10.0, on_progress=slow)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert gaps == pytest.approx([0.1, 0.1, 0.1, 0.1, 3.0, 0.1, 0.1, 0.1, 0.1, 0.1], abs=1e-5)

    def test_limit_takes_the_newest(self, desk: Desk) -> None:
        """A small first batch shows whether the cause is gone."""
        for number in range(4):
            desk.bury(letter_of(f"n{number}"))
        assert desk.letters.replay_many(Filter(), who="ann", limit=1).replayed == 1
        assert {letter.task_id for letter in desk.letters.search(Filter())} == {"n0", "n1", "n2"}

    def test_refusals_do_not_stop_it(self, desk: Desk) -> None:
        """They are counted by reason; the rest is replayed."""
        job = Job("order:12", "declared")
        desk.bury(letter_of("old", job=job))
        desk.store.submit(job, task_id="newer", envelope=b"e", ttl=DAY)
        desk.bury(letter_of("good"))
        assert desk.letters.replay_many(Filter(), who="ann") == Report(total=2, replayed=1, refused={"superseded": 1})

    @pytest.mark.parametrize("dies", ["before the publish", "after the publish"])
    @pytest.mark.parametrize("at", [1, 3, 5])
    def test_killed_at_any_letter_the_same_call_goes_on(self, desk: Desk, dies: str, at: int) -> None:
        """Five letters, a kill around one publish, the same call again: each job runs exactly once."""
        for number in range(5):
            desk.bury(letter_of(f"n{number}", envelope=envelope(TASK, f"n{number}", number)))

        def kill_next(step: Step) -> None:
            desk.broker.dies = dies if step.done == at - 1 else ""

        desk.broker.dies = dies if at == 1 else ""
        with pytest.raises(Killed):
            desk.letters.replay_many(Filter(), who="ann", on_progress=kill_next)
        desk.broker.dies = ""
        ran = desk.work()
        desk.letters.replay_many(Filter(), who="ann")
        ran += desk.work()
        assert sorted(json.loads(body)[0][0] for body in ran) == [0, 1, 2, 3, 4]
        assert _statuses(desk.letters.search()) == {"replayed"}

    def test_letters_that_die_again_meanwhile_are_not_taken_in(self, desk: Desk) -> None:
        """A job that dies as soon as it is replayed does not make the replay endless."""
        desk.bury(letter_of("a"))

        def die_again(_: Step) -> None:
            message = desk.broker.sent.pop()
            desk.bury(letter_of(message.task_id, envelope=message, job=Job("a", "own", int(NOON * 1e6)), life=2))

        assert desk.letters.replay_many(Filter(), who="ann", on_progress=die_again).total == 1
        assert len(list(desk.letters.search(Filter()))) == 1


def _statuses(letters: Iterable[DeadLetter]) -> set[str]:
    return {letter.status for letter in letters}


class TestDiscard:
    """Dropping a letter."""

    def test_discarded_letter_is_gone_told_and_its_key_free(self, desk: Desk) -> None:
        """The key may be submitted again; a second discard finds nothing."""
        job = Job("order:12", "declared")
        letter_id = desk.bury(letter_of(job=job))
        assert desk.letters.discard(letter_id, who="ann")
        assert desk.letters.show(letter_id) is None
        assert desk.store.inspect(job).get("state") != "dead"
        assert not desk.letters.discard(letter_id, who="ann")
        [(event, facts)] = desk.events
        assert (event, facts["letter_id"], facts["by"]) == ("letter_discarded", letter_id, "ann")
        assert facts["key"]
