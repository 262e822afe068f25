"""Arguments of dead letters that people must not see: hidden wherever a letter is shown, and kept as they are."""

from __future__ import annotations

import base64
import json
import logging
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, current_app
from click.testing import CliRunner

from celery_reliable import ConfigurationError, install, internals
from celery_reliable.app_letters import known_letters_of
from celery_reliable.cli import reliable
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.dead_letters.redaction import seen
from celery_reliable.payloads import Envelope, RawMessage
from celery_reliable.runtime import forget_runtime, runtime_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "4111-1111"
NEXT = {"task": "shop.ship", "args": [SECRET], "kwargs": {"card": SECRET, "to": "x"}, "options": {"queue": "q"}}
BODY = json.dumps([[12], {"card": SECRET, "currency": "EUR"}, {"chain": [NEXT], "chord": None}])
OPTIONS: dict[str, Any] = {
    "queue": "payments",
    "link": [NEXT],
    "headers": {"argsrepr": f"('{SECRET}',)", "tenant": "t"},
}
ENVELOPE = Envelope("shop.charge", "t1", BODY, options=OPTIONS)


def hide(task: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A project's function: it may change what it gets."""
    if task == "shop.ship":
        args[:] = ["***"]
    kwargs.update({name: "***" for name in kwargs if name == "card"})
    return args, kwargs


def fails(task: str, args: Any, kwargs: Any) -> Any:
    """One that does not know what to do; its error holds what it was to hide."""
    raise ValueError(kwargs)


def letter_of(envelope: Envelope | None = ENVELOPE, **changes: Any) -> DeadLetter:
    """A letter of a call."""
    given: dict[str, Any] = {"reason": "permanent", "now": 1.0, "letter_id": "a" * 16, **changes}
    return DeadLetter.of(ValueError("declined"), envelope=envelope, **given)


def test_without_a_function_a_letter_is_shown_as_it_is() -> None:
    """Nothing is copied."""
    letter = letter_of()

    assert seen(letter, None) is letter


def test_arguments_are_hidden_and_the_rest_stays() -> None:
    """Those of the call, of all that is chained to it, of an earlier edit, and what Celery wrote down of them."""
    letter = replace(letter_of(), original=ENVELOPE)
    shown = seen(letter, hide)

    assert shown.arguments() == ([12], {"card": "***", "currency": "EUR"})
    assert SECRET not in shown.to_bytes().decode()
    assert shown.envelope is not None
    assert shown.envelope.options["link"][0]["kwargs"] == {"card": "***", "to": "x"}
    assert shown.envelope.options["headers"]["tenant"] == "t"
    assert (shown.id, shown.task, shown.queue, shown.error_message) == ("a" * 16, "shop.charge", "payments", "declined")


def test_the_letter_itself_is_not_touched() -> None:
    """A replay sends the call exactly."""
    letter = letter_of()
    before = letter.to_bytes()
    seen(letter, hide)

    assert letter.to_bytes() == before


WRONG: dict[str, Any] = {
    "raises": fails,
    "gives nothing": lambda _task, _args, _kwargs: None,
    "gives too much": lambda _task, args, kwargs: (args, kwargs, 1),
    "gives what is no list": lambda _task, _args, _kwargs: (1, {}),
}


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG.keys())
def test_a_function_that_fails_shows_nothing(
    function: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than all; nor does the log tell what it was to hide."""
    caplog.set_level(logging.WARNING, logger="celery_reliable")
    for name, value in {"disabled": False, "propagate": True}.items():  # whatever a test before has configured
        monkeypatch.setattr(logging.getLogger("celery_reliable"), name, value)
    shown = seen(letter_of(), function)

    assert shown.call() == '("(hidden)")'
    assert SECRET not in shown.to_bytes().decode()
    assert "reliable_redact failed" in caplog.text
    assert SECRET not in caplog.text + "".join(str(vars(record)) for record in caplog.records)


def test_a_body_of_which_nobody_knows_where_its_arguments_are_is_hidden_whole() -> None:
    """Binary calls and messages that could not be read; their size stays."""
    binary = base64.b64encode(pickle.dumps(SECRET)).decode()
    call = Envelope("shop.charge", "t1", binary, "application/x-python-serialize", "binary")
    body = base64.b64encode(SECRET.encode()).decode()
    raw = RawMessage(queue="q", body=body, content_type="text/plain", headers={"argsrepr": SECRET, "id": "t1"})
    shown, unread = seen(letter_of(call), hide), seen(letter_of(None, raw=raw), hide)

    assert shown.call() == letter_of(call).call()
    assert binary[:12] not in shown.to_bytes().decode()
    assert unread.call() == letter_of(None, raw=raw).call()
    assert body not in unread.to_bytes().decode()
    assert SECRET not in unread.to_bytes().decode()


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app that hides cards, with a letter."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(reliable_store_url="memory://", reliable_redact=f"{__name__}:hide")
    install(app)
    app.task(name="shop.charge", shared=False)(charge)
    letter = letter_of()
    runtime_of(app).store.keep_letter(
        letter.id, letter=letter.to_bytes(), label=letter.label, letter_ttl=60.0, letter_max=9
    )
    yield app
    forget_runtime(app)


def charge(order: int, card: str, currency: str) -> None:
    """Charge."""


SCREENS = (
    ("dlq", "list"),
    ("dlq", "list", "--json"),
    ("dlq", "show", "a" * 16),
    ("dlq", "show", "a" * 16, "--json"),
    ("dlq", "stats"),
    ("dlq", "stats", "--json"),
    ("dlq", "groups"),
    ("dlq", "groups", "--json"),
    ("dlq", "replay", "a" * 16, "--dry-run"),
    ("dlq", "replay", "a" * 16, "--dry-run", "--json"),
    ("dlq", "discard", "a" * 16, "--dry-run", "--json"),
    ("explain", "t1"),
    ("explain", "t1", "--json"),
)


@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_no_screen_shows_what_is_hidden(app: Celery, words: tuple[str, ...]) -> None:
    """On every one that has to do with letters."""
    shown = CliRunner().invoke(reliable, list(words), obj=internals.command_context(app), catch_exceptions=False)

    assert shown.exit_code == 0, shown.output
    assert SECRET not in shown.output
    if "show" in words:
        assert "***" in shown.output


def test_the_page_of_a_life_shows_no_arguments(app: Celery, tmp_path: Any) -> None:
    """``explain --html``."""
    page = tmp_path / "life.html"
    words = ["explain", "t1", "--html", str(page)]
    shown = CliRunner().invoke(reliable, words, obj=internals.command_context(app), catch_exceptions=False)

    assert shown.exit_code == 0, shown.output
    assert SECRET not in page.read_text("utf-8") + shown.output


def test_a_replay_sends_what_was_hidden(app: Celery) -> None:
    """The command's own letter is the true one."""
    known_letters_of(app).replay("a" * 16, who="ann")
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("payments", no_ack=True)

    assert json.loads(message.body)[:2] == [[12], {"card": SECRET, "currency": "EUR"}]


def test_a_path_that_leads_nowhere_is_refused(app: Celery) -> None:
    """Otherwise everything would be shown."""
    forget_runtime(app)
    app.conf.reliable_redact = "shop.nowhere:hide"
    with pytest.raises(ConfigurationError, match="reliable_redact: expected the path of a function"):
        _ = runtime_of(app).redact


def test_sentry_gets_what_may_be_seen(app: Celery) -> None:
    """Its own integration adds the arguments where it may send personal data."""
    from celery_reliable.contrib.sentry import failures  # noqa: PLC0415  # an extra

    event = {"extra": {"celery-job": {"task_name": "shop.charge", "args": [12], "kwargs": {"card": SECRET}}}}
    before = current_app._get_current_object()
    app.set_current()
    try:
        failures._hide_arguments(event)
    finally:
        before.set_current()

    assert event["extra"]["celery-job"]["kwargs"] == {"card": "***"}
