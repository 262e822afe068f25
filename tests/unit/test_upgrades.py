"""Older payloads, renamed tasks and arguments that this code does not know."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain

from celery_reliable import ConfigurationError, PayloadMismatch, ReliableTask, Transient, scope
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.errors import IncompatiblePayload
from celery_reliable.payloads import VERSION_HEADER
from celery_reliable.testing import Bench, in_memory
from celery_reliable.upgrades import Fitted, Shape
from celery_reliable.worker.preflight import check_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_reliable.testing.bench import Message


def body(order_id: int, cents: int, currency: str = "EUR") -> None:
    """What the task takes now."""


def shape(function: Callable[..., Any] = body, **upgrades: Any) -> Shape:
    """Return a shape with upgrades, ``_1=function``."""
    made = Shape.of("shop.charge", inspect.signature(function))
    for name, upgrade in upgrades.items():
        made.add(upgrade, from_version=int(name[1:]), version=len(upgrades) + 1)
    return made


def to_cents(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lift version 1."""
    return {"order_id": arguments["order_id"], "cents": arguments["amount"] * 100}


class TestLifting:
    """What an upgrade gets, and what becomes of it."""

    def test_arguments_by_position_have_the_names_of_now(self) -> None:
        """Unless the upgrade names them."""
        made = shape(_1=lambda arguments: arguments)
        assert made.fitted((7, 100), {}, version=1, known=2) == Fitted((7, 100), {})
        named = shape()
        named.add(to_cents, from_version=1, version=2, positional=("amount", "order_id"))
        assert named.fitted((1, 7), {}, version=1, known=2) == Fitted((7, 100), {})

    def test_every_version_is_lifted_by_one(self) -> None:
        """In order, from the message's version on."""
        seen: list[int] = []

        def step(number: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
            def note(arguments: dict[str, Any]) -> dict[str, Any]:
                seen.append(number)
                return arguments

            return note

        made = shape(_1=step(1), _2=step(2), _3=step(3))
        made.fitted((), {"order_id": 1, "cents": 2}, version=2, known=4)
        assert seen == [2, 3]

    @pytest.mark.parametrize(
        ("function", "args", "kwargs", "expected"),
        [
            (lambda a, *rest, k=1, **more: 0, (1, 2, 3), {"k": 4, "z": 5}, Fitted((1, 2, 3), {"k": 4, "z": 5})),
            (lambda a, /, b, *, c: 0, (1,), {"b": 2, "c": 3}, Fitted((1, 2), {"c": 3})),
            (lambda a: 0, (1,), {"gone": 2}, Fitted((1,), {}, ("gone",))),
            (lambda: 0, (), {}, Fitted((), {})),
        ],
    )
    def test_every_kind_of_parameter_survives(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Fitted
    ) -> None:
        """Also by position alone, and the rest."""
        assert shape(function, _1=lambda arguments: arguments).fitted(args, kwargs, version=1, known=2) == expected

    def test_message_is_left_as_it_was(self) -> None:
        """It may be sent once more, to be lifted again."""

        def spoil(arguments: dict[str, Any]) -> dict[str, Any]:
            arguments["lines"].append("spoilt")
            return arguments

        kwargs: dict[str, Any] = {"lines": []}
        shape(lambda lines: 0, _1=spoil).fitted((), kwargs, version=1, known=2)
        assert kwargs == {"lines": []}

    @pytest.mark.parametrize(
        ("upgrade", "args", "kwargs", "said"),
        [
            (lambda _: 1 / 0, (), {}, r"upgrade from version 1 failed \(ZeroDivisionError"),
            (lambda _: None, (), {}, "returned a NoneType"),
            (lambda _: {1: 2}, (), {}, "expected the arguments by name"),
            (lambda arguments: arguments, (1, 2, "EUR", 4), {}, "has 4 arguments by position, 3 are named"),
            (lambda arguments: arguments, (1,), {"order_id": 1}, "has order_id twice"),
        ],
    )
    def test_payload_that_cannot_be_lifted_says_why(
        self, upgrade: Any, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
    ) -> None:
        """And what to do."""
        with pytest.raises(IncompatiblePayload, match=rf"shop\.charge.*{said}.*replay the letter"):
            shape(_1=upgrade).fitted(args, kwargs, version=1, known=2)

    def test_recursive_upgrade_is_an_error_of_the_payload(self) -> None:
        """Not the end of the process."""

        def endless(arguments: dict[str, Any]) -> dict[str, Any]:
            return endless(arguments)

        with pytest.raises(IncompatiblePayload, match="RecursionError"):
            shape(_1=endless).fitted((), {}, version=1, known=2)

    def test_what_is_to_be_tried_again_is_passed_on(self) -> None:
        """An upgrade may have to ask somebody who is away."""

        def ask(_: dict[str, Any]) -> dict[str, Any]:
            raise Transient("away")

        with pytest.raises(Transient):
            shape(_1=ask).fitted((), {}, version=1, known=2)

    def test_without_upgrades_older_payloads_are_taken_as_they_are(self) -> None:
        """A raised version alone says that older workers cannot run newer calls."""
        assert shape().fitted((1, 2), {}, version=1, known=3) == Fitted((1, 2), {})


class TestRegistration:
    """What is refused before anything runs."""

    @pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, None])
    def test_version_that_is_none(self, app: Celery, version: Any) -> None:
        """Whole numbers from 1."""
        with pytest.raises(ConfigurationError, match=r"task shop\.charge.*whole number from 1"):
            charge_in(app, payload_version=2).upgrade(from_version=version)(to_cents)

    def test_upgrade_that_leads_nowhere_or_to_itself(self, app: Celery) -> None:
        """From the present version on, and a second one from the same."""
        task = charge_in(app, payload_version=2)
        with pytest.raises(ConfigurationError, match="raise payload_version to 3"):
            task.upgrade(from_version=2)(to_cents)
        task.upgrade(from_version=1)(to_cents)
        with pytest.raises(ConfigurationError, match="there is one already"):
            task.upgrade(from_version=1)(to_cents)
        with pytest.raises(ConfigurationError, match="expected a function"):
            charge_in(app, name="other", payload_version=2).upgrade(from_version=1)("to_cents")

    @pytest.mark.parametrize(("known", "missing"), [((1, 3), 2), ((1, 2), 3), ((2,), 3)])
    def test_worker_refuses_a_gap(self, app: Celery, known: tuple[int, ...], missing: int) -> None:
        """It would find it message by message."""
        charge_in(app, payload_version=4, upgrades=dict.fromkeys(known, to_cents))
        with pytest.raises(ConfigurationError, match=rf"none from {missing}.*from_version={missing}"):
            check_settings(app)

    def test_oldest_upgrades_may_go(self, app: Celery) -> None:
        """Messages from before are dead letters then."""
        task = charge_in(app, payload_version=4, upgrades={2: to_cents, 3: to_cents})
        check_settings(app)
        with pytest.raises(IncompatiblePayload, match=r"no upgrade leads from version 1.*oldest is from 2"):
            task.shape.fitted((), {}, version=1, known=4)

    def test_wrong_alias_is_refused(self, app: Celery) -> None:
        """No text, the name itself, another task's name."""
        for aliases in ("shop.old", (1,), ("shop.charge",), ("",)):
            with pytest.raises(ConfigurationError, match="aliases: expected names"):
                charge_in(make_app(), aliases=aliases)
        charge_in(app, name="shop.old")
        with pytest.raises(ConfigurationError, match=r"'shop\.old' is a task of its own"):
            charge_in(app, aliases=("shop.old",))


