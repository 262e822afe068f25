"""Signatures of messages and seals of kept calls: what they cover, who checks them, and what is refused."""

from __future__ import annotations

import json
import pickle
import uuid
from base64 import b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, chord, group
from kombu import Exchange, Queue
from sqlalchemy import create_engine

from celery_reliable import ConfigurationError, ReliableTask, install
from celery_reliable.app_letters import known_letters_of
from celery_reliable.cli.purge import purge_queue
from celery_reliable.contrib.sqlalchemy import outbox
from celery_reliable.dead_letters import DeadLetter, letter_id_of
from celery_reliable.dead_letters.outgoing import Change
from celery_reliable.errors import ReplayRefused, SignatureRefused
from celery_reliable.events import Events
from celery_reliable.payloads import PARKED_HEADER, SIGNATURE_HEADER, Envelope, RawMessage
from celery_reliable.publishing import check_seal, publish_envelope, sealed
from celery_reliable.relay import Relay
from celery_reliable.runtime import forget_runtime, replaced_runtime, runtime_of
from celery_reliable.settings import Settings
from celery_reliable.signing import Signer
from celery_reliable.stores.base import Job, New
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.sql import open_sql_store
from celery_reliable.testing import drain_all, in_memory
from celery_reliable.worker.inspection import unsigned
from celery_reliable.worker.intake import Doubt
from celery_reliable.worker.refusals import Case, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery_reliable.stores.base import Store
    from celery_reliable.stores.outbox import Outbox

KEY, OLD = "k" * 40, "o" * 40
CONTENT = ("application/json", "utf-8")
BODY = b"[[12], {}, {}]"
HEADERS: dict[str, Any] = {
    "task": "shop.charge",
    "id": "t1",
    "root_id": "t1",
    "parent_id": None,
    "group": None,
    "retries": 0,
    "eta": None,
    "expires": None,
    "timelimit": [None, None],
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "argsrepr": "(12,)",
    "reliable": {"i": "t1", "k": "declared", "key": "charge:12", "s": 1_790_000_000_000_000, "l": 1},
    "reliable_replays": 1,
}


def signer(*keys: str, **options: Any) -> Signer:
    """The keys of a fleet."""
    return Signer([key.encode() for key in keys or (KEY,)], **options)


def signed(**changed: Any) -> dict[str, Any]:
    """Headers with their signature, changed after that."""
    return {**HEADERS, SIGNATURE_HEADER: signer().sign(HEADERS, BODY, CONTENT), **changed}


# --- what a signature covers


def test_what_was_signed_is_believed() -> None:
    """Also as text instead of bytes, and with a header of None that a broker has dropped."""
    kept = {name: value for name, value in signed().items() if value is not None}

    assert signer().fault(signed(), BODY, CONTENT) == ""
    assert signer().fault(kept, BODY.decode(), CONTENT) == ""


