"""Owners of a node name: only proof declares a process gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from celery_reliable import processes
from celery_reliable.stores.memory import MemoryStore
from celery_reliable.stores.notes import Write
from celery_reliable.worker.owners import SHELF, NodeName, Owner


@pytest.fixture
def name() -> NodeName:
    """A node name on a store of its own."""
    return NodeName("celery@host", notes=MemoryStore().notes)


@pytest.fixture
def ended() -> Owner:
    """An owner whose process has ended and was reaped."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = replace(Owner.here("ended"), pid=process.pid, started=processes.start_time(process.pid))
        assert not owner.is_gone()
        process.kill()
        process.wait()
    return owner


pytestmark = pytest.mark.skipif(
    not processes.boot_id(), reason="this system does not name its boots: nothing is proven"
)


def test_process_that_ended_is_gone(ended: Owner) -> None:
    """Same boot, same pid namespace, no such pid."""
    assert ended.is_gone()


def test_zombie_is_gone() -> None:
    """A process that was killed, and that its parent has not looked after, does nothing any more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = replace(Owner.here("zombie"), pid=process.pid, started=processes.start_time(process.pid))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.is_gone()


def test_pid_that_was_given_again_is_gone() -> None:
    """Another start time: another process."""
    assert replace(Owner.here("me"), started="1").is_gone()


@pytest.mark.parametrize(
    "changed",
    [{}, {"boot_id": "another"}, {"pid_namespace": "pid:[1]"}, {"boot_id": "", "pid_namespace": ""}],
    ids=["alive", "another boot", "another namespace", "no evidence"],
)
def test_without_proof_nobody_is_gone(changed: dict[str, Any], ended: Owner) -> None:
    """The other boot, container or system may well have that process."""
    owner = replace(ended, **changed) if changed else Owner.here("me")
    assert not owner.is_gone()


def test_successor_meets_the_gone_until_it_has_left_them(name: NodeName, ended: Owner) -> None:
    """A rescue that is cut off is finished by the next one."""
    assert name.enter(ended).gone == []
    me = Owner.here("me")
    assert name.enter(me).gone == [ended]
    assert name.enter(me).gone == [ended]
    name.leave(["ended"])
    assert name.enter(me).gone == []


def test_owner_that_lives_is_met_alive(name: NodeName) -> None:
    """And is not rescued from."""
    name.enter(Owner.here("first"))
    before = name.enter(Owner.here("second"))
    assert ([one.token for one in before.alive], before.gone) == (["first"], [])


def test_owner_out_of_sight_is_neither(name: NodeName, ended: Owner) -> None:
    """Its lease will tell."""
    name.enter(replace(ended, pid_namespace="pid:[1]"))
    before = name.enter(Owner.here("me"))
    assert (before.alive, before.gone) == ([], [])


def test_list_of_owners_is_bounded(name: NodeName, ended: Owner) -> None:
    """In containers of a fixed name each restart leaves one that nobody can prove gone."""
    for number in range(20):
        name.enter(replace(ended, token=str(number)))
    assert len(name.enter(Owner.here("me")).gone) == 8


def test_note_of_another_version_is_written_over() -> None:
    """Nothing is known, so nobody is gone."""
    store = MemoryStore()
    name = NodeName("celery@host", notes=store.notes)
    name.enter(Owner.here("me"))

    store.notes.write(SHELF, [Write(name="celery@host", value=b"{]", ttl=60.0)])
    assert name.enter(Owner.here("me")).gone == []
