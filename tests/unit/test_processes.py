"""What may be signalled, and what never."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from celery_reliable.testing.processes import send, send_to_group, signal_family

NAMES = ("everybody", "our group", "init", "ourselves")
KILLED = -signal.SIGKILL


@pytest.mark.parametrize("pid", [-1, 0, 1, os.getpid()], ids=NAMES)
@pytest.mark.parametrize("deliver", [send, signal_family])
def test_a_number_that_is_no_single_other_process_is_refused(deliver: object, pid: int) -> None:
    """A pid that was not read yet, or that of the tests themselves."""
    assert callable(deliver)
    with pytest.raises(ValueError, match=f"refused to send SIGCONT to {pid}: expected another process"):
        deliver(pid, signal.SIGCONT)


@pytest.mark.parametrize("leader", [-1, 0, 1, os.getpgrp()], ids=NAMES)
def test_our_own_group_is_refused(leader: int) -> None:
    """It has the tests in it."""
    with pytest.raises(ValueError, match=f"refused to send SIGCONT to group {leader}: expected another one"):
        send_to_group(leader, signal.SIGCONT)


def test_a_group_of_its_own_is_signalled() -> None:
    """Leader and members."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"], start_new_session=True) as process:
        send_to_group(process.pid, signal.SIGKILL)
        assert process.wait(10) == KILLED