FORGED: dict[str, dict[str, Any]] = {
    "another task": {"task": "shop.refund"},
    "another id": {"id": "t2"},
    "another time": {"eta": "2030-01-01T00:00:00+00:00"},
    "no end": {"expires": "2030-01-01T00:00:00+00:00"},
    "another limit": {"timelimit": [1, None]},
    "another chord": {"group": "g1"},
    "another parent": {"parent_id": "t0"},
    "an attempt": {"retries": 1},
    "a nesting": {"replaced_task_nesting": 1},
    "another key": {"reliable": {**HEADERS["reliable"], "key": "charge:13"}},
    "another life": {"reliable": {**HEADERS["reliable"], "l": 2}},
    "another age": {"reliable": {**HEADERS["reliable"], "s": 1_800_000_000_000_000}},
    "no key": {"reliable": None},
    "fewer replays": {"reliable_replays": 0},
    "a version": {"reliable_payload_version": 2},
    "arguments elsewhere": {"reliable_arguments": ["file:///etc", "x"]},
    "a slot": {"reliable_slot": "2030-01-01T00:00:00+00:00"},
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_what_was_changed_is_not_believed(change: dict[str, Any]) -> None:
    """Task, id, what decides whether it runs, and every header of ours."""
    assert "changed after" in signer().fault(signed(**change), BODY, CONTENT)


def test_another_body_or_another_content_is_not_believed() -> None:
    """The content type decides what the bytes mean."""
    assert signer().fault(signed(), BODY.replace(b"12", b"13"), CONTENT)
    assert signer().fault(signed(), BODY, ("application/x-python-serialize", "binary"))


def test_what_others_write_on_the_way_does_no_harm() -> None:
    """Brokers, tracing tools, and a worker that parked it."""
    way = {"x-death": [], "redelivered": True, "sentry-trace": "1", "traceparent": "2", PARKED_HEADER: {"since": 1.5}}

    assert signer().fault(signed(**way), BODY, CONTENT) == ""


HOSTILE: tuple[Any, ...] = (
    None,
    [],
    {},
    {SIGNATURE_HEADER: 7},
    {SIGNATURE_HEADER: "ü"},
    {SIGNATURE_HEADER: ""},
    {SIGNATURE_HEADER: "x", "reliable": {1: 2, "a": 3}},
    {SIGNATURE_HEADER: "x", "task": b"\xff", "id": {"a"}},
    {SIGNATURE_HEADER: "x", 7: 8, None: 9},
)


@pytest.mark.parametrize("headers", HOSTILE, ids=repr)
def test_whatever_a_message_holds_it_is_refused_without_an_error(headers: Any) -> None:
    """The check runs in the consumer's thread."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    assert signer().fault(headers, BODY, CONTENT)
    assert signer().fault({SIGNATURE_HEADER: "x", "reliable": deep}, BODY, CONTENT)
    assert signer().fault(headers, 7, CONTENT)


def test_keys_can_be_exchanged_while_the_fleet_runs() -> None:
    """The first one signs, each verifies; one that was taken out verifies no longer."""
    headers = {**HEADERS, SIGNATURE_HEADER: signer(OLD).sign(HEADERS, BODY, CONTENT)}

    assert signer(KEY, OLD).fault(headers, BODY, CONTENT) == ""
    assert signer(KEY).fault(headers, BODY, CONTENT)
    assert signer(KEY, OLD).sign(HEADERS, BODY, CONTENT) == signer(KEY).sign(HEADERS, BODY, CONTENT)


def test_a_seal_is_no_signature() -> None:
    """What proves one thing must not be used for the other."""
    envelope = Envelope("shop.charge", "t1", "[[12], {}]")
    seal = signer().sealed(envelope).seal

    assert signer().fault({**HEADERS, SIGNATURE_HEADER: seal}, BODY, CONTENT)
    assert not signer().is_sealed(replace(envelope, seal=signer().sign(HEADERS, BODY, CONTENT)))


# --- keys stay secret


def test_keys_are_read_in_order_and_shown_nowhere() -> None:
    """In no repr, and not by Celery's own report."""
    keys = ["geheim-1", b"geheim-2"]
    settings = Settings.from_conf({"reliable_signing_keys": keys})
    app = Celery(set_as_current=False)
    app.conf.reliable_signing_keys = keys

    assert settings.signing_keys == (b"geheim-1", b"geheim-2")
    assert "geheim" not in repr(settings) + repr(Signer(settings.signing_keys)) + app.bugreport()
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Signer(settings.signing_keys))


@pytest.mark.parametrize("keys", [[], {"2026": "geheim"}, "geheim", [""], ["geheim", 7], 7], ids=repr)
def test_wrong_keys_are_refused_and_not_shown(keys: Any) -> None:
    """The error tells the type alone."""
    with pytest.raises(ConfigurationError, match="reliable_signing_keys: expected a list") as caught:
        Settings.from_conf({"reliable_signing_keys": keys})

    assert "geheim" not in str(caught.value)


# --- every message is signed


def make_app(**conf: Any) -> Celery:
    """An app on a broker in memory, with a queue of its own."""
    name = uuid.uuid4().hex
    app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        task_queues=[Queue(name, Exchange(name), routing_key=name)],
        task_default_queue=name,
        task_default_exchange=name,
        task_default_routing_key=name,
        reliable_store_url="memory://",
        **conf,
    )
    return app


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app that signs, with a reliable task, a plain one, and one whose key dedups."""
    app = make_app(reliable_signing_keys=[KEY])
    install(app)
    app.task(name="plain", shared=False)(plain)
    app.task(name="add", base=ReliableTask, shared=False)(add)
    newest = {"idempotency_key": "order:{number}", "on_conflict": "replace"}
    app.task(name="order", base=ReliableTask, shared=False, **newest)(order)
    yield app
    forget_runtime(app)


def plain(*_: Any, **__: Any) -> None:
    """Do nothing."""


def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


def order(number: int, amount: int) -> int:
    """Pay."""
    RAN.append((number, amount))
    return amount


RAN: list[tuple[int, int]] = []


def messages(app: Celery) -> Iterator[Any]:
    """Take what lies in an app's queue."""
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        while (message := channel.basic_get(app.conf.task_default_queue, no_ack=True)) is not None:
            yield message


