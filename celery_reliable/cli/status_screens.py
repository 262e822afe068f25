"""Show the fleet to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from celery_reliable import probe
from celery_reliable.cli.screens import age, count_of, printable, table, tail

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from celery_reliable.fleet import Fleet, QueueState, WorkerState

_ROWS: Final = 12
_ENTRIES: Final = 5
_WIDE_FROM: Final = 100  # columns of the terminal
_NAME_WIDTH: Final = 34
_STYLES: Final = {"draining": "yellow", "stuck": "red", "silent": "red", "broker_down": "red", "store_down": "red"}
_OLD: Final = 300.0  # seconds from which a waiting message is shown as old


@dataclass(frozen=True, slots=True)
class View:
    """What a part of the screen is made from. ``everything``: also what does not fit a screen."""

    console: Console
    fleet: Fleet
    everything: bool


Panel = Callable[[View], "Iterator[RenderableType]"]


def screen(console: Console, fleet: Fleet, *, everything: bool) -> Group:
    """Lay out one screen: what is wrong comes first in each part."""
    parts: list[RenderableType] = [_headline(fleet)]
    for panel in PANELS:
        found = list(panel(View(console, fleet, everything)))
        parts += [Text(), *found] if found else []
    return Group(*parts)


def _headline(fleet: Fleet) -> Text:
    states = Counter(worker.state for worker in fleet.workers)
    states_text = ", ".join(f"{count} {state}" for state, count in states.most_common())
    workers = count_of(len(fleet.workers), "worker")
    if not fleet.workers:
        return Text("No worker gives a sign of life.", style="red")
    held = "" if fleet.held is None else f", {max(fleet.held - fleet.running, 0)} more held"
    return Text(f"{workers}: {states_text}. {fleet.running} of {fleet.slots} slots run a task{held}.", style="bold")


# --- workers


def _workers(view: View) -> Iterator[RenderableType]:
    fleet, console = view.fleet, view.console
    ordered = sorted(fleet.workers, key=lambda one: (one.state in probe.READY, one.sign.node))
    shown = ordered if view.everything else ordered[:_ROWS]
    if not shown:
        return
    wide = console.width >= _WIDE_FROM
    titles = ["WORKER", "STATE", "BUSY", *(["POOL", "QUEUES"] if wide else []), "SIGN"]
    rows = [[cell for title, cell in _worker_row(one).items() if title in titles] for one in shown]
    yield table(console, titles, rows)
    if len(shown) < len(ordered):
        yield Text(f"and {len(ordered) - len(shown)} more; --all shows them", style="dim")


def _worker_row(worker: WorkerState) -> dict[str, str | Text]:
    sign = worker.sign
    return {
        "WORKER": tail(printable(sign.node), width=_NAME_WIDTH),
        "STATE": Text(worker.state, style=_STYLES.get(worker.state, "")),
        "BUSY": f"{sign.running}/{sign.concurrency}",
        "POOL": sign.pool,
        "QUEUES": tail(printable(", ".join(sign.queues)), width=_NAME_WIDTH),
        "SIGN": f"{age(worker.age)} ago",
    }


# --- queues


def _queues(view: View) -> Iterator[RenderableType]:
    fleet = view.fleet
    if not fleet.queues:
        return
    ordered = sorted(fleet.queues, key=lambda one: (-(one.waiting or 0), one.name))
    wide = view.console.width >= _WIDE_FROM
    rows = [_queue_row(fleet, one, wide=wide) for one in (ordered if view.everything else ordered[:_ROWS])]
    rates = ("WELL/MIN", "FAILED/MIN") if wide else ()
    yield table(view.console, ("QUEUE", "WAITING", "OLDEST", "RUNNING", *rates, "WORKERS"), rows)


def _queue_row(fleet: Fleet, queue: QueueState, *, wide: bool) -> list[str | Text]:
    well, failed = fleet.ended_in(queue.name)
    rates = [Text(f"{well:,}"), Text(f"{failed:,}", style="red" if failed > well else "")] if wide else []
    consumers = max(fleet.consumers_of(queue.name), queue.consumers or 0)
    waiting = "?" if queue.waiting is None else f"{queue.waiting:,}"
    oldest = "" if queue.oldest is None else age(queue.oldest)
    return [
        tail(printable(queue.name), width=_NAME_WIDTH),
        Text(waiting, style="red" if queue.waiting and not consumers else ""),
        Text(oldest, style="red" if (queue.oldest or 0) >= _OLD else ""),
        str(fleet.running_in(queue.name)),
        *rates,
        Text(str(consumers), style="" if consumers else "red"),
    ]


# --- beat


def _beat(view: View) -> Iterator[RenderableType]:
    fleet = view.fleet
    if fleet.leader is None and not fleet.schedule:
        return
    yield _leader_line(fleet)
    ordered = sorted(fleet.schedule, key=lambda one: one.next or float("inf"))
    for entry in ordered if view.everything else ordered[:_ENTRIES]:
        late = entry.next is not None and entry.next < fleet.at
        when = "never" if entry.next is None else f"{age(abs(entry.next - fleet.at))} {'late' if late else ''}".strip()
        yield Text(f"  {when:>9}  {printable(entry.entry)}", style="yellow" if late else "")


def _leader_line(fleet: Fleet) -> Text:
    followers = count_of(len(fleet.followers), "follower")
    if fleet.leader is None:
        return Text(f"No beat leads, {followers}: nothing fires.", style="red")
    leader = fleet.leader
    led = age(max(fleet.at - leader.epoch / 1e6, 0.0))
    return Text(f"Beat: {printable(leader.host)} pid {leader.pid} leads for {led}, {followers}. Next slots:")


# --- dependencies


def _breakers(view: View) -> Iterator[RenderableType]:
    closed = [name for name, phase in view.fleet.breakers.items() if phase != "closed"]
    if closed:
        names = ", ".join(f"{printable(name)} ({view.fleet.breakers[name].replace('_', ' ')})" for name in closed)
        yield Text(f"{count_of(len(closed), 'breaker')} not closed, tasks wait: {names}", style="red")


# --- queues that are stopped


def _stopped(view: View) -> Iterator[RenderableType]:
    stopped = sorted(view.fleet.stopped)
    if stopped:
        names = ", ".join(map(printable, stopped))
        yield Text(f"{count_of(len(stopped), 'queue')} stopped by a kill switch, messages wait: {names}", style="red")


# --- dead letters


def _deaths(view: View) -> Iterator[RenderableType]:
    fleet = view.fleet
    kept = fleet.deaths.counts.get("kept", 0)
    if not kept:
        yield Text("No dead letters.", style="dim")
        return
    open_ones = sum(fleet.deaths.reasons.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in Counter(fleet.deaths.reasons).most_common())
    among = f" of the newest {fleet.deaths.sampled:,}" if fleet.deaths.sampled < kept else ""
    waiting = f"{open_ones:,}{among} open: {reasons}" if open_ones else "none is open"
    yield Text(f"{count_of(kept)} kept, {waiting}.", style="red" if open_ones else "")


PANELS: Final[tuple[Panel, ...]] = (_workers, _queues, _stopped, _beat, _breakers, _deaths)
"""The parts of the screen, in order. A feature that has a state of its own adds a part here."""
