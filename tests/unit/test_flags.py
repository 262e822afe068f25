"""What a worker tells its pool children through shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from celery_reliable.worker import flags

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK = "import os; from celery_reliable.worker import flags; print(flags.{0}, flags.may_terminate({1}))"


@pytest.fixture
def made() -> Iterator[flags.Flags]:
    """The flags of a worker."""
    made = flags.Flags()
    yield made
    made.close()


def seen_by_a_child(question: str, *, pid: int = 1) -> list[str]:
    """Return what a new process sees."""
    command = [sys.executable, "-c", ASK.format(question, pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_the_two_flags_are_two(made: flags.Flags) -> None:
    """A worker drains long before it interrupts."""
    made.set_draining()
    assert (flags.draining(), flags.interrupting(), made.draining) == (True, False, True)
    made.set_interrupting()
    assert flags.interrupting() is True
    assert seen_by_a_child("interrupting()") == ["True", "False"]


def test_only_an_allowed_child_may_be_terminated(made: flags.Flags) -> None:
    """A new process sees it, for its own id alone."""
    made.allow_termination(4242)
    assert seen_by_a_child("draining()", pid=4242) == ["False", "True"]
    assert flags.may_terminate(4243) is False


def test_an_id_that_is_used_again_is_not_allowed(made: flags.Flags) -> None:
    """The new child did not inherit what the dead one was told."""
    made.allow_termination(4242)
    made.allow_termination(4243)
    made.forbid_termination(4242)
    assert (flags.may_terminate(4242), flags.may_terminate(4243)) == (False, True)


def test_the_table_of_allowed_children_never_ends(made: flags.Flags) -> None:
    """A worker that recycles children for months overwrites the oldest; no id reaches the flags."""
    for pid in range(1, 5001):
        made.allow_termination(pid)
    assert (flags.may_terminate(5000), flags.may_terminate(1)) == (True, False)
    assert (flags.draining(), flags.interrupting()) == (False, False)


def test_closed_flags_still_say_that_the_worker_drains(made: flags.Flags) -> None:
    """The pool stops after the file is gone."""
    made.set_draining()
    made.close()
    assert made.draining is True
    assert flags.VARIABLE not in os.environ


def test_nobody_may_be_terminated_without_a_worker() -> None:
    """No file, no permission."""
    assert flags.may_terminate(os.getpid()) is False
    assert flags.interrupting() is False