def fault(message: Any) -> str:
    """What is wrong with a message."""
    return signer().fault(message.headers, message.body, (message.content_type, message.content_encoding))


SENT: dict[str, Callable[[Celery], object]] = {
    "a reliable task": lambda app: app.tasks["add"].delay(1),
    "a plain task": lambda app: app.tasks["plain"].delay(1),
    "by name": lambda app: app.send_task("elsewhere", (1,)),
    "later": lambda app: app.tasks["add"].apply_async((1,), countdown=60, expires=90),
    "a chain": lambda app: chain(app.tasks["add"].s(1), app.tasks["plain"].si()).apply_async(),
    "a group": lambda app: group(app.tasks["add"].s(1), app.tasks["plain"].s(1)).apply_async(),
    "a chord": lambda app: chord([app.tasks["add"].s(1)], app.tasks["plain"].s()).apply_async(),
    "stamped": lambda app: app.tasks["add"].s(1).apply_async(headers={"tenant": "ü"}, priority=3),
    "compressed": lambda app: app.tasks["plain"].apply_async(("x" * 5000,), compression="gzip"),
    "in YAML": lambda app: app.tasks["plain"].apply_async(("ü",), serializer="yaml"),
    "a kept call": lambda app: publish_envelope(app, sealed(app, Envelope("plain", "t9", "[[1], {}]"))),
}


@pytest.mark.parametrize("send", SENT.values(), ids=SENT.keys())
def test_every_message_is_signed(app: Celery, send: Callable[[Celery], object]) -> None:
    """Whoever sends it, and however."""
    send(app)

    found = list(messages(app))
    assert found
    assert [fault(message) for message in found] == [""] * len(found)
    assert signer(OLD).fault(found[0].headers, found[0].body, CONTENT)


def test_a_signature_that_came_with_other_headers_is_replaced(app: Celery) -> None:
    """Headers are handed on from message to message."""
    app.tasks["plain"].apply_async(headers={SIGNATURE_HEADER: "old"})

    assert [fault(message) for message in messages(app)] == [""]


def test_what_a_receiver_of_before_task_publish_changes_is_signed(app: Celery) -> None:
    """Tracing tools and projects write into headers and body there."""
    from celery.signals import before_task_publish  # noqa: PLC0415

    def change(headers: dict[str, Any], body: Any, **_: Any) -> None:
        headers["reliable_slot"] = "changed"
        body[1]["added"] = 1

    before_task_publish.connect(change, sender="plain", weak=False)
    try:
        app.tasks["plain"].delay()
    finally:
        before_task_publish.disconnect(change, sender="plain")

    (message,) = messages(app)
    assert (message.headers["reliable_slot"], fault(message)) == ("changed", "")


def test_an_event_of_the_same_sending_goes_through(app: Celery) -> None:
    """``task_send_sent_event``: it is no task message."""
    app.conf.task_send_sent_event = True
    app.tasks["plain"].delay()

    assert [fault(message) for message in messages(app)] == [""]


def test_the_first_protocol_is_signed_too() -> None:
    """Its task and id lie in the body."""
    app = make_app(reliable_signing_keys=[KEY], task_protocol=1)
    install(app)
    app.send_task("elsewhere", (1,))

    assert [fault(message) for message in messages(app)] == [""]


def test_without_keys_nothing_of_celery_is_touched() -> None:
    """Signing that is off costs nothing: neither on the way out nor on the way in."""
    app = make_app()
    install(app)
    app.task(name="add", base=ReliableTask, shared=False)(add).delay(1)

    assert "_create_task_sender" not in vars(app.amqp)
    assert runtime_of(app).signer is None
    assert [SIGNATURE_HEADER in message.headers for message in messages(app)] == [False]
    envelopes = [Envelope.from_bytes(raw) for _, raw in runtime_of(app).store.ledger()]
    assert [one.seal for one in envelopes] == [""] * len(envelopes)
    forget_runtime(app)


def test_wrong_keys_let_nothing_out_unsigned() -> None:
    """The call raises, also that of a plain task, which reads no settings of ours."""
    app = make_app(reliable_signing_keys="one text")
    install(app)
    with pytest.raises(ConfigurationError, match="reliable_signing_keys"):
        app.send_task("elsewhere")

    assert list(messages(app)) == []


# --- kept calls


