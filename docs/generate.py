"""Write the reference pages from the code, and the dark picture from the light one: ``python docs/generate.py``.

With ``--check`` nothing is written; the exit code is 1 when a page is not what the code says.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

import celery_reliable
from celery_reliable import errors, task
from celery_reliable.checkpoints import Checkpoint
from celery_reliable.checks.catalogue import MEANINGS
from celery_reliable.checks.of_stores import store_finding
from celery_reliable.cli import reliable
from celery_reliable.contrib.metrics import BUCKETS, METRICS
from celery_reliable.contrib.metrics import PREFIX as METRIC_PREFIX
from celery_reliable.events import EVENTS
from celery_reliable.retries import answers, codes, table
from celery_reliable.settings import PER_TASK, TASK_ONLY, Setting, describe
from celery_reliable.task import ReliableTask

DOCS: Final = Path(__file__).resolve().parent
NOTE: Final = "<!-- Written by docs/generate.py from the code. Change the code, then run `make docs`. -->"
LEVELS: Final = {10: "debug", 20: "info", 30: "warning", 40: "error"}
HOOK_EXAMPLE: Final = """
```python
from collections import Counter

counters = Counter()


def count(name, fields):
    counters[name, fields.get("task")] += 1


app.conf.reliable_event_hooks = [count]  # or a dotted path, "shop.metrics:count"
```
"""
LOOKS: Final[Mapping[str, str]] = {
    "configuration": "`reliable check`; `manage.py check` in a Django project; a worker at its start",
    "live": "`reliable check --live`",
    "of_stores": "`reliable check --live`; `manage.py check --deploy` in a Django project; a worker soon after its start",
    "rows_unread": "`reliable check --live`; `manage.py check --deploy` in a Django project",
    "check": "`reliable check --manifest FILE`",
    "grace": "`reliable check --manifest FILE` or `--grace SECONDS`",
}
"""By the code of a finding, or the module that makes it."""

GUIDES: Final[Mapping[str, str]] = {
    "not_wired": "adopt",
    "settings_wrong": "production",
    "early_ack": "adopt",
    "lost_child_acked": "adopt timeouts",
    "pickle_accepted": "security",
    "retries_unbounded": "classify-errors",
    "visibility_short": "redis timeouts",
    "prefetch_hoards": "workload-classes",
    "quorum_drops": "rabbitmq",
    "publish_unconfirmed": "rabbitmq",
    "fairness_without_lanes": "fairness",
    "broker_open": "security",
    "monitors_doubled": "sentry",
    "signing_key_short": "security",
    "signing_not_enforced": "security",
    "no_app": "django",
    "no_key_talks_outside": "idempotency-key idempotent-handler",
    "time_limit_off": "timeouts",
    "no_time_limit": "timeouts",
    "soft_limit_late": "timeouts",
    "retries_anything": "classify-errors",
    "retries_in_step": "classify-errors",
    "route_unmet": "workload-classes",
    "queue_undeclared": "workload-classes rabbitmq",
    "entry_without_task": "unknown-messages",
    "crontab_in_local_night": "more-than-one-beat",
    "rows_unread": "django",
    "grace_too_short": "kubernetes docker-compose systemd supervisor",
    "stop_signal_wrong": "kubernetes docker-compose systemd supervisor",
    "stop_signal_lost": "kubernetes docker-compose systemd supervisor",
    "letters_kept_too_long": "dead-letters",
    "letters_too_many": "dead-letters",
    "parked_too_long": "unknown-messages",
    "keys_kept_too_long": "idempotency-key",
    "sqs_message_limit": "sqs large-arguments",
    "claim_check_above_broker_limit": "large-arguments",
    "store_down": "redis database",
    "broker_down": "redis rabbitmq",
    "store_evicts": "redis",
    "store_volatile": "redis database",
    "store_old": "redis",
    "store_finding": "redis database",
    "overlap_lock_pooled": "overlap",
    "store_is_cache": "redis",
    "store_no_tables": "database",
    "store_nearly_full": "redis full-queues",
    "store_many_keys": "redis",
    "consumer_timeout_short": "rabbitmq timeouts",
    "no_probe": "heartbeat",
    "worker_stuck": "heartbeat",
    "queue_unconsumed": "status",
    "slow_beside_fast": "workload-classes",
    "no_leader": "more-than-one-beat",
}
"""Guides that say more about a finding."""

INSIDE: Final = (
    *("idempotency_key", "attempt", "fence", "slot", "draining", "stop_if_draining", "checkpoint"),
    *("once", "once_key", "snooze", "retry"),
)
CHECKPOINT: Final = ("load", "save", "iterate")
OVERRIDE: Final = ("classify",)
DARK: Final[Mapping[str, str]] = {
    "#1e293b": "#e6edf3",
    "#64748b": "#98a6b8",
    "#fbfcfe": "#12171f",
    "#e2e8f0": "#283241",
    "#ffffff": "#1b222d",
    "#cbd5e1": "#3d4a5c",
    "#2563eb": "#6ea8fe",
    "#059669": "#3ecf94",
    "#b45309": "#f0b04f",
    "#0e7490": "#4cc3dc",
    "#7c3aed": "#b294f7",
    "#dc2626": "#f58080",
    "#475569": "#b6c2d1",
}


def main(arguments: Sequence[str]) -> int:
    """Write every page that differs, or with ``--check`` name them. Returns the exit code."""
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    if "--check" in arguments:
        sys.stdout.writelines(f"{path.relative_to(DOCS)} is not what the code says\n" for path in stale)
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


def pages() -> dict[Path, str]:
    """Return the text of every generated file."""
    reference = {
        "settings": settings_page(),
        "task": task_page(),
        "events": events_page(),
        "metrics": metrics_page(),
        "findings": findings_page(),
        "exceptions": exceptions_page(),
        "retry-rules": retry_rules_page(),
        "cli": cli_page(),
        "api": api_page(),
    }
    reference |= {f"findings/{name}": finding_page(name) for name in MEANINGS}
    written = {DOCS / "reference" / f"{name}.md": text for name, text in reference.items()}
    static = DOCS / "_static"
    pictures = ("life", "outage", "fairness", "costs")
    return {**written, **{static / f"{name}-dark.svg": dark(static / f"{name}-light.svg") for name in pictures}}


def dark(light: Path) -> str:
    """Return a picture in the dark palette. A colour that the palette does not know is a KeyError."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: DARK[colour[0]], light.read_text("utf-8"))


