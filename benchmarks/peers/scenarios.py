"""Do to a contender what production does, and say in a few words what became of the jobs.

Every scenario has a server, workers and ledger of its own. Workers have two processes. What is reported is what the jobs
themselves wrote into the ledger; what a library says of itself does not count.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.peers.stage import Row, Stage

_WATCH: Final = 60.0  # seconds after which a job that did not come back counts as not coming
_GRACE: Final = 10.0  # between SIGTERM and SIGKILL
_POISON: Final = 30.0
_GOOD: Final = 5
_JOBS: Final = 2000
_BEGIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a scenario showed: in words, and whether it is what a user wants (None: a matter of taste)."""

    said: str
    good: bool | None = None


def killed(stage: Stage) -> Found:
    """SIGKILL of the whole worker in the middle of a job; its successor starts at once."""
    worker = stage.start()
    _begin(stage, "medium")
    worker.kill()
    died = time.monotonic()
    stage.start_only()
    return _came_back(stage, since=died, effects=1)


def deployed(stage: Stage) -> Found:
    """SIGTERM in the middle of a job of 25 s, SIGKILL after 10 s if it still runs; its successor starts at once."""
    worker = stage.start()
    _begin(stage, "long")
    took = worker.deploy(_GRACE)
    died = time.monotonic()
    stage.start_only()
    again = _came_back(stage, since=died, effects=1)
    ended = f"stopped by itself after {took:.0f} s" if took < _GRACE else "had to be killed"
    return Found(f"{ended}; {again.said}", again.good)


def submitted_twice(stage: Stage) -> Found:
    """Submit the same job twice in a row, and once more when it is done."""
    stage.start()
    stage.send("short", "job", "short", "job")
    stage.wait(lambda: stage.count("effect", "job") >= 1, _BEGIN)
    time.sleep(3.0)  # time for the second one, if there is one
    before = stage.count("effect", "job")
    stage.send("short", "job")
    time.sleep(3.0)
    after = stage.count("effect", "job") - before
    return Found(f"{before} + {after}", (before, after) == (1, 0))


def poison(stage: Stage) -> Found:
    """Submit a job that kills its own process each time, and five good ones behind it; watch for 30 s."""
    worker = stage.start()
    began = time.monotonic()
    labels = [f"good-{number}" for number in range(_GOOD)]
    stage.send("poison", "job", *itertools.chain.from_iterable(("short", label) for label in labels))
    while time.monotonic() < began + _POISON:
        if not worker.running:
            worker = stage.start_only()  # as a supervisor does
        time.sleep(0.5)
    done = sum(1 for label in labels if stage.count("effect", label))
    runs = stage.count("start", "job")
    last = max((row.at for row in stage.of("start", "job")), default=0.0)
    going_on = time.monotonic() - last < _POISON / 2
    said = f"{runs} run{'s' if runs != 1 else ''}{', going on' if going_on else ''}; {done} of {_GOOD} good ones done"
    return Found(said, not going_on and done == _GOOD)


def frozen(stage: Stage) -> Found:
    """Freeze the worker in the middle of a job, start another one, and let the first go on when that one is done."""
    first = stage.start()
    _begin(stage, "medium")
    first.freeze()
    stage.start_only()
    taken = stage.wait(lambda: stage.count("effect", "job"), _WATCH)
    first.thaw()
    stage.wait(lambda: stage.count("effect", "job") > taken, 8.0)
    effects = stage.of("effect", "job")
    if not taken:
        return Found(f"not taken over in {_WATCH:.0f} s", None)
    late = len(effects) - len(_accepted(effects))
    said = f"{len(effects)} effects" + (f", {late} of them refused by the fence" if late else "")
    return Found(said, len(_accepted(effects)) == 1)


def _accepted(effects: list[Row]) -> list[Row]:
    """Return the effects that a table with a column for the fence accepts; without a fence there is nothing to refuse by."""
    found: list[Row] = []
    for row in effects:
        if not row.fence or all(row.fence > one.fence for one in found):
            found.append(row)
    return found


def restarted(stage: Stage) -> Found:
    """Kill the server while a job runs, bring it back after 2 s with all its data, and submit five more."""
    worker = stage.start()
    labels = [f"job-{number}" for number in range(6)]
    stage.send("medium", labels[0])
    stage.wait(lambda: stage.count("start", labels[0]), _BEGIN)
    stage.server.kill()
    time.sleep(2.0)
    stage.server.start()
    if worker.running:
        time.sleep(1.0)
    stage.send(*itertools.chain.from_iterable(("short", label) for label in labels[1:]))
    time.sleep(6.0)
    alive = worker.running
    if not alive:
        stage.start_only()
    stage.wait(lambda: all(stage.count("effect", label) for label in labels), _WATCH / 2)
    done = sum(1 for label in labels if stage.count("effect", label))
    twice = sum(1 for label in labels if stage.count("effect", label) > 1)
    said = f"{done} of 6 done{f', {twice} twice' if twice else ''}; the worker {'lived' if alive else 'ended'}"
    return Found(said, (done, twice, alive) == (6, 0, True))


def long_job(stage: Stage) -> Found:
    """Run a job of 25 s, with two idle workers beside the one that runs it."""
    stage.start()
    _begin(stage, "long")
    stage.start_only()
    stage.start_only()
    stage.wait(lambda: stage.count("effect", "job"), 40.0)
    runs = stage.count("start", "job")
    return Found("ran once" if runs == 1 else f"ran {runs} times, together", runs == 1)


def speed(stage: Stage) -> Found:
    """Two thousand jobs that do nothing, submitted before the worker starts; two processes."""
    stage.send(*itertools.chain.from_iterable(("noop", f"noop-{number}") for number in range(_JOBS)))
    stage.start_only()
    stage.wait(lambda: _count_effects(stage) >= _JOBS, 120.0)
    at = sorted(row.at for row in stage.rows)
    if len(at) < _JOBS:
        return Found(f"{len(at)} of {_JOBS} in 120 s")
    tenth = _JOBS // 10
    return Found(f"{(_JOBS - tenth) / (at[-1] - at[tenth]):.0f}/s")


def _count_effects(stage: Stage) -> int:
    return sum(1 for row in stage.rows if row.what == "effect")


def _begin(stage: Stage, kind: str) -> None:
    """Submit a job, and return a second after it began."""
    stage.send(kind, "job")
    if not stage.wait(lambda: stage.count("start", "job"), _BEGIN):
        message = f"{stage.contender.name}: the job did not begin in {_BEGIN:.0f} s"
        raise RuntimeError(message)
    time.sleep(1.0)


def _came_back(stage: Stage, *, since: float, effects: int) -> Found:
    """Wait until a job has run again to its end."""
    again = stage.wait(lambda: [row for row in stage.of("start", "job") if row.at > since], _WATCH)
    if not again:
        done = stage.count("effect", "job")
        return Found("done before" if done else f"not run again in {_WATCH:.0f} s", bool(done))
    seconds = stage.of("start", "job")[-1].at - since
    stage.wait(lambda: stage.count("effect", "job") >= effects, _WATCH / 2)
    done = stage.count("effect", "job")
    return Found(f"ran again after {seconds:.0f} s{'' if done else ', not to its end'}", bool(done))


Scenario = Callable[["Stage"], Found]
SCENARIOS: Final[Mapping[str, Scenario]] = {
    "killed": killed,
    "deployed": deployed,
    "submitted twice": submitted_twice,
    "poison": poison,
    "frozen": frozen,
    "server restarted": restarted,
    "long job": long_job,
    "speed": speed,
}