ENVELOPE = Envelope("plain", "t1", "[[12], {}]", options={"headers": {"reliable": {"i": "t1"}}})


def test_a_seal_survives_being_kept() -> None:
    """In the ledger and the outbox; what was kept without one is read as ever."""
    there = Envelope.from_bytes(signer().sealed(ENVELOPE).to_bytes())

    assert signer().is_sealed(there)
    assert Envelope.from_bytes(ENVELOPE.to_bytes()) == ENVELOPE


@pytest.mark.parametrize(
    "change",
    [{"task": "x"}, {"task_id": "x"}, {"body": "[[13], {}]"}, {"content_type": "x"}, {"options": {}}, {"seal": ""}],
    ids=repr,
)
def test_a_changed_call_is_not_sealed(change: dict[str, Any]) -> None:
    """Every part counts."""
    assert not signer().is_sealed(replace(signer().sealed(ENVELOPE), **change))


def test_submissions_are_sealed(app: Celery) -> None:
    """What the store keeps of them is published, and signed, by others."""
    store = Recording()
    with replaced_runtime(app, store=store, events=Events()):
        app.tasks["order"].delay(1, amount=2)

    assert [signer().is_sealed(one) for one in store.kept] == [True]


class Recording(MemoryStore):
    """A store that shows what it was given to keep."""

    kept: list[Envelope]

    def submit(self, *args: Any, **options: Any) -> Any:
        """See `Store.submit`."""
        self.kept = [Envelope.from_bytes(options["envelope"])]
        return super().submit(*args, **options)


def test_a_call_that_nobody_sealed_is_not_published(app: Celery) -> None:
    """Publishing it would sign it."""
    for envelope in (ENVELOPE, replace(signer(OLD).sealed(ENVELOPE)), replace(signer().sealed(ENVELOPE), body="[]")):
        with pytest.raises(SignatureRefused, match="sealed"):
            publish_envelope(app, envelope)

    assert list(messages(app)) == []


def test_while_signing_is_introduced_it_is_published_and_told(app: Celery) -> None:
    """What waits in the ledger was kept before."""
    told: list[str] = []
    app.conf.reliable_signing = "warn"
    with replaced_runtime(app, store=MemoryStore(), events=Events([lambda name, _: told.append(name)])):
        check_seal(app, ENVELOPE)
        check_seal(app, sealed(app, ENVELOPE))

    assert told == ["unsigned"]


def test_newer_arguments_that_nobody_sealed_do_not_run(app: Celery) -> None:
    """``on_conflict="replace"`` keeps them in the store until the claim."""
    with in_memory(app) as bench:
        app.tasks["order"].delay(77, amount=2)
        (message,) = bench.waiting
        forged = Envelope("order", "t0", '[[77], {"amount": 1000}]').to_bytes()
        job = Job("order:77", "declared", message.options["headers"]["reliable"]["s"])
        bench.store.submit(job, task_id="t0", fingerprint="", envelope=forged, canvas=False, replace=True, ttl=60.0)
        drain_all()
        letters = list(known_letters_of(app).search())

    assert [number for number, _ in RAN if number == 77] == []
    assert [(letter.reason, letter.error_type) for letter in letters] == [
        ("rejected", "celery_reliable.errors.SignatureRefused")
    ]


def test_a_promise_that_nobody_sealed_becomes_a_letter(app: Celery, tmp_path: Path) -> None:
    """A relay signs what it takes out of the outbox."""
    url = f"sqlite:///{tmp_path}/shop.db"
    store = open_sql_store(url)
    store.create_tables()
    with replaced_runtime(app, store=store, events=Events()):
        relay = Relay(app, outbox_of(store))
        for task_id, kept in (("t1", ENVELOPE), ("t2", signer().sealed(replace(ENVELOPE, task_id="t2")))):
            promise(url, store, task_id, kept)
        relay.deliver(["t1", "t2"])
        letters = list(known_letters_of(app).search())
        assert outbox_of(store).take(limit=9, hold=0.0, task_ids=["t1", "t2"]) == []

    assert [message.headers["id"] for message in messages(app)] == ["t2"]
    assert [(letter.task_id, letter.reason) for letter in letters] == [("t1", "rejected")]
    store.close()


def outbox_of(store: Store) -> Outbox:
    """The outbox of a store that has one."""
    assert store.outbox is not None
    return store.outbox