# --- settings


def settings_page() -> str:
    """Return the page of all settings."""
    return page(
        "Settings",
        """
        Each is a name in the Celery configuration: `app.conf.reliable_lease_ttl = 20`, a line in the configuration module,
        or `CELERY_RELIABLE_LEASE_TTL` in a Django namespace. What a project sets wins over the preset. Durations are in
        seconds; fractions are allowed. A wrong value, a wrong combination and an unknown `reliable_*` name stop the worker
        at its start, and the first submission in a producer, with one line per problem.

        *Task option* marks what a task may set for itself: `@app.task(base=ReliableTask, lease_ttl=60)`.
        """,
        grid(("setting", "default", "meaning"), map(_setting_row, describe())),
        """
        `memory://` is a store inside one process, for tests. [Keep the store in a database](../how-to/database.md) has the
        schemes of databases.
        """,
        "## What the preset sets of Celery's own",
        "`celery_reliable.presets` also makes Celery keep a message until its outcome is written:",
        '```{literalinclude} ../../celery_reliable/presets.py\n:start-after: "# --- Celery:"\n:end-before: "# --- celery_reliable:"\n```',
        """
        On Redis a worker also merges `unacked_restore_interval`, `unacked_restore_throttle` and `unacked_mutex_expire` into
        `broker_transport_options`, so that unacknowledged messages are looked at every 5 seconds. Your own keys win.
        """,
    )


def _setting_row(setting: Setting) -> tuple[str, str, str]:
    default = f"`{_number(setting.default)!r}`{_readable(setting)}"
    expected = setting.expected[:1].upper() + setting.expected[1:]
    option = " *Task option.*" if setting.per_task else ""
    return f"`{setting.name}`", default, f"{setting.meaning} {code(expected)}.{option}"


def _number(default: Any) -> Any:  # Any: the default of any setting
    return int(default) if isinstance(default, float) and default.is_integer() and default > 1 else default


