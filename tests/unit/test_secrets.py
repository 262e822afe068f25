"""Passwords stay secret: in every place where an address, a setting or an error is shown, whatever characters they have."""

from __future__ import annotations

import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner

from celery_reliable import install, internals
from celery_reliable.checks import configuration_findings
from celery_reliable.checks.live import live_findings
from celery_reliable.cli import reliable
from celery_reliable.runtime import consumed_place, forget_runtime, runtime_of
from celery_reliable.settings import Settings, mask_secrets, refuse_unclear
from celery_reliable.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST, SECOND = "GEHEIM", "VERBORGEN"
PLACE = "127.0.0.1:1"  # where nobody listens
ODD = ("", "@", ":", "/", "%", "?", "#", "'", '"', " ", "%40", "://", "&", "=", ";", "@:/")
TAILS = {
    "redis": "/0",
    "rediss": "/0",
    "sentinel": "/mymaster",
    "redis+cluster": "/0",
    "postgresql": "/shop",
    "postgresql+psycopg": "/shop",
    "amqp": "//",
    "sqla+postgresql": "/shop",
    "mystore": "/0",
}


def urls() -> Iterator[str]:
    """Addresses as projects write them, and as they should not."""
    for scheme, tail in TAILS.items():
        for odd in ODD:
            yield f"{scheme}://:{FIRST}{odd}{SECOND}@{PLACE}{tail}"
            yield f"{scheme}://shop:{FIRST}{odd}{SECOND}@{PLACE}{tail}"
        yield f"{scheme}://{FIRST}{SECOND}:@{PLACE}{tail}"
        yield f"{scheme}://shop:{FIRST}@{PLACE}{tail};{scheme}://:{SECOND}@{PLACE}{tail}"
        yield f"{scheme}://{PLACE}{tail}?password={FIRST}&db=0&sentinel_password={SECOND}"
        yield f"{scheme}://shop:{FIRST}@{PLACE},{PLACE}{tail}?ssl_password={SECOND}"


ALL = list(urls())


def told(call: Callable[[], object]) -> str:
    """Return what a call answers, or its error with all that led to it."""
    try:
        return f"{call()!r}"
    except Exception as exc:  # noqa: BLE001  # whatever it is, somebody may see it
        return "".join(traceback.format_exception(exc))


def make_app(url: str, *, broker: bool) -> Celery:
    """An app with this address."""
    app = Celery("shop", broker=url if broker else "memory://", set_as_current=False)
    app.conf.reliable_store_url = "memory://" if broker else url
    install(app)
    return app


def first_verb(url: str) -> object:
    """Ask a store that is not there for the time."""
    store = open_store(url, timeout=1.0)
    return repr(store) if not url.startswith(("redis", "postgresql")) else store.now()


def opened(url: str, *, broker: bool) -> object:
    """Make a runtime, and say what shows it."""
    app = make_app(url, broker=broker)
    runtime = runtime_of(app)
    return runtime, runtime.settings, runtime.store, [one.message for one in configuration_findings(app)]


def sign_of_life(url: str) -> object:
    """Say of which broker a worker is, once it was let begin."""
    app = make_app(url, broker=True)
    _ = runtime_of(app)
    return consumed_place(app)


