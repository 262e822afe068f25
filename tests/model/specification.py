"""Specify claim, lease, fence and complete on one page: a key, its workers, and a table that compares fences.

A step has a guard (when it can happen), the answer that the store has to give, and what is so after it. `explore` visits
every order of the steps; `tests.model.conformance` takes each of them on a real store, too. The whole protocol, with
producers, brokers and operators, is in `tests.model.protocol`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tests.model.explorer import Model, Move

MAX_DELIVERIES: Final = 2  # claims that may end without a verdict; the next one may only bury

Verb = Literal["claim", "save", "write", "complete", "release", "bury", "crash", "freeze", "thaw", "redeliver", "lapse"]


class Key(NamedTuple):
    """What the store knows: ``fence`` is the last one given, ``lost`` counts claims that ended without a verdict."""

    status: Literal["waiting", "running", "done", "dead"] = "waiting"
    fence: int = 0
    leased: bool = False
    lost: int = 0


class Worker(NamedTuple):
    """What a worker does. ``has_message``: it can still give its message back."""

    step: Literal["idle", "running", "wrote", "condemned"] = "idle"
    fence: int = 0
    has_message: bool = False
    frozen: bool = False
    was_frozen: bool = False


class World(NamedTuple):
    """Everything. ``queued`` copies of one message, ``table`` the fence of the last write that a table accepted."""

    key: Key = Key()
    workers: tuple[Worker, ...] = (Worker(), Worker())
    queued: int = 2  # the broker delivers at least once: here twice
    table: int = 0
    outcomes: int = 0
    letters: int = 0
    crashes: int = 1
    freezes: int = 1
    failures: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What keeps the promises. Each one can be taken out, to see what it is for."""

    lease_excludes: bool = True
    holder_renews: bool = True
    done_stays_done: bool = True
    dead_stays_dead: bool = True
    fence_is_compared: bool = True
    table_compares_fences: bool = True
    acks_after_outcome: bool = True


class Step(NamedTuple):
    """One step of one worker (-1: nobody's), the answer of the store to it ("": it is not asked), and what follows."""

    verb: Verb
    who: int
    answer: str
    after: World
    fault: bool = False


def steps(world: World, guards: Guards = Guards()) -> Iterator[Step]:  # frozen
    """Return all that can happen next."""
    for who, worker in enumerate(world.workers):
        if worker.frozen:
            yield from _while_frozen(world, who, worker)
        elif worker.step == "idle":
            yield from _claim(world, guards, who)
        else:
            yield from _in_body(world, guards, who, worker)
    yield from _lapse(world, guards)


def _claim(world: World, guards: Guards, who: int) -> Iterator[Step]:
    """Whoever has a message asks for the right to run. It is given under a new fence, to one at a time."""
    key = world.key
    if not world.queued:
        return
    taken = world._replace(queued=world.queued - 1)
    if key.status == "done" and guards.done_stays_done:
        yield Step("claim", who, "Done", taken)
    elif key.status == "dead" and guards.dead_stays_dead:
        yield Step("claim", who, "Dead", taken)
    elif key.status == "running" and key.leased and guards.lease_excludes:
        yield Step("claim", who, "Busy", world)  # it waits, its message unacked
    else:
        lost = key.lost + (key.status == "running")
        given = Key("running", key.fence + 1, leased=True, lost=lost)
        condemned = lost >= MAX_DELIVERIES
        holds = Worker("condemned" if condemned else "running", given.fence, has_message=guards.acks_after_outcome)
        yield Step("claim", who, "Poisoned" if condemned else "Run", _put(taken._replace(key=given), who, holds))


