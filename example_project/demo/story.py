"""Let things happen to the shop, and note in its ledger what was done to it from outside."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import redis
import requests

from example_project.demo.fleet import Fleet, StoryBroken, wait_for
from example_project.demo.narrator import Narrator
from example_project.demo.picture import Picture, picture
from example_project.ledger import Event, Ledger, Row
from example_project.settings import Settings
from example_project.tasks import charge_order
from example_project.verdict import ASKED_PER_DAY, SUBMITTED, Run, runs

WORKERS = ("alpha", "bravo")
READY_TIMEOUT = 40.0
WAIT_TIMEOUT = 30.0
CELERY = ("celery", "-A", "example_project.app")


@dataclass(frozen=True, slots=True)
class Order:
    """One order of a customer."""

    order_id: str
    amount: str

    @property
    def key(self) -> str:
        """Return the key under which it is charged."""
        return f"charge:{self.order_id}"


class Story:
    """What happens, act by act. Each act ends when its end can be seen in the ledger."""

    def __init__(self, *, fleet: Fleet, narrator: Narrator, settings: Settings, record: Path, seed: int) -> None:
        """Take the shop as it is; nothing happens yet. ``record`` is where the payment service keeps its own."""
        self._fleet = fleet
        self._record = record
        self._narrator = narrator
        self._settings = settings
        self._ledger = Ledger(settings.ledger_url)
        self._chance = random.Random(seed)
        self._broker = redis.Redis.from_url(settings.broker_url)
        self._say = narrator.say

    def play(self) -> None:
        """Play all acts. Raises `StoryBroken` where one does not come to its end."""
        self._open()
        self._told_to_stop()
        self._killed()
        self._five_times()
        self._poison()
        self._close()

    def picture(self) -> Picture:
        """Return what there is to see now. Safe to call from another thread."""
        return picture(
            self._ledger.rows(),
            seconds=self._narrator.seconds,
            act=self._narrator.act,
            processes=self._fleet.processes,
            said=tuple(self._narrator.said),
            sections=self._settings.sections,
        )

    # --- the acts

    def _open(self) -> None:
        self._say("redis is up; a payment service, two workers and a beat start")
        port = self._settings.payment_url.rpartition(":")[2]
        payments = ("example_project.payments", "--port", port, "--record", str(self._record))
        self._fleet.start("payments", *payments, ready="http://")
        for name in WORKERS:
            self._start_worker(name)
        self._wait_ready("payments", *WORKERS)
        self._start_beat()
        self._say("alpha and bravo wait for work, the first day begins", mood="good")

    def _told_to_stop(self) -> None:
        self._narrator.begin("a")
        run = self._report_under_way()
        self._say(f"{run.worker} gets SIGTERM at section {run.checkpoints[-1]} of {run.key}, as in every deploy")
        signalled = self._note("signal", run, signal="SIGTERM")
        self._fleet[run.worker].ask()
        took = self._wait_gone(run.worker) - signalled
        self._say(f"{run.worker} has left, {took:.1f} s after the signal; its next version starts", mood="good")
        self._start_worker(run.worker)
        self._wait_went_on(run, since=signalled)

    def _killed(self) -> None:
        self._narrator.begin("b")
        self._wait_ready(*WORKERS)
        self._say("two workers again; beat goes on asking, the next day's report will be under way soon")
        run = self._report_under_way()
        self._say(f"{run.worker} gets SIGKILL at section {run.checkpoints[-1]} of {run.key}: no goodbye", mood="bad")
        signalled = self._note("signal", run, signal="SIGKILL")
        self._fleet[run.worker].kill()
        self._wait_gone(run.worker)
        self._wait_went_on(run, since=signalled)
        self._start_worker(run.worker)

    def _five_times(self) -> None:
        self._narrator.begin("c")
        *orders, often = [self._order(cents) for cents in ("29", "53", "00")]
        for order, status in zip(orders, (429, 503), strict=True):
            self._submit(order)
            self._say(f"order {order.order_id}: the payment service will answer {status} twice before it charges")
        self._say(f"order {often.order_id}: a nervous customer submits it {SUBMITTED} times at once")
        ids = self._submit_at_once(often, times=SUBMITTED)
        self._say(f"{SUBMITTED} calls of delay(), {len(set(ids))} task id")
        self._wait(lambda: all(map(self._invoiced, [*orders, often])), "three orders are charged and have invoices")
        self._say("all three are charged and have their invoice", mood="good")

    def _poison(self) -> None:
        self._narrator.begin("d")
        order = self._order("02")
        self._submit(order)
        self._say(f"order {order.order_id} is declined for good (402): trying again cannot help")
        letter = self._wait_letter(order)
        self._say(f"it is a dead letter, kept with its arguments: {letter['call']}", mood="bad")
        self._replace_card(order)
        self._say("the customer brings a good card, an operator replays the letter:")
        self._replay(letter, order)
        self._wait(lambda: self._invoiced(order), "the replayed order is charged")
        self._say(f"order {order.order_id} is charged and has its invoice", mood="good")

    def _close(self) -> None:
        self._narrator.begin("close")
        self._leave("beat")
        self._say("beat has left; what is under way comes to its end")
        self._wait(self._all_done, "every job comes to its end")
        self._wait(self._broker_is_empty, "no message is left in the broker")
        self._leave(*WORKERS)
        self._say("nothing is left in the broker, all workers have left", mood="good")

    # --- workers

    def _start_worker(self, name: str) -> None:
        worker = (*CELERY, "worker", "-n", f"{name}@shop", "-c", "2", "-l", "INFO")
        self._fleet.start(name, *worker, ready=f"{name}@shop ready.")

    def _start_beat(self) -> None:
        beat = (*CELERY, "beat", "-s", str(self._fleet.directory / "beat-schedule"))
        day_one = replace(self._settings, opened_at=time.time())
        self._fleet.start("beat", *beat, ready="beat: Starting", environment=day_one.to_environment())

    def _wait_ready(self, *names: str) -> None:
        for name in names:
            self._fleet[name].wait_ready(timeout=READY_TIMEOUT)

    def _leave(self, *names: str) -> None:
        for name in names:
            self._fleet[name].ask()
        for name in names:
            self._wait_gone(name)

    def _wait_gone(self, name: str) -> float:
        """Wait until the process has left, note it, and return when that was."""
        member = self._fleet[name]
        code, left_behind = member.wait_gone(timeout=WAIT_TIMEOUT)
        row = Row("gone", worker=name, pid=member.pid, detail={"exit": code, "left_behind": left_behind})
        self._ledger.append(row)
        return row.monotonic

    # --- reports

    def _report_under_way(self) -> Run:
        """Wait for a report that is neither at its beginning nor near its end, and that was asked for again meanwhile."""
        sections = self._settings.sections
        section = self._chance.randint(sections // 4, sections // 2)
        return self._wait_for_run(
            lambda run: (
                run.key.startswith("report:")
                and not run.outcome
                and section <= len(run.checkpoints) < sections * 3 // 4
                and self._times_asked(run.key) >= ASKED_PER_DAY
            ),
            f"a report is at section {section}",
        )

    def _times_asked(self, key: str) -> int:
        return sum(row.event == "submit" and row.key == key for row in self._ledger.rows())

    def _wait_went_on(self, run: Run, *, since: float) -> None:
        """Wait until the report goes on elsewhere, then for its end."""
        next_run = self._wait_for_run(
            lambda other: other.key == run.key and other.fence > run.fence and bool(other.checkpoints),
            f"{run.key} goes on",
        )
        section, took = next_run.checkpoints[0], next_run.began - since
        self._say(f"{next_run.worker} went on with {run.key} at section {section}, {took:.1f} s after", mood="good")
        self._wait(lambda: self._last_outcome(run.key) == "done", f"{run.key} is finished")
        self._say(f"{run.key} is finished", mood="good")

    # --- orders

    def _order(self, cents: str) -> Order:
        return Order(f"A-{self._chance.randint(1000, 9999)}", f"{self._chance.randint(5, 90)}.{cents}")

    def _submit(self, order: Order) -> str:
        result = charge_order.delay(order.order_id, order.amount)
        self._ledger.append(Row("submit", task=charge_order.name, key=order.key, detail={"task_id": result.id}))
        return str(result.id)

    def _submit_at_once(self, order: Order, *, times: int) -> list[str]:
        barrier = Barrier(times)

        def submit(_: int) -> str:
            barrier.wait()
            return self._submit(order)

        with ThreadPoolExecutor(times) as callers:
            return list(callers.map(submit, range(times)))

    def _invoiced(self, order: Order) -> bool:
        return self._last_outcome(order.key) == self._last_outcome(f"invoice:{order.order_id}") == "done"

    def _replace_card(self, order: Order) -> None:
        requests.put(f"{self._settings.payment_url}/cards/{order.order_id}", timeout=5).raise_for_status()

    # --- dead letters

    def _wait_letter(self, order: Order) -> Mapping[str, Any]:
        found: list[Mapping[str, Any]] = []

        def arrived() -> bool:
            letters = map(json.loads, self._dlq("list", "--json").splitlines())
            found[:] = [letter for letter in letters if letter["key"] == order.key]
            return bool(found)

        self._wait(lambda: self._last_outcome(order.key) not in {"", "done"}, "the poison order is declined")
        self._wait(arrived, "the poison order is a dead letter")
        letter = found[0]
        error = f"{letter['error_type'].rpartition('.')[2]}: {letter['error_message']}"
        detail = {"letter_id": letter["id"], "reason": letter["reason"], "error": error}
        self._ledger.append(Row("letter", key=order.key, detail=detail))
        return letter

    def _replay(self, letter: Mapping[str, Any], order: Order) -> None:
        self._say(f"  celery -A example_project.app reliable dlq replay {letter['id']}")
        self._ledger.append(Row("replay", key=order.key, detail={"letter_id": letter["id"]}))
        self._dlq("replay", letter["id"])

    def _dlq(self, *arguments: str) -> str:
        command = [sys.executable, "-m", *CELERY, "reliable", "dlq", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
            raise StoryBroken(msg)
        return done.stdout

    # --- looking and waiting

    def _runs(self) -> list[Run]:
        return runs(self._ledger.rows())

    def _last_outcome(self, key: str) -> str:
        mates = [run for run in self._runs() if run.key == key]
        return mates[-1].outcome if mates else ""

    def _wait_for_run(self, wanted: Callable[[Run], bool], what: str) -> Run:
        found: list[Run] = []

        def seen() -> bool:
            found[:] = [run for run in self._runs() if wanted(run)]
            return bool(found)

        self._wait(seen, what)
        return found[0]

    def _all_done(self) -> bool:
        rows = self._ledger.rows()
        last = {run.key: run.outcome for run in runs(rows)}
        return all(last.get(row.key) == "done" for row in rows if row.event in {"submit", "start"})

    def _broker_is_empty(self) -> bool:
        return not self._broker.llen("celery") and not self._broker.hlen("unacked")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, timeout=WAIT_TIMEOUT, what=what)

    def _note(self, event: Event, run: Run, **detail: str) -> float:
        """Note what is done to a run, and return when."""
        pid = self._fleet[run.worker].pid
        row = Row(event, run.task, run.key, run.fence, worker=run.worker, pid=pid, detail=detail)
        self._ledger.append(row)
        return row.monotonic