def reported(url: str) -> object:
    """What Celery itself tells of the settings that are ours: ``celery report`` and ``celery inspect conf``."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    install(app)
    app.conf.update(reliable_store_url=url, reliable_blob_url=url)
    return app.bugreport(), app.conf.table()


SHOWN: dict[str, Callable[[str], object]] = {
    "a wrong setting": lambda url: Settings.from_conf({"reliable_store_url": f"x{url}"}),
    "a setting of the wrong type": lambda url: Settings.from_conf({"reliable_store_url": [url, url]}),
    "a setting without its scheme": lambda url: Settings.from_conf({"reliable_blob_url": [url.partition("://")[2]]}),
    "settings": lambda url: Settings.from_conf({"reliable_store_url": url}),
    "an unclear address": lambda url: refuse_unclear(url, setting="broker_url"),
    "a store": open_store,
    "a store of an unknown kind": lambda url: open_store(f"x{url}"),
    "a store that is away": first_verb,
    "a runtime, by its store": lambda url: opened(url, broker=False),
    "a runtime, by its broker": lambda url: opened(url, broker=True),
    "a sign of life": sign_of_life,
    "Celery's reports": reported,
    "a masked text": lambda url: mask_secrets(f"cannot connect to {url!r}, nor to {url}"),
}


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN.keys())
def test_no_password_is_shown(show: Callable[[str], object], caplog: pytest.LogCaptureFixture) -> None:
    """Neither in what is returned, nor in an error and what led to it, nor in the log."""
    shown = {url: told(partial(show, url)) for url in ALL}
    leaks = {url: text for url, text in shown.items() if FIRST in text or SECOND in text}

    assert leaks == {}
    assert not any(word in str(vars(record)) for record in caplog.records for word in (FIRST, SECOND))


COMMANDS = (
    ("check",),
    ("check", "--live"),
    ("dlq", "list"),
    ("status",),
    ("schema",),
    ("explain", "x"),
    ("relay", "--once"),
)
SOME = [
    f"redis://:{FIRST}@{PLACE}/0",
    f"redis://:{FIRST}/{SECOND}@{PLACE}/0",
    f"postgresql://shop:{FIRST}{SECOND}@{PLACE}/shop",
    f"postgresql://shop:{FIRST}@{SECOND}@{PLACE}/shop",
]


@pytest.mark.parametrize("url", SOME)
def test_no_command_shows_a_password(url: str) -> None:
    """Of a store that is away, or whose address nobody can read."""
    app = make_app(url, broker=False)
    call: dict[str, Any] = {"obj": internals.command_context(app)}
    outputs = [CliRunner().invoke(reliable, list(words), **call) for words in COMMANDS]
    findings = told(lambda: [one.message for one in live_findings(app)])
    texts = [one.output + _chain(one.exception) for one in outputs]
    forget_runtime(app)

    assert not [text for text in (*texts, findings) if FIRST in text or SECOND in text]


def _chain(exc: BaseException | None) -> str:
    return "".join(traceback.format_exception(exc)) if exc is not None else ""


CLEAR = (
    "redis://h",
    "redis://:p@h:1/0",
    "redis://:p%40%2F@h/0?x=a@b",
    "redis://[::1]:6379/0",
    "redis://u:a@b:c@h:1/0",
    "sentinel://:p@a:1,b:2/m/0",
    "sentinel://:p@a:1;sentinel://:p@b:2",
    "postgresql://u:p@/shop?host=a:1&host=b:2",
    "amqp://u:p@h:5672/v@host",
    "amqp://u:p@h;amqp://u:p@i//",
    "sqlite:////tmp/a@b:c.db",
    "sqs://KEY:se/cr@et@",
    "unix:///tmp/a@b.sock",
    "memory://",
)


@pytest.mark.parametrize("url", CLEAR)
def test_what_can_be_read_is_not_refused(url: str) -> None:
    """Only an address in which it is not clear where the password ends."""
    refuse_unclear(url, setting="reliable_store_url")


# --- commands that cannot be undone

DESTROYS = {"purge": ("purge",), "dlq discard": ("dlq", "discard", "--all")}
HARMLESS = {
    # They change something, and can be undone by another command, or by nature do no harm twice.
    "beat run",
    "breaker close",
    "breaker open",
    "dlq cancel",
    "dlq pause",
    "dlq replay",
    "dlq resume",
    "dlq silence",
    "dlq unsilence",
    "kill-switch start",
    "kill-switch stop",
    "relay",
    "schema",
    # They change nothing.
    "beat",
    "beat why",
    "breaker list",
    "check",
    "compat check",
    "compat snapshot",
    "dlq groups",
    "dlq list",
    "dlq runs",
    "dlq show",
    "dlq stats",
    "kill-switch list",
    "explain",
    "exporter",
    "status",
}


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Walk over all commands below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group):
            yield " ".join((*names, name)), command
            continue
        if command.invoke_without_command:
            yield " ".join((*names, name)), command
        yield from commands(command, *names, name)


def test_every_command_is_known_to_destroy_or_not() -> None:
    """A new one is put into one of the two lists; what destroys has ``--yes``."""
    known = dict(commands(reliable))

    assert set(known) == set(DESTROYS) | HARMLESS
    assert {name for name, one in known.items() if any("--yes" in given.opts for given in one.params)} == set(DESTROYS)


@pytest.mark.parametrize("words", DESTROYS.values(), ids=DESTROYS.keys())
def test_what_destroys_asks_or_needs_a_word(words: tuple[str, ...]) -> None:
    """Where nobody is there to answer, nothing is dropped."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.reliable_store_url = "memory://"
    install(app)
    store = runtime_of(app).store
    store.keep_letter("a" * 16, letter=b"{}", label="", letter_ttl=60.0, letter_max=9)
    context = internals.command_context(app)
    without = CliRunner().invoke(reliable, list(words), obj=context)

    assert (without.exit_code, "--yes" in without.output) == (2, True), without.output
    assert store.letter("a" * 16) is not None
    assert CliRunner().invoke(reliable, [*words, "--yes"], obj=context).exit_code == 0
    forget_runtime(app)


# --- defaults


def test_what_is_not_said_is_safe() -> None:
    """JSON alone is accepted and sent; servers of ours listen to this host alone."""
    app = Celery("shop", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    settings = Settings.from_conf(app.conf)

    assert (list(app.conf.accept_content), app.conf.task_serializer, app.conf.result_serializer) == (
        ["json"],
        "json",
        "json",
    )
    assert (settings.healthz_host, settings.metrics_host) == ("127.0.0.1", "127.0.0.1")
    assert (settings.healthz_port, settings.metrics_port) == (0, 0)
