"""Show the story: one screen on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from example_project.demo.narrator import ACTS
from example_project.demo.picture import Job, Key, Letter, Picture, Process, Said
from example_project.verdict import Line

FRAMES_PER_SECOND = 8
WIDE, TALL = 110, 30

Cells = Mapping[str, RenderableType]

_COLOURS = {
    "starting": "yellow",
    "working": "green",
    "draining": "yellow",
    "left": "bright_black",
    "killed": "red",
    "running": "cyan",
    "done": "green",
    "handed over": "yellow",
    "refused": "magenta",
    "waiting": "yellow",
    "dead letter": "red",
    "replayed": "green",
}
_MOODS = {"plain": "", "act": "bold cyan", "good": "green", "bad": "red"}


@contextmanager
def live(console: Console, look: Callable[[], Picture]) -> Iterator[None]:
    """Show the picture of every moment until the block ends; the terminal is then as it was before."""

    def frame() -> Layout:
        return draw(look(), width=console.width, height=console.height)

    with Live(console=console, screen=True, get_renderable=frame, refresh_per_second=FRAMES_PER_SECOND):
        yield


def draw(picture: Picture, *, width: int, height: int) -> Layout:
    """Lay out one picture; a small terminal shows fewer columns and rows."""
    columns = _WIDE if width >= WIDE else _NARROW
    processes = picture.processes if height >= TALL else picture.processes[:3]
    story, top = max(6, height // 3), len(processes) + 3
    room = height - 3 - story
    screen = Layout()
    screen.split_column(
        Layout(_heading(picture), size=3), Layout(name="now"), Layout(_story(picture.said[2 - story :]), size=story)
    )
    screen["now"].split_row(Layout(name="left"), Layout(name="right"))
    screen["left"].split_column(
        Layout(_processes(processes, picture, columns["processes"]), size=top),
        Layout(_jobs(picture.jobs[3 + top - room :], columns["jobs"])),
    )
    screen["right"].split_column(
        Layout(_keys(picture.keys[3 + 5 - room :], columns["keys"])),
        Layout(_letters(picture.letters[-2:], columns["letters"]), size=5),
    )
    return screen


_WIDE = {
    "processes": ("process", "pid", "state", "works on"),
    "jobs": ("job", "worker", "attempt", "progress", "state"),
    "keys": ("key", "asked", "runs", "effects", "fence", "state"),
    "letters": ("key", "reason", "error", "state"),
}
_NARROW = {
    "processes": ("process", "state", "works on"),
    "jobs": ("job", "progress", "state"),
    "keys": ("key", "asked", "runs", "effects"),
    "letters": ("key", "state"),
}
_NUMBERS = {"pid", "attempt", "asked", "runs", "effects"}
_YIELDING = {"works on", "progress", "error"}


def _heading(picture: Picture) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 2))
    line.add_column(ratio=1, no_wrap=True)
    line.add_column(justify="right")
    line.add_row(_steps(picture.act), Text(f"{picture.seconds:5.1f} s", style="bold"))
    return Panel(line, box=ROUNDED, border_style="cyan", title="[bold]celery_reliable[/]  one shop, two workers")


def _steps(act: str) -> Text:
    order = list(ACTS)
    now = order.index(act)
    steps = Text()
    for place, name in enumerate(order):
        mark, style = ("✔", "green") if place < now else ("●", "bold cyan") if place == now else ("○", "bright_black")
        steps.append(f"{mark} {ACTS[name]}  ", style=style)
    return steps


def _processes(processes: Sequence[Process], picture: Picture, columns: Sequence[str]) -> Panel:
    rows: list[Cells] = [
        {"process": each.name, "pid": str(each.pid), "state": _state(each.state), "works on": _doing(each, picture)}
        for each in processes
    ]
    return _panel("processes", _table(columns, rows))


def _doing(process: Process, picture: Picture) -> str:
    if process.name == "beat":
        return f"fired {picture.fired} times"
    return picture.busy.get(process.name, "")


def _jobs(jobs: Sequence[Job], columns: Sequence[str]) -> Panel:
    rows: list[Cells] = [
        {
            "job": job.run.key,
            "worker": _short(job.run.worker),
            "attempt": str(job.run.attempt),
            "progress": ProgressBar(
                total=1, completed=job.progress, complete_style=_COLOURS[job.state], finished_style="green"
            ),
            "state": _state(job.state),
        }
        for job in jobs
    ]
    return _panel("jobs", _table(columns, rows), note="one row a run")


def _keys(keys: Sequence[Key], columns: Sequence[str]) -> Panel:
    rows: list[Cells] = [
        {
            "key": key.key,
            "asked": str(key.asked),
            "runs": str(key.runs),
            "effects": Text(str(key.effects), style="bold green" if key.effects == 1 else ""),
            "fence": f"…{key.fence % 10**5:05d}" if key.fence else "",
            "state": _state(key.state),
        }
        for key in keys
    ]
    return _panel("keys", _table(columns, rows), note="asked often, one effect")


def _letters(letters: Sequence[Letter], columns: Sequence[str]) -> Panel:
    rows: list[Cells] = [
        {
            "key": letter.key,
            "reason": letter.reason,
            "error": letter.error,
            "state": _state("replayed" if letter.replayed else "dead letter"),
        }
        for letter in letters
    ]
    return _panel("dead letters", _table(columns, rows) if rows else Text("none", style="bright_black"))


def _story(said: Sequence[Said]) -> Panel:
    return _panel("what happens", Group(*[sentence(each) for each in said]))


def sentence(said: Said) -> Text:
    """Return one sentence of the story, coloured by its mood."""
    text = Text.assemble((f"{said.seconds:5.1f}  ", "bright_black"), (said.text, _MOODS[said.mood]))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _short(worker: str) -> str:
    return worker.partition("@")[0]


def _state(state: str) -> Text:
    return Text(f"● {state}", style=_COLOURS.get(state, ""))


def _table(columns: Sequence[str], rows: Iterable[Cells]) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bright_black")
    for name in columns:
        side: JustifyMethod = "right" if name in _NUMBERS else "left"
        table.add_column(name, no_wrap=True, justify=side, ratio=1 if name in _YIELDING else None)
    for row in rows:
        table.add_row(*[row[name] for name in columns])
    return table


def _panel(title: str, body: RenderableType, *, note: str = "") -> Panel:
    return Panel(
        body,
        title=f"[bold cyan]{title}[/]",
        title_align="left",
        subtitle=note,
        subtitle_align="right",
        box=ROUNDED,
        border_style="bright_black",
        padding=(0, 1),
    )


# --- after the story


def show_verdict(console: Console, lines: Sequence[Line]) -> None:
    """Print the verdict: a table on a terminal, aligned plain lines anywhere else."""
    if console.is_terminal:
        console.print(verdict_table(lines))
        return
    for line in plain_verdict(lines):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict_table(lines: Sequence[Line]) -> Table:
    """Return the verdict as a table, one section for each act."""
    table = Table(
        title="Verdict, computed from the ledger", box=SIMPLE_HEAD, title_style="bold", header_style="bright_black"
    )
    for name in ("", "claim", "expected", "found", ""):
        table.add_column(name)
    for act, mates in groupby(lines, key=lambda line: line.act):
        for number, line in enumerate(mates):
            mark = Text("✔", style="green") if line.ok else Text("✘", style="bold red")
            table.add_row(
                ACTS.get(act, "every job") if number == 0 else "", line.claim, line.expected, line.found, mark
            )
        table.add_section()
    return table


def plain_verdict(lines: Iterable[Line]) -> list[str]:
    """Return the verdict as aligned lines of text."""
    lines = list(lines)
    widths = [max((len(getattr(line, name)) for line in lines), default=0) for name in ("act", "claim", "expected")]
    return [
        f"{'ok  ' if line.ok else 'FAIL'} {line.act:<{widths[0]}}  {line.claim:<{widths[1]}}  "
        f"expected {line.expected:<{widths[2]}}  found {line.found}"
        for line in lines
    ]


def plain_sentence(said: Said) -> str:
    """Return one sentence of the story as a line of text."""
    mark = {"act": "== ", "good": "   ok: ", "bad": "   !!  "}.get(said.mood, "   ")
    return f"{said.seconds:6.1f} s {mark}{said.text}"
