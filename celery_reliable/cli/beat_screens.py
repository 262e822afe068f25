"""Show beats and entries to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from celery_reliable.cli.screens import age, count_of, printable, table, tail
from celery_reliable.slots.reasons import MEANINGS, time_text

if TYPE_CHECKING:
    from rich.console import Console

    from celery_reliable.beat.leadership import Member
    from celery_reliable.slots.records import SlotRecord

_SECOND: Final = 1_000_000
_TASK_FROM: Final = 80  # columns of the terminal
_SCHEDULE_FROM: Final = 120
_NAME_WIDTH: Final = 32
_SCHEDULE_WIDTH: Final = 36
_TEXT_WIDTH: Final = 40


@dataclass(frozen=True, slots=True)
class Fleet:
    """Who leads, and all beats."""

    leader: Member | None
    members: Mapping[str, Member]

    @property
    def followers(self) -> list[Member]:
        """The beats that stand by."""
        leading = self.leader.token if self.leader else ""
        return [member for token, member in self.members.items() if token != leading]

    def as_record(self) -> dict[str, Any]:
        """Return it as plain data."""
        leader = asdict(self.leader) if self.leader else None
        return {"leader": leader, "followers": [asdict(member) for member in self.followers]}


def show_entries(console: Console, fleet: Fleet, records: Mapping[str, SlotRecord], *, now: int) -> None:
    """Show who leads, and the entries, the next one first."""
    console.print(_leader_line(fleet, now=now))
    if not records:
        console.print("No entries: no beat has led with this store yet.")
        return
    titles = ["ENTRY", *(["TASK"] if console.width >= _TASK_FROM else []), "LAST", "NEXT", "OUTCOME"]
    titles += ["SCHEDULE"] if console.width >= _SCHEDULE_FROM else []
    ordered = sorted(records.items(), key=lambda item: (item[1].following or 1 << 62, item[0]))
    rows = [_row(name, record, now=now) for name, record in ordered]
    console.print()
    console.print(table(console, titles, [[row[title] for title in titles] for row in rows]))
    console.print(
        f"\n{count_of(len(records), 'entry', 'entries')}. Why one did not run: celery reliable beat why ENTRY"
    )


def show_why(console: Console, name: str, record: SlotRecord, reasons: Sequence[str], *, now: int) -> None:
    """Show what keeps an entry from running, and its history, newest first."""
    console.print(Text(f"{printable(name)}: {printable(record.task)} ({printable(record.schedule)})", style="bold"))
    for reason in reasons or ("Nothing keeps it from running.",):
        console.print(printable(reason), soft_wrap=True)
    if record.following is not None and not record.absent:
        console.print(f"Next slot: {time_text(record.following)}, {_distance(record.following, now=now)}.")
    if record.history:
        console.print()
        rows = [
            [time_text(passed.slot), MEANINGS.get(passed.outcome, passed.outcome), time_text(passed.at)]
            for passed in reversed(record.history)
        ]
        console.print(table(console, ["SLOT", "OUTCOME", "AT"], rows))


def _leader_line(fleet: Fleet, *, now: int) -> str:
    followers = count_of(len(fleet.followers), "follower")
    if fleet.leader is None:
        return f"No beat leads, {followers}."
    member, led = fleet.leader, age(max((now - fleet.leader.epoch) / _SECOND, 0.0))
    return f"{printable(member.host)} pid {member.pid} leads for {led} (epoch {member.epoch}), {followers}."


def _row(name: str, record: SlotRecord, *, now: int) -> dict[str, str | Text]:
    last = next((passed for passed in reversed(record.history) if passed.outcome == "fired"), None)
    state = "disabled" if record.absent else record.history[-1].outcome if record.history else "not due yet"
    wrong = record.state in {"claimed", "dropped"} or record.why
    outcome = f"{state}: {record.why}" if record.why else "not published yet" if record.state == "claimed" else state
    return {
        "ENTRY": tail(printable(name), width=_NAME_WIDTH),
        "TASK": tail(printable(record.task), width=_NAME_WIDTH),
        "LAST": _distance(last.slot, now=now) if last else "never",
        "NEXT": "" if record.absent or record.following is None else _distance(record.following, now=now),
        "OUTCOME": Text(printable(outcome)[:_TEXT_WIDTH], style="red" if wrong else ""),
        "SCHEDULE": tail(printable(record.schedule), width=_SCHEDULE_WIDTH),
    }


def _distance(moment: int, *, now: int) -> str:
    seconds = (moment - now) / _SECOND
    return f"in {age(seconds)}" if seconds >= 0 else f"{age(-seconds)} ago"