def promise(url: str, store: Any, task_id: str, envelope: Envelope) -> None:
    """Write a promise as a transaction of the project would."""
    engine = create_engine(url)
    with engine.begin() as connection, outbox(connection):
        transaction = store.outbox.transaction()
        store.outbox.promise(transaction, Job(task_id, "own", 1), task_id=task_id, envelope=envelope.to_bytes())
    engine.dispose()


# --- letters


def letter_of(envelope: Envelope | None = ENVELOPE, **changes: Any) -> DeadLetter:
    """A letter of a call."""
    given: dict[str, Any] = {"reason": "permanent", "now": 1.0, "letter_id": "a" * 16, **changes}
    return DeadLetter.of(None, envelope=envelope, **given)


def keep(store: Store, letter: DeadLetter) -> None:
    """Put a letter into a store."""
    store.keep_letter(letter.id, letter=letter.to_bytes(), label=letter.label, letter_ttl=60.0, letter_max=9)


@pytest.fixture
def store(app: Celery) -> Iterator[MemoryStore]:
    """The store of the app, in memory."""
    store = MemoryStore()
    with replaced_runtime(app, store=store, events=Events()):
        yield store


def test_a_letter_that_was_sealed_is_replayed_as_ever(app: Celery, store: MemoryStore) -> None:
    """Its message is signed anew, and so is the ledger's copy."""
    keep(store, letter_of(signer().sealed(ENVELOPE)))
    new_id = known_letters_of(app).replay("a" * 16, who="ann")

    (message,) = messages(app)
    assert (message.headers["id"], fault(message)) == (new_id, "")


UNKNOWN = {
    "no seal": ENVELOPE,
    "an old key": signer(OLD).sealed(ENVELOPE),
    "changed": replace(signer().sealed(ENVELOPE), body="[[1000], {}]"),
}