# --- in a worker


def make_app() -> Celery:
    """Return an app of its own."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.update(reliable_store_url="memory://", reliable_retry_backoff=0.0)
    return app


@pytest.fixture
def app() -> Celery:
    """An app without tasks."""
    return make_app()


def nothing() -> None:
    """Be a body."""


def charge_in(app: Celery, *, name: str = "shop.charge", run: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Register the task."""

    def charge(self: ReliableTask, order_id: int, cents: int, currency: str = "EUR") -> Any:
        return run and run(self, order_id=order_id, cents=cents)

    return app.task(base=ReliableTask, bind=True, name=name, shared=False, lazy=False, **options)(charge)


def older(app: Celery, **options: Any) -> Any:
    """Register the task as it was."""

    def charge(order_id: int, amount: int) -> None:
        pass

    return app.task(base=ReliableTask, name="shop.charge", shared=False, lazy=False, **options)(charge)


@pytest.fixture
def events() -> list[tuple[str, dict[str, Any]]]:
    """What was told."""
    return []


@pytest.fixture
def bench(app: Celery, events: list[tuple[str, dict[str, Any]]]) -> Iterator[Bench]:
    """The app's bench."""
    with in_memory(app, hooks=(lambda name, facts: events.append((name, facts)),)) as made:
        yield made