def _readable(setting: Setting) -> str:
    if setting.unit == "seconds" and setting.default:
        return f" s{_long(setting.default)}"
    return f" {setting.unit}" if setting.unit and setting.default else ""


def _long(seconds: float) -> str:
    days = seconds / 86_400
    return f" ({days:g} {'day' if days == 1 else 'days'})" if days >= 1 else ""


# --- the task


def task_page() -> str:
    """Return the page about what a task may set, ask and do."""
    settings = {one.name.removeprefix("reliable_"): one for one in describe()}
    attributes = attribute_docs(ast.parse(inspect.getsource(task)), "ReliableTask")
    own = [(f"`{name}`", "", first_paragraph(attributes[name])) for name in TASK_ONLY if name in attributes]
    options = [settings[name] for name in PER_TASK]
    return page(
        "ReliableTask",
        markdown(after_first_line(ReliableTask)),
        "## Options",
        "Each is a decorator option and a class attribute. An option that is not given is as the setting of its name says.",
        grid(("option", "setting", "meaning"), [*own, *map(_option_row, options)]),
        "## Inside a run",
        "Of a task that is bound (`bind=True`):",
        grid(("`self.` ...", "meaning"), map(_member_row, INSIDE)),
        "Of `self.checkpoint`:",
        grid(("`self.checkpoint.` ...", "meaning"), [_row_of(Checkpoint, name) for name in CHECKPOINT]),
        "## To override",
        grid(("method", "meaning"), map(_member_row, OVERRIDE)),
        "## Submitting",
        "`delay`, `apply_async` and every canvas work as in Celery. `apply_async` takes two options more:",
        '```python\ncharge.apply_async((order_id,), idempotency_key=f"charge:{order_id}", importance="best_effort")\n```',
        markdown(inspect.getdoc(ReliableTask.apply_async) or ""),
    )


def _option_row(setting: Setting) -> tuple[str, str, str]:
    return f"`{setting.name.removeprefix('reliable_')}`", f"`{setting.name}`", setting.meaning


def _member_row(name: str) -> tuple[str, str]:
    if name == "idempotency_key":
        return f"`{name}`", "The key of this job. Give it to APIs that take one."
    return _row_of(ReliableTask, name)


def _row_of(owner: type, name: str) -> tuple[str, str]:
    member = inspect.getattr_static(owner, name)
    call = f"({_parameters(member)})" if inspect.isfunction(member) else ""
    return f"`{name}{call}`", " ".join(markdown(inspect.getdoc(member) or "").split())


def _parameters(function: Any) -> str:  # Any: inspect's own
    given = list(inspect.signature(function).parameters.values())[1:]
    return ", ".join(str(one.replace(annotation=inspect.Parameter.empty)) for one in given)


def attribute_docs(module: ast.Module, class_name: str) -> dict[str, str]:
    """Return the texts that stand below the attributes of a class, and "" for attributes without one."""
    found = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    below = [*found.body[1:], None]
    pairs = zip(found.body, below, strict=True)
    return {
        one.target.id: _text(after)
        for one, after in pairs
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


# --- events


def events_page() -> str:
    """Return the page of all events."""
    rows = [
        (f"`{name}`", LEVELS[event.level], event.message, ", ".join(f"`{field}`" for field in event.fields))
        for name, event in EVENTS.items()
    ]
    return page(
        "Events",
        """
        What celery_reliable does that you did not ask for in so many words is an event: one log line and one call of every
        hook. The names, and the fields of each, are part of the public interface.

        The logger is `celery_reliable`. The message is constant, the facts are in the record's attributes:
        `reliable_event` is the name, and every field is `reliable_` and its name, such as `reliable_task_id`. Arguments,
        results and passwords are in no event; a key is, with the arguments that you put into it.

        A hook is `hook(name, fields)`, called in the process and thread that emits, which is a pool child for most of them.
        What it raises is logged, and changes nothing else. A hook that is a class is made once, with the app:
        """,
        HOOK_EXAMPLE,
        grid(("event", "level", "message", "fields"), rows),
    )


# --- metrics


def metrics_page() -> str:
    """Return the page of all metrics."""
    parts = {
        "Of a worker or beat": (
            "process",
            "`reliable_metrics_port` serves them. A worker's include those of all its pool children.",
        ),
        "Of the fleet": (
            "fleet",
            "`celery -A proj reliable exporter` serves them, from store and broker; with `--otlp` it sends them.",
        ),
    }
    tables = [
        f"## {title}\n\n{where}\n\n{grid(('metric', 'kind', 'labels', 'meaning'), _metric_rows(source))}"
        for title, (source, where) in parts.items()
    ]
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS)
    return page(
        "Metrics",
        """
        Names and labels are part of the public interface. Every label is of a closed set: tasks and queues of the app, names of
        events, outcomes, reasons, states; what is in none of them is `other`. A counter is scraped with `_total` at the end of
        its name. How to set it up, with a dashboard and alerts: [](../how-to/prometheus.md). They go to
        OpenTelemetry as well: [](../how-to/opentelemetry.md).
        """,
        *tables,
        f"Both histograms have the bounds {bounds} seconds.",
    )