def _in_body(world: World, guards: Guards, who: int, worker: Worker) -> Iterator[Step]:
    """Whoever runs saves, writes under its fence, and settles; the store refuses who is not the last that it gave a right."""
    newest = worker.fence == world.key.fence and world.key.status == "running"
    if worker.step == "running":
        yield Step("save", who, "Settled" if newest else "Stale", world)
        fits = worker.fence >= world.table or not guards.table_compares_fences
        written = world._replace(table=worker.fence if fits else world.table)
        yield Step("write", who, "", _put(written, who, worker._replace(step="wrote")))
    if worker.step == "wrote":
        yield _settle(world, who, "complete", accepted=newest or not guards.fence_is_compared)
    if worker.step == "running" and world.failures:
        failed = world._replace(failures=world.failures - 1)
        yield _settle(failed, who, "release", accepted=newest)
        yield _settle(failed, who, "bury", accepted=newest)
    if worker.step == "condemned":
        yield _settle(world, who, "bury", accepted=newest)
    if world.crashes:
        yield Step("crash", who, "", _give_back(world._replace(crashes=world.crashes - 1), who), fault=True)
    if world.freezes:
        frozen = worker._replace(frozen=True, was_frozen=True)
        yield Step("freeze", who, "", _put(world._replace(freezes=world.freezes - 1), who, frozen), fault=True)


def _settle(world: World, who: int, verb: Literal["complete", "release", "bury"], *, accepted: bool) -> Step:
    """Write a verdict, then ack; who is told ``Stale`` gives its message back."""
    if not accepted:
        return Step(verb, who, "Stale", _give_back(world, who))
    key, acked = world.key, _put(world, who, Worker())
    match verb:
        case "complete":
            after = acked._replace(key=key._replace(status="done", leased=False), outcomes=world.outcomes + 1)
        case "bury":
            after = acked._replace(key=key._replace(status="dead", leased=False), letters=world.letters + 1)
        case "release":
            waiting = key._replace(status="waiting", leased=False)
            after = _give_back(world._replace(key=waiting), who)
    return Step(verb, who, "Settled", after)


def _while_frozen(world: World, who: int, worker: Worker) -> Iterator[Step]:
    yield Step("thaw", who, "", _put(world, who, worker._replace(frozen=False)))
    if worker.has_message:
        returned = _put(world, who, worker._replace(has_message=False))
        yield Step("redeliver", who, "", returned._replace(queued=world.queued + 1))


def _lapse(world: World, guards: Guards) -> Iterator[Step]:
    """A lease ends when nobody renews it: its holder is dead or frozen. Who lives renews in time."""
    key = world.key
    renewed = any(not one.frozen and one.step != "idle" and one.fence == key.fence for one in world.workers)
    if key.leased and not (renewed and guards.holder_renews):
        yield Step("lapse", -1, "", world._replace(key=key._replace(leased=False)))


def _put(world: World, who: int, worker: Worker) -> World:
    return world._replace(workers=(*world.workers[:who], worker, *world.workers[who + 1 :]))


def _give_back(world: World, who: int) -> World:
    return _put(world, who, Worker())._replace(queued=world.queued + world.workers[who].has_message)


# --- what is promised


def wrong(world: World) -> str:
    """Name the promise that is broken, or say ""."""
    running = [one for one in world.workers if one.step in ("running", "wrote") and not one.was_frozen]
    if len(running) > 1:
        return "two run at once, and none of them was frozen"
    if world.outcomes > 1:
        return "two outcomes are kept"
    if world.letters and world.key.status != "dead":
        return "a dead job runs, and nobody has replayed it"
    if world.letters and world.outcomes:
        return "a job is done and dead"
    if world.key.status == "done" and world.table != world.key.fence:
        return "the table has the write of another than the one whose outcome is kept"
    return ""


def is_good_end(world: World) -> bool:
    """Tell whether the job has ended, and nothing of it is left."""
    return world.key.status in ("done", "dead") and not world.queued and world.workers == (Worker(), Worker())


def model(guards: Guards = Guards()) -> Model[World]:  # frozen
    """Return it as the explorer takes it."""

    def moves(world: World) -> Iterable[Move[World]]:
        for verb, who, answer, after, fault in steps(world, guards):
            yield Move(f"W{who + 1} {verb}: {answer}" if answer else f"W{who + 1} {verb}", after, fault)

    return Model(start=World(), moves=moves, wrong=wrong, is_good_end=is_good_end, lost="the job never ends")