def letters(bench: Bench) -> list[DeadLetter]:
    """Return the dead letters."""
    return [DeadLetter.from_bytes(body) for _, _, body in bench.store.letters().letters]


def sent_by_old(bench: Bench, *args: Any, **kwargs: Any) -> Message:
    """Return a message that the old release sends, the store being shared."""
    with in_memory(make_app(), around=lambda _: bench.store) as theirs:
        older(theirs.app, idempotency_key="charge:{order_id}").delay(*args, **kwargs)
        return theirs.submitted[-1]


class TestRunning:
    """A message that older or newer code has sent."""

    def test_older_message_runs_lifted_and_keeps_its_key(
        self, app: Celery, bench: Bench, events: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """Its retry and its letter carry what it had: any release can go on with it."""
        ran: list[Any] = []

        def run(task: ReliableTask, **arguments: Any) -> None:
            ran.append((task.idempotency_key, task.attempt, arguments))
            raise Transient("away")

        task = charge_in(app, run=run, idempotency_key="charge:{order_id}", payload_version=2, max_retries=1)
        task.upgrade(from_version=1, positional=("order_id", "amount"))(to_cents)
        bench.deliver(sent_by_old(bench, 7, 3))
        bench.drain_all()
        lifted = {"order_id": 7, "cents": 300}
        assert ran == [("charge:7", 1, lifted), ("charge:7", 2, lifted)]
        assert [one["from_version"] for name, one in events if name == "upgraded"] == [1, 1]
        (letter,) = letters(bench)
        assert (letter.reason, letter.arguments()) == ("exhausted", ([7, 3], {}))
        assert VERSION_HEADER not in letter.envelope.options["headers"]  # type: ignore[union-attr]

    def test_retry_with_other_arguments_is_of_this_code_s_version(self, app: Celery, bench: Bench) -> None:
        """What the body leaves out comes lifted, not as it was in the message."""
        ran: list[Any] = []

        def run(task: ReliableTask, **arguments: Any) -> None:
            ran.append(arguments)
            if task.attempt == 1:
                raise task.retry(kwargs={"currency": "USD"})

        charge_in(app, run=run, payload_version=2, upgrades={1: to_cents})
        bench.send("shop.charge", (), {"order_id": 7, "amount": 3}, task_id="one")
        bench.drain_all()
        assert ran == [{"order_id": 7, "cents": 300}] * 2
        assert bench.submitted[-1].options["headers"][VERSION_HEADER] == 2

    def test_upgrade_that_fails_is_a_dead_letter(self, app: Celery, bench: Bench) -> None:
        """Mended, the letter can be replayed: it has what the message had."""
        charge_in(app, payload_version=2, upgrades={1: to_cents})
        bench.send("shop.charge", (), {"order_id": 7}, task_id="one")
        bench.drain_all()
        (letter,) = letters(bench)
        assert (letter.reason, letter.arguments()) == ("incompatible", ([], {"order_id": 7}))
        assert "the upgrade from version 1 failed (KeyError: 'amount')" in letter.error_message

    @pytest.mark.parametrize("autoretry", [(), (Exception,)])
    def test_missing_argument_is_a_dead_letter_at_once(
        self, app: Celery, bench: Bench, autoretry: tuple[Any, ...]
    ) -> None:
        """No attempt can cure it, whatever is retried otherwise."""
        charge_in(app, autoretry_for=autoretry)
        bench.send("shop.charge", (), {"order_id": 7}, task_id="one")
        bench.drain_all()
        (letter,) = letters(bench)
        assert (letter.reason, letter.attempts) == ("invalid", 1)
        assert "missing" in letter.error_message
        assert "cents" in letter.error_message

    def test_unknown_argument_is_dropped_with_one_warning(
        self, app: Celery, bench: Bench, events: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """The run is told of each time; the message of a retry keeps it, for newer code."""
        ran: list[Any] = []

        def run(task: ReliableTask, **arguments: Any) -> None:
            ran.append(arguments)
            if task.attempt == 1:
                raise Transient("away")

        charge_in(app, run=run)
        for number in range(2):
            new = {"order_id": number, "cents": 1, "tip": 5}
            bench.send("shop.charge", (), new, task_id=str(number))
        bench.drain_all()
        assert sorted(one["order_id"] for one in ran) == [0, 0, 1, 1]
        told = Counter(name for name, _ in events)
        assert (told["arguments_dropped"], told["argument_unknown"]) == (4, 1)
        assert [facts for name, facts in events if name == "argument_unknown"] == [
            {"task": "shop.charge", "argument": "tip"}
        ]
        assert bench.submitted[-1].kwargs["tip"] == 5

    def test_task_that_takes_everything_loses_nothing(self, app: Celery, bench: Bench) -> None:
        """``**kwargs`` is no unknown argument."""
        got: list[Any] = []

        def free(**kwargs: Any) -> None:
            got.append(kwargs)

        app.task(base=ReliableTask, name="free", shared=False)(free)
        bench.send("free", (), {"anything": 1}, task_id="one")
        bench.drain_all()
        assert got == [{"anything": 1}]

    def test_later_steps_of_an_older_chain_are_lifted(self, app: Celery, bench: Bench) -> None:
        """A worker of the new release sends them; its version is not theirs."""
        ran: list[Any] = []
        with in_memory(make_app(), around=lambda _: bench.store) as theirs:
            first = older(theirs.app)
            chain(first.si(1, 1), first.si(2, 2), first.si(3, 3)).apply_async()
            message = theirs.submitted[-1]
        task = charge_in(app, run=lambda _, **arguments: ran.append(arguments), payload_version=2)
        task.upgrade(from_version=1, positional=("order_id", "amount"))(to_cents)
        bench.deliver(message)
        bench.drain_all()
        assert ran == [{"order_id": number, "cents": number * 100} for number in (1, 2, 3)]
        assert not letters(bench)

    def test_later_steps_of_a_newer_chain_name_their_version(self, app: Celery, bench: Bench) -> None:
        """A worker of the old release sends them, or one with a version more."""
        ran: list[Any] = []
        task = charge_in(app, run=lambda _, **arguments: ran.append(arguments), payload_version=2)
        chain(task.si(1, 1), task.si(2, 2)).apply_async()
        bench.drain_all()
        assert [message.options["headers"].get(VERSION_HEADER) for message in bench.submitted] == [2, 2]
        assert len(ran) == 2

    def test_step_that_fits_nothing_is_sent_all_the_same(self, app: Celery, bench: Bench) -> None:
        """Its own worker finds out and keeps a letter; the one before would try for ever."""
        task = charge_in(app, idempotency_key="charge:{order_id}")
        step = task.si(1, 2)
        step["args"], step["kwargs"] = [], {"wrong": 1}
        other = app.task(base=ReliableTask, name="first", shared=False)(nothing)
        other.apply_async(chain=[step])
        bench.drain_all()
        (letter,) = letters(bench)
        assert letter.reason == "invalid"

    def test_arguments_replaced_by_newer_code_wait_for_a_newer_worker(self, app: Celery, bench: Bench) -> None:
        """``on_conflict="replace"``: the old worker has the message, the store the newer arguments."""
        ran: list[Any] = []
        key: Any = {"idempotency_key": "charge:{order_id}", "on_conflict": "replace"}
        charge_in(app, run=lambda _, **arguments: ran.append(arguments), **key)
        app.tasks["shop.charge"].delay(7, 1)
        message = bench.waiting[0]
        with in_memory(make_app(), around=lambda _: bench.store) as theirs:
            charge_in(theirs.app, payload_version=2, **key).delay(7, 2)
        assert bench.deliver(message) == "kept"
        type(app.tasks["shop.charge"]).payload_version = 2
        bench.drain_all()
        assert ran == [{"order_id": 7, "cents": 2}]


class TestKeys:
    """One call is one job, whichever release makes it."""

    def keys_of(self, *releases: dict[str, Any], kwargs: dict[str, Any]) -> list[str]:
        """Return the task ids that the same call gets in releases that share a store."""
        found = []
        with in_memory(make_app()) as first:
            for release in releases:
                with in_memory(make_app(), around=lambda _: first.store) as bench:
                    found.append(release["make"](bench.app, **release["options"]).delay(**kwargs).id)
        return found

    def test_new_optional_argument_makes_no_other_job(self) -> None:
        """By its arguments, by its fingerprint, and as a child."""

        def before(app: Celery, **options: Any) -> Any:
            def t(x: int) -> None:
                pass

            return app.task(base=ReliableTask, name="t", shared=False, **options)(t)

        def after(app: Celery, **options: Any) -> Any:
            def t(x: int, y: int = 0, *a: Any, z: Any = (), **k: Any) -> None:
                pass

            return app.task(base=ReliableTask, name="t", shared=False, **options)(t)

        for rule in ("arguments", "t:{x}"):
            releases = [{"make": make, "options": {"idempotency_key": rule}} for make in (before, after)]
            one, other = self.keys_of(*releases, kwargs={"x": 1})
            assert one == other
        with scope("request-1"):
            child = self.keys_of({"make": before, "options": {}}, kwargs={"x": 1})
        with scope("request-1"):
            assert self.keys_of({"make": after, "options": {}}, kwargs={"x": 1}) == child

    @pytest.mark.parametrize("rule", ["arguments", "charge:{order_id}"])
    def test_renamed_task_goes_on_with_its_keys(self, rule: str) -> None:
        """The first name is in key and fingerprint."""
        options = {"idempotency_key": rule}
        releases = [
            {"make": charge_in, "options": {"name": "shop.first", **options}},
            {"make": charge_in, "options": {"name": "shop.second", "aliases": ("shop.first",), **options}},
            {"make": charge_in, "options": {"name": "shop.third", "aliases": ("shop.first", "shop.second"), **options}},
        ]
        assert len(set(self.keys_of(*releases, kwargs={"order_id": 1, "cents": 2}))) == 1

    def test_other_shape_is_no_mismatch(self, app: Celery, bench: Bench) -> None:
        """Arguments of two versions cannot be compared; those that both have can be named."""
        sent_by_old(bench, 7, 3)
        task = charge_in(app, idempotency_key="charge:{order_id}", payload_version=2, upgrades={1: to_cents})
        task.delay(7, 300)
        strict = charge_in(
            app, name="strict", idempotency_key="x:{order_id}", payload_version=2, fingerprint_args=("cents",)
        )
        strict.delay(8, 1)
        with pytest.raises(PayloadMismatch):
            strict.delay(8, 2)

    def test_replaced_job_does_not_hand_on_its_version(self, app: Celery, bench: Bench) -> None:
        """``self.replace`` gives the successor the headers of the message."""
        plain = app.task(base=ReliableTask, name="plain", shared=False)(nothing)

        def run(task: ReliableTask, **_: Any) -> Any:
            raise task.replace(plain.si())

        charge_in(app, run=run, payload_version=2).delay(1, 2)
        bench.drain_all()
        assert [VERSION_HEADER in message.options["headers"] for message in bench.submitted] == [True, False]


def test_alias_runs_the_task_under_its_new_name(app: Celery, bench: Bench) -> None:
    """Also a retry of it; ``celery inspect registered`` and beat entries know both."""
    names: list[str] = []

    def run(task: ReliableTask, **_: Any) -> None:
        names.append(task.name)
        if task.attempt == 1:
            raise Transient("away")

    charge_in(app, run=run, aliases=("shop.first",))
    bench.send("shop.first", (1, 2), {}, task_id="one")
    bench.drain_all()
    assert names == ["shop.charge"] * 2
    assert [message.task for message in bench.submitted] == ["shop.first", "shop.charge"]
    assert {"shop.first", "shop.charge"} <= app.tasks.keys()


def test_calls_that_do_not_fit_are_refused_by_the_producer(app: Celery) -> None:
    """As Celery does, eagerly too; ``typing=False`` leaves it to the worker."""
    task = charge_in(app)
    for eager in (False, True):
        app.conf.task_always_eager = eager
        with pytest.raises(TypeError):
            task.delay(1)
    app.conf.task_always_eager = False
    free = charge_in(app, name="free", typing=False)
    with in_memory(app) as bench:
        free.delay(1)
        assert len(bench.submitted) == 1