def _metric_rows(source: str) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{METRIC_PREFIX}{name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for name, metric in METRICS.items()
        if metric.source == source
    ]


# --- findings


def findings_page() -> str:
    """Return the page of all findings, which links to the page of each."""
    rows = [(f"[`{name}`](findings/{name}.md)", meaning) for name, meaning in MEANINGS.items()]
    return page(
        "Findings",
        """
        What `celery -A proj reliable check` may say. A code is stable, so that a rule of yours can name it; each has a page. The
        message says what is wrong here, what will come of it, and what to do. With `--live` the command looks at store, broker,
        workers and beats, too. Errors, but no warnings unless `--strict` is given, make the exit code 1. A worker says errors
        and warnings in short when it starts (event `finding`); `manage.py check` has those of the configuration.
        """,
        grid(("code", "what it means"), rows),
        "```{toctree}\n:hidden:\n:glob:\n\nfindings/*\n```",
    )


def finding_page(name: str) -> str:
    """Return the page of one finding: what it means, what the checks say, where they look, and what to read."""
    told = [one for one in told_findings() if one.code == name]
    said = dict.fromkeys(one.words for one in told)
    looks = dict.fromkeys((one.severity, one.look) for one in told)
    return page(
        f"`{name}`",
        MEANINGS[name],
        grid(("severity", "found by"), looks),
        "## What it says",
        *(f"> {words}" for words in said),
        "*…* is what was found.",
        *(
            ["## More", "\n".join(f"- [](../../how-to/{guide}.md)" for guide in GUIDES[name].split())]
            if name in GUIDES
            else []
        ),
    )


class Told(NamedTuple):
    """A place in the code that makes a finding."""

    code: str
    severity: str
    words: str
    look: str


@cache
def told_findings() -> tuple[Told, ...]:
    """Read the source of the checks, and the sentences of the stores."""
    package = Path(celery_reliable.__file__).parent
    paths = [
        *sorted((package / "checks").glob("*.py")),
        *(package / name for name in ("cli/check.py", "django/checks.py")),
    ]
    sentences = [text for path in sorted((package / "stores").rglob("*.py")) for text in _sentences(_parsed(path))]
    return (
        *(
            told
            for path in paths
            for told in _told_in(_parsed(path), look=LOOKS.get(path.stem, LOOKS["configuration"]))
        ),
        *(Told(*_of_store(text), LOOKS["of_stores"]) for text in sentences if _of_store(text)[0] != "store_finding"),
        Told(*_of_store("…"), LOOKS["of_stores"]),
    )


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _of_store(text: str) -> tuple[str, str, str]:
    finding = store_finding(text)
    return finding.code, finding.severity, finding.message


def _told_in(module: ast.Module, *, look: str) -> Iterator[Told]:
    texts = {ast.unparse(one.targets[0]): one.value for one in ast.walk(module) if isinstance(one, ast.Assign)}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
            given = dict(zip(("code", "severity", "message"), node.args, strict=False))
            given |= {one.arg: one.value for one in node.keywords if one.arg}
            code, severity, message = (texts.get(ast.unparse(one), one) for one in given.values())
            if isinstance(code, ast.Constant) and isinstance(severity, ast.Constant):
                yield Told(str(code.value), str(severity.value), _words(message), LOOKS.get(str(code.value), look))