@pytest.mark.parametrize("envelope", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_letter_that_nobody_is_known_to_have_signed_needs_a_word(
    app: Celery, store: MemoryStore, envelope: Envelope
) -> None:
    """Its replay would be signed: whoever can only write to the broker must not get that by dying."""
    letters = known_letters_of(app)
    keep(store, letter_of(envelope))
    for attempt in (
        lambda: letters.check("a" * 16, who="ann"),
        lambda: letters.replay("a" * 16, who="ann", force=True),
    ):
        with pytest.raises(ReplayRefused, match="--sign") as caught:
            attempt()
        assert caught.value.reason == "unsigned"
    assert list(messages(app)) == []

    letters.replay("a" * 16, who="ann", sign=True)
    assert [fault(message) for message in messages(app)] == [""]


def test_an_edited_letter_is_sealed_as_it_is_now(app: Celery, store: MemoryStore) -> None:
    """Whoever finishes a replay that was cut off must not be told that it was forged."""
    keep(store, letter_of(signer().sealed(ENVELOPE)))
    letters = known_letters_of(app)
    letters.replay("a" * 16, who="ann", args=[13])
    letter = letters.show("a" * 16)

    assert letter is not None
    assert letter.envelope is not None
    assert signer().is_sealed(letter.envelope)
    assert letter.arguments() == ([13], {})
    assert [json.loads(message.body)[0] for message in messages(app)] == [[13]]


def test_an_edit_does_not_make_a_forged_call_a_signed_one(app: Celery, store: MemoryStore) -> None:
    """What was not edited is still the forger's."""
    keep(store, letter_of())
    letter = known_letters_of(app).show("a" * 16)

    assert letter is not None
    with pytest.raises(ReplayRefused, match="--sign"):
        known_letters_of(app).replay_letter(letter, who="ann", change=Change(args=[1]))


def test_while_signing_is_introduced_letters_are_replayed_as_ever(app: Celery) -> None:
    """What is run anyway may be replayed."""
    app.conf.reliable_signing = "warn"
    with replaced_runtime(app, store=MemoryStore(), events=Events()) as runtime:
        keep(runtime.store, letter_of())
        known_letters_of(app).replay("a" * 16, who="ann")

    assert [fault(message) for message in messages(app)] == [""]


# --- a worker's door


class Doubtful:
    """A message as the consumer gets it, which must not be decoded before it is believed."""

    content_type, content_encoding = CONTENT
    body = BODY

    def __init__(self, headers: Any) -> None:
        """Take its headers."""
        self.headers = headers

    def decode(self) -> None:
        """Fail: a pickle would run code here."""
        raise AssertionError


def test_the_door_believes_what_is_signed_alone(app: Celery, store: MemoryStore) -> None:
    """And says of the rest what it names itself, and what to do."""
    door = Doubt(runtime_of(app), signer())
    refusal = door.of(Doubtful(signed(retries=7)))

    assert door.of(Doubtful(signed())) is None
    assert refusal is not None
    assert (refusal.reason, refusal.task, refusal.task_id) == ("rejected", "shop.charge", "t1")
    assert "reliable_signing_keys" in refusal.why
    assert "--sign" in refusal.why


def test_an_open_door_takes_the_signature_away(app: Celery, store: MemoryStore) -> None:
    """In the mode "warn" a message goes on, but what comes of it is not taken for a signed one later."""
    headers = signed(retries=7)

    assert Doubt(runtime_of(app), signer(enforces=False)).of(Doubtful(headers)) is None
    assert SIGNATURE_HEADER not in headers


def case(headers: dict[str, Any], *, embed: Any = None) -> Case:
    """A message that was refused at the door."""
    body = b64encode(json.dumps([[12], {}, embed or {}]).encode()).decode()
    raw = RawMessage(queue="q", body=body, content_type=CONTENT[0], content_encoding=CONTENT[1], headers=headers)
    return Case(raw, unsigned(headers, "it has no signature"), str(headers.get("id")))


def test_a_refused_message_is_a_letter_and_nothing_else(app: Celery, store: MemoryStore) -> None:
    """It ends no job, sends no errback, stores no result: all of these are the forger's words."""
    now = store.now()
    job = Job("charge:12", "declared", now)
    genuine = store.submit(job, task_id="t1", fingerprint="f", envelope=b"x", canvas=False, replace=False, ttl=60.0)
    assert isinstance(genuine, New)
    header = {"i": "t1", "k": "declared", "key": "charge:12", "f": "f", "l": genuine.life, "s": now}
    forged = {"task": "add", "id": "t1", "reliable": header}
    embed = {"errbacks": [{"task": "plain", "args": [], "kwargs": {}, "options": {}}]}
    refusals = Refusals(app)
    for _ in range(2):  # the worker may die after the letter and before the ack
        refusals.settle(case(forged, embed=embed))
    (letter,) = known_letters_of(app).search()

    assert (letter.reason, letter.error_type) == ("rejected", "celery_reliable.errors.SignatureRefused")
    assert (letter.envelope, letter.key) == (None, "")
    assert store.inspect(job)["state"] == "waiting"
    assert app.backend.get_state("t1") == "PENDING"
    assert list(messages(app)) == []


def test_a_purge_ends_what_was_signed_alone(app: Celery, store: MemoryStore) -> None:
    """A forged message names the job of somebody else, which goes on."""
    app.tasks["order"].delay(1, amount=2)
    (true,) = messages(app)
    job = Job("order:1", "declared", true.headers["reliable"]["s"])
    put = {"exchange": "", "routing_key": app.conf.task_default_queue}
    states = []
    for headers in ({**true.headers, "retries": 7}, true.headers):
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            content = {"content_type": true.content_type, "content_encoding": true.content_encoding}
            channel.basic_publish(channel.prepare_message(true.body, headers=headers, **content), **put)
        assert purge_queue(app, app.conf.task_default_queue) == 1
        states.append(store.inspect(job).get("state"))

    assert states == ["waiting", "revoked"]


def test_a_forged_letter_does_not_take_the_place_of_a_true_one(app: Celery, store: MemoryStore) -> None:
    """The letter of a job has an id that follows from its key and life; a forger knows both."""
    Refusals(app).settle(case({"task": "add", "id": "charge:12", "reliable": {"i": "charge:12", "key": "charge:12"}}))
    (letter,) = known_letters_of(app).search()

    assert letter.id not in {letter_id_of("charge:12", life=life) for life in range(-5, 5)}


def test_a_refused_message_goes_back_signed_by_one_word(app: Celery, store: MemoryStore) -> None:
    """A producer without keys: as it was, under a new id, believed from then on."""
    Refusals(app).settle(case({**HEADERS, "task": "add"}))
    letters = known_letters_of(app)
    (letter,) = letters.search()
    assert letter.raw is not None
    queue = app.conf.task_default_queue
    keep(store, replace(letter, id="b" * 16, raw=replace(letter.raw, queue=queue)))

    with pytest.raises(ReplayRefused, match="--sign"):
        letters.replay("b" * 16, who="ann", force=True)
    new_id = letters.replay("b" * 16, who="ann", sign=True)
    (message,) = messages(app)
    assert (message.headers["id"], message.body, fault(message)) == (new_id, BODY, "")
