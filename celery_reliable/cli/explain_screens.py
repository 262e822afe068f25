"""Show the life of a job to people: as a timeline on a terminal, and as a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from celery_reliable.cli.screens import age, printable

if TYPE_CHECKING:
    from rich.console import Console

    from celery_reliable.explaining import Life, Moment

_PLACE_FROM: Final = 110  # columns of the terminal
_GOOD: Final = frozenset({"submitted", "done", "recovered", "letter_replayed", "unparked"})
_BAD: Final = frozenset(
    {"buried", "poisoned", "mismatch", "refused", "lost", "lease_lost", "evidence", "overlap_lost", "withdraw_failed"}
)
_STYLES: Final = {"good": "green", "bad": "red", "odd": "yellow"}


def unknown(asked: str, *, share: float) -> str:
    """Say that nothing is known, and why that may be."""
    why = " Trails are switched off (reliable_explain_share is 0)." if not share else ""
    return (
        f"nothing is known of {printable(asked)!r}: no record, ledger entry, dead letter, trail or result. It ended longer "
        f"ago than anything is kept, waits in a broker without ledger, or never was.{why}"
    )


def kind_of(event: str) -> str:
    """Say whether an event is ``good``, ``bad`` or ``odd``."""
    return "good" if event in _GOOD else "bad" if event in _BAD else "odd"


# --- the terminal


def show(console: Console, life: Life, *, now: float, links: Mapping[str, str]) -> None:
    """Show the timeline. ``links`` has the addresses of letters' pages, by id, where they have one."""
    console.print(Text(printable(life.task or "task unknown"), style="bold"), Text(printable(life.key)))
    others = [task_id for task_id in life.task_ids if task_id != life.key]
    if others:
        console.print(f"task {printable(', '.join(others))}", soft_wrap=True)
    console.print(f"Now: {printable(life.now)}", soft_wrap=True)
    for address in links.values():
        console.print(f"Letter: {address}", soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, justify="right", style="dim")
    table.add_column(no_wrap=True, width=1)
    table.add_column(overflow="fold", ratio=1)
    for column in _more_columns(console):
        table.add_column(no_wrap=True, style="dim", overflow="ellipsis", header=column)
    for moment in life.moments:
        table.add_row(*_row(console, moment, first=life.moments[0]))
    console.print(table if life.moments else "Nothing out of the ordinary is noted.")
    if life.moments:
        began = life.moments[0].at
        console.print(f"\nTimes count from {_time(began)}, {age(now - began)} ago.", style="dim")


def _more_columns(console: Console) -> list[str]:
    return ["place"] if console.width >= _PLACE_FROM else []


def _row(console: Console, moment: Moment, *, first: Moment) -> list[str | Text]:
    words = f"{moment.words}{f' (the {_ordinal(moment.times)} time)' if moment.times > 1 else ''}"
    dot = Text("●", style=_STYLES[kind_of(moment.event)])
    row: list[str | Text] = [since(moment, first=first), dot, Text(printable(words))]
    return [*row, printable(moment.place)] if _more_columns(console) else row


def since(moment: Moment, *, first: Moment) -> str:
    """Return the time since the first moment: ``+1.204 s``, ``+3m 12s``."""
    seconds = moment.at - first.at
    if seconds < 60:  # noqa: PLR2004  # a minute
        return f"+{seconds:.3f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"+{hours}h {minutes:02}m" if hours else f"+{minutes}m {rest:02}s"


def _ordinal(number: int) -> str:
    return {2: "second", 4: "fourth", 8: "eighth"}.get(number, f"{number}th")


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


# --- the page


def page(life: Life, *, now: float, links: Mapping[str, str]) -> str:
    """Return a page with everything in it: no script, nothing fetched, every text escaped."""
    title = f"{life.task or 'task unknown'} {life.key}"
    items = "\n".join(_item(moment, first=life.moments[0]) for moment in life.moments)
    facts = "\n".join(f"<dt>{escape(name)}</dt><dd>{_value(value, links)}</dd>" for name, value in _facts(life))
    return _PAGE.format(
        title=_safe(title),
        task=_safe(life.task or "task unknown"),
        key=_safe(life.key),
        state=_safe(life.state),
        now=_safe(life.now),
        facts=facts,
        items=items or "<li>Nothing out of the ordinary is noted.</li>",
        written=_time(now),
    )


def _item(moment: Moment, *, first: Moment) -> str:
    often = f" <small>the {_ordinal(moment.times)} time</small>" if moment.times > 1 else ""
    place = f'<span class="place">{_safe(moment.place)}</span>' if moment.place else ""
    return (
        f'<li class="{kind_of(moment.event)}"><time title="{_time(moment.at)}">{since(moment, first=first)}</time>'
        f"<p>{_safe(moment.words)}{often}{place}</p></li>"
    )


def _facts(life: Life) -> Iterator[tuple[str, str]]:
    if life.moments:
        yield "began", _time(life.moments[0].at)
    yield from (("task id", task_id) for task_id in life.task_ids)
    yield from ((name, value) for name, value in life.record.items() if name not in {"state", "task_id", "holder"})
    yield from (("dead letter", letter_id) for letter_id in life.letters if letter_id != life.record.get("letter_id"))


def _value(value: str, links: Mapping[str, str]) -> str:
    address = links.get(value)
    return f'<a href="{_safe(address)}">{_safe(value)}</a>' if address else _safe(value)


def _safe(text: str) -> str:
    return escape(printable(text))


_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #cbd5e1; --dim: #64748b; --good: #059669; --bad: #dc2626; --odd: #b45309; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --line: #3d4a5c; --dim: #98a6b8; --good: #3ecf94; --bad: #f58080; --odd: #f0b04f; }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2.5rem auto; padding: 0 1.25rem; }}
h1 {{ font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }}
.key, dd {{ font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; }}
.key {{ color: var(--dim); margin: .25rem 0 1rem; }}
.now {{ border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem; margin: 0 0 1.5rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.25rem; margin: 0 0 2rem; }}
dt, footer, time, .place, small {{ color: var(--dim); }}
dd {{ margin: 0; }}
ol {{ list-style: none; margin: 0; padding: 0; }}
li {{ display: grid; grid-template-columns: 6.5rem 1fr; gap: 2.25rem; position: relative; }}
li time {{ text-align: right; font-variant-numeric: tabular-nums; font-size: .9rem; padding-top: .05rem; }}
li p {{ margin: 0 0 1.1rem; overflow-wrap: anywhere; }}
li::before {{ content: ""; position: absolute; left: calc(7.6rem - 1px); top: .75rem; bottom: -.75rem; border-left: 2px solid var(--line); }}
li:last-child::before {{ display: none; }}
li::after {{ content: ""; position: absolute; left: calc(7.6rem - 6px); top: .45rem; width: 12px; height: 12px; border-radius: 50%; background: var(--odd); }}
li.good::after {{ background: var(--good); }}
li.bad::after {{ background: var(--bad); }}
.place {{ display: block; font-size: .85rem; }}
footer {{ margin-top: 2rem; font-size: .85rem; }}
</style>
</head>
<body>
<h1>{task}</h1>
<p class="key">{key}</p>
<p class="now"><strong>{state}</strong> &middot; {now}</p>
<dl>
{facts}
</dl>
<ol>
{items}
</ol>
<footer>Times count from the first line. Written by <code>celery reliable explain</code> at {written}.</footer>
</body>
</html>
"""
