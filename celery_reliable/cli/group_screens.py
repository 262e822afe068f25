"""Show groups of dead letters to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_reliable.cli.screens import age, command_line, count_of, error_line, printable, table, tail

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from celery_reliable.dead_letters import Group
    from celery_reliable.dead_letters.silences import Silence

_TASK_WIDTH = 22


def record(group: Group, *, silences: Mapping[str, Silence], breakers: Sequence[str] = ()) -> dict[str, Any]:
    """Return a group as plain data, without its sample letter's body."""
    silence = silences.get(group.fingerprint)
    return {
        "group": group.fingerprint,
        "count": group.count,
        "tasks": group.tasks,
        "breakers": list(breakers),
        "first": group.first,
        "last": group.last,
        "releases": group.releases,
        "error_type": group.sample.error_type,
        "error_message": group.sample.error_message,
        "sample": group.sample.id,
        "silenced_by": silence.who if silence else None,
    }


def show(
    console: Console, groups: Sequence[Group], *, breakers: Sequence[Sequence[str]], more: int, hidden: int, now: float
) -> None:
    """Show groups, largest first; ``breakers`` has those of each group, and there is a column for them if any has one."""
    if not groups:
        console.print(f"No group of dead letters{f', {hidden} silenced' if hidden else ''}.")
        return
    rows: list[list[str | Text]] = [
        [
            f"{group.count:,}",
            group.fingerprint,
            age(now - group.first),
            age(now - group.last),
            tail(printable(group.tasks[0]), width=_TASK_WIDTH)
            + (f" +{len(group.tasks) - 1}" if group.tasks[1:] else ""),
            *([printable(", ".join(names))] if any(breakers) else []),
            printable(" ".join(group.releases[-2:])),
            error_line(group.sample),
        ]
        for group, names in zip(groups, breakers, strict=True)
    ]
    depends = ["BREAKER"] if any(breakers) else []
    console.print(table(console, ("COUNT", "GROUP", "FIRST", "LAST", "TASK", *depends, "RELEASE", "ERROR"), rows))
    others = [*([f"{more} more"] if more > 0 else []), *([f"{hidden} silenced"] if hidden else [])]
    console.print(f"\n{count_of(len(groups), 'group')}{''.join(f', {one}' for one in others)}.")
    first = groups[0].fingerprint
    console.print(f"Send one back: {command_line('replay', '--group', first, '--canary', '20')}", soft_wrap=True)
    console.print(f"Leave it out:  {command_line('silence', first, '--until', 'RELEASE')}", soft_wrap=True)