def _sentences(module: ast.Module) -> Iterator[str]:
    """Iterate over the texts of a module that are made to be shown."""
    for node in ast.walk(module):
        is_text = isinstance(node, ast.Constant) and re.search("appendonly is| are missing", str(node.value))
        if isinstance(node, ast.JoinedStr) or is_text:
            yield _words(node)


def _words(node: ast.expr) -> str:
    """Return a text of the source; what is put into it is an ellipsis."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in parts)
    return re.sub(r"\{\w+\}|……+", "…", text)


# --- exceptions


def exceptions_page() -> str:
    """Return the page of all exceptions."""
    tree = re.search(r"::\n\n(.*?)\n\nEvery", errors.__doc__ or "", re.DOTALL)
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, BaseException)]
    rows = [(f"`{one.__name__}`", _fields_of(one), markdown(inspect.getdoc(one) or "")) for one in classes]
    missing = [f"`{one.__name__}`" for one in classes if one.__name__ not in celery_reliable.__all__]
    return page(
        "Exceptions",
        f"All are in `celery_reliable.errors`; all but {' and '.join(missing)} also in `celery_reliable` itself.",
        f"```text\n{textwrap.dedent(tree[1] if tree else '').replace('``', '')}\n```",
        "Every one survives pickling with its fields, and result backends rebuild it.",
        grid(("exception", "fields", "meaning"), rows),
    )


def _fields_of(exception: type[BaseException]) -> str:
    given = list(inspect.signature(exception.__init__).parameters.values())[1:]
    return ", ".join(f"`{one.name}`" for one in given if one.kind in {one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD})


# --- retry rules


def retry_rules_page() -> str:
    """Return the page of the built-in rules."""
    transient = sorted(status for status in answers.TRANSIENT_STATUS if status < 500)  # noqa: PLR2004  # 5xx is a class
    states = [(verdict, _prefixes(verdict)) for verdict in ("retry", "fail")]
    rules = [(f"`{rule.name}`", _verdict(rule), _by_module(rule.classes), rule.why) for rule in table.RULES]
    return page(
        "Built-in retry rules",
        """
        What an exception means when the task says nothing about it. None of these libraries is imported: exceptions are known
        by the names of their classes, and the nearest class in the method resolution order decides. The rule's name is in
        the event `retried`. How to overrule them: [](../how-to/classify-errors.md).
        """,
        "## HTTP answers",
        f"""
        An exception that carries an HTTP answer (requests, httpx, aiohttp, urllib, botocore, Stripe and clients like them) is
        judged by its status: {", ".join(map(str, transient))} and every 5xx are tried again, any other 4xx fails. A
        `Retry-After` header, in seconds or as a date, is the least wait. AWS error codes that mean throttling are tried again
        whatever the status.
        """,
        "## SQLSTATE",
        "A database error that carries a SQLSTATE is judged by the longest of these prefixes:",
        grid(("verdict", "begins with"), states),
        "## Classes",
        grid(("rule", "verdict", "classes", "because"), rules),
        "What no rule knows is decided by `reliable_on_unknown_error`.",
    )


def _prefixes(verdict: str) -> str:
    return " ".join(f"`{prefix}`" for prefix, given in codes.SQLSTATES.items() if given == verdict)


def _verdict(rule: table.Rule) -> str:
    word = "by its content" if callable(rule.verdict) else rule.verdict
    return f"{word}, as `{rule.reason}`" if rule.reason else word


def _by_module(classes: Iterable[str]) -> str:
    modules: dict[str, list[str]] = {}
    for name in classes:
        module, _, short = name.rpartition(".")
        modules.setdefault(module, []).append(f"`{short}`")
    return "; ".join(f"{module}: {' '.join(names)}" for module, names in modules.items())


# --- the command line


def cli_page() -> str:
    """Return the page of all commands."""
    return page(
        "Command line",
        """
        `celery -A proj reliable ...` is there as soon as the package is installed. Exit codes: 0 done, 1 something was refused,
        not found or failed, 2 wrong usage.
        """,
        *(_command(command, path) for path, command in commands(reliable, ("reliable",))),
    )


def commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Iterate over the commands that do something, with the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


def _command(command: click.Command, path: tuple[str, ...]) -> str:
    arguments = [one.metavar or one.name or "" for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option)]
    words = " ".join(["celery -A proj", *path, *(["[OPTIONS]"] if options else []), *arguments])
    rows = [(_option_words(option), _option_help(option)) for option in options]
    help_ = inspect.cleandoc(command.help or "")
    return f"## `{' '.join(path)}`\n\n```text\n{words}\n```\n\n{help_}\n\n{grid(('option', 'meaning'), rows)}"


def _option_words(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or _value_words(option.type)}"
    return ", ".join(f"`{one}{value}`" for one in option.opts)


def _value_words(wanted: click.ParamType[Any]) -> str:
    if isinstance(wanted, click.Choice):
        return "/".join(wanted.choices)
    return "N" if isinstance(wanted, click.IntRange) else wanted.name.upper()


def _option_help(option: click.Option) -> str:
    default = f" Default: `{option.default}`." if option.show_default else ""
    return f"{option.help or ''}{default}"


# --- public names


def api_page() -> str:
    """Return the page of all public names."""
    exceptions = [one for one in celery_reliable.__all__ if one in vars(errors)]
    functions = ("install", "scope")
    others = [one for one in celery_reliable.__all__ if one not in (*exceptions, *functions, "ReliableTask")]
    return page(
        "Public names",
        """
        What is listed here is promised: it changes only with a line in the changelog. So are the names of settings, events and
        commands. `import celery_reliable` imports neither Celery nor Redis; names are loaded when they are first used.
        """,
        "| name | what it is |\n|---|---|\n" + "\n".join(_public_row(name) for name in celery_reliable.__all__),
        """
        Also public: the modules `celery_reliable.presets` (for `config_from_object`), `celery_reliable.errors`, and the protocol
        `celery_reliable.stores.base.Store`.
        """,
        "## Functions",
        *(directive(f"autofunction:: celery_reliable.{name}") for name in functions),
        "## Values",
        *(directive(f"autoclass:: celery_reliable.{name}", ":members:") for name in others),
        "## The store",
        directive("autoclass:: celery_reliable.stores.base.Store", ":members:", ":member-order: bysource"),
    )


def _public_row(name: str) -> str:
    made = getattr(celery_reliable, name)
    target = "exceptions.md" if name in vars(errors) else "task.md"
    shown = (
        f"[`{name}`]({target})"
        if name in vars(errors) or name == "ReliableTask"
        else f"{{py:obj}}`~celery_reliable.{name}`"
    )
    return f"| {shown} | {cell(first_line(made))} |"


# --- text


def page(title: str, *parts: str) -> str:
    """Return a page: title, note, parts."""
    blocks = [f"# {title}", NOTE, *(textwrap.dedent(part).strip() for part in parts)]
    return "\n\n".join(blocks) + "\n"


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [titles, ["---"] * len(titles), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Return a text that fits into a table."""
    return " ".join(text.replace("|", "\\|").split())


def directive(*lines: str) -> str:
    """Return a directive of Sphinx."""
    return "\n".join(["```{eval-rst}", f".. {lines[0]}", *(f"   {line}" for line in lines[1:]), "```"])


def code(text: str) -> str:
    """Set what is quoted, and schemes, as code."""
    return re.sub(r"'[^' ]+'|[a-z+]+://", lambda found: f"`{found[0]}`", text)


def markdown(docstring: str) -> str:
    """Turn our docstrings, which are nearly Markdown, into it."""
    without = re.sub(r"\n*\.\. versionadded:: .*", "", docstring)
    return without.replace("``", "`").strip()


def first_paragraph(text: str) -> str:
    """Return the first paragraph as one line."""
    return " ".join(markdown(text).partition("\n\n")[0].split())


def first_line(made: object) -> str:
    """Return the first line of a docstring."""
    return markdown((inspect.getdoc(made) or "").partition("\n")[0])


def after_first_line(made: object) -> str:
    """Return a docstring without its first line."""
    return (inspect.getdoc(made) or "").partition("\n")[2].strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
