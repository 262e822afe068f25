"""Submit what the plan says, until told to stop, and note what became of each call.

``python -m tests.chaos.producer`` begins after the last call that it had begun: a producer that was killed in the middle
of one does not repeat it, and nobody knows whether that job runs.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from celery import Celery, chain, chord

from celery_reliable.errors import DuplicateTask
from tests.chaos.app import make_app
from tests.chaos.plan import Submission, submission
from tests.chaos.site import Site

Member = dict[str, Any]
_MAYBE = "may still run"  # what an error says that cannot promise that nothing will run


class Producer:
    """One producing process."""

    def __init__(self, app: Celery, site: Site) -> None:
        """Take the app and the party that submits."""
        self._app, self._site, self._ledger = app, site, site.ledger
        self._pause = 1 / site.rate
        self._stopped = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self._stopped = True

    def go(self) -> None:
        """Submit until told to stop."""
        number = self._first()
        while not self._stopped:
            self._begin(number)
            self.submit(submission(self._site.seed, self._site.party, number), number=number)
            number += 1
            time.sleep(self._pause)

    def _begin(self, number: int) -> None:
        new = self._site.number.with_suffix(".new")
        new.write_text(str(number))
        new.rename(self._site.number)

    def _first(self) -> int:
        return int(self._site.number.read_text()) + 1 if self._site.number.exists() else 0

    def submit(self, what: Submission, *, number: int) -> None:
        """Submit once; note the intent before, what came of it after."""
        labels = _labels(what)
        self._ledger.note("intent", what.label, number=number, form=what.form, labels=labels)
        try:
            members = _send(self._app, what)
        except DuplicateTask:
            raise
        except Exception as exc:  # noqa: BLE001  # whatever it is: the job must not run then
            # Celery submits the members of a chord one by one: some may be on their way.
            may_run = what.form == "chord" or _MAYBE in str(exc)
            self._ledger.note("refused", what.label, labels=labels, error=repr(exc)[:300], may_run=may_run)
            return
        self._ledger.note("accepted", what.label, members=members, form=what.form)
        if what.form == "revoke":
            self._revoke(what.label, members[0]["id"])

    def _revoke(self, label: str, task_id: str) -> None:
        self._ledger.note("revoked", label)
        with contextlib.suppress(Exception):  # the broker is away: then the job runs, which is right too
            self._app.control.revoke(task_id)


def _labels(what: Submission) -> list[str]:
    if len(what.parts) == 1:
        return [what.label]
    return [f"{what.label}:{position}" for position in range(len(what.parts))]


def _send(app: Celery, what: Submission) -> list[Member]:
    """Submit, and return each job with its id, what kind of key it has, and the jobs that must be done before it runs."""
    labels = _labels(what)
    calls = [{"label": label, "work": part.to_json()} for label, part in zip(labels, what.parts, strict=True)]
    match what.form:
        case "chain":
            return _send_chain(app, calls)
        case "chord":
            return _send_chord(app, calls)
        case "link":
            return _send_link(app, calls)
        case "declared":
            app.tasks["declared"].apply_async(kwargs=calls[0], **what.options)
            return [_member(calls[0], what.label, "declared")]
        case "changed" | "fresh":
            return [_send_new(app, calls[0], what.form)]
        case _:
            sent = app.tasks["own"].apply_async(kwargs=calls[0], **what.options)
            return [_member(calls[0], sent.id, "own")]


def _send_new(app: Celery, call: dict[str, Any], form: str) -> Member:
    """Submit as the version of the code that this producer runs."""
    if form == "fresh":
        sent = app.tasks["fresh" if app.site.version == 2 else "own"].apply_async(kwargs=call)
    elif app.site.version == 2:
        sent = app.tasks["changed"].apply_async(kwargs={"label": call["label"], "plans": [call["work"]]})
    else:
        sent = app.tasks["changed"].apply_async(kwargs=call)
    return _member(call, sent.id, "own")


def _member(call: Mapping[str, Any], key: str, kind: str, *, after: list[str] | None = None) -> Member:
    return {"label": call["label"], "id": key, "kind": kind, "after": after or []}


def _send_chain(app: Celery, calls: list[dict[str, Any]]) -> list[Member]:
    first, *rest = calls
    sent = chain(app.tasks["own"].s(**first), *(app.tasks["follow"].s(**call) for call in rest)).apply_async()
    ids: list[str] = []
    while sent is not None:
        ids.insert(0, sent.id)
        sent = sent.parent
    before: list[str | None] = [None, *(call["label"] for call in calls[:-1])]
    return [
        _member(call, task_id, "given", after=[previous] if previous else [])
        for call, task_id, previous in zip(calls, ids, before, strict=True)
    ]


def _send_chord(app: Celery, calls: list[dict[str, Any]]) -> list[Member]:
    *members, last = calls
    sent = chord([app.tasks["own"].s(**call) for call in members])(app.tasks["follow"].s(**last))
    found = [_member(call, one.id, "given") for call, one in zip(members, sent.parent.results, strict=True)]
    return [*found, _member(last, sent.id, "given", after=[call["label"] for call in members])]


def _send_link(app: Celery, calls: list[dict[str, Any]]) -> list[Member]:
    first, then = calls
    sent = app.tasks["own"].apply_async(kwargs=first, link=app.tasks["follow"].s(**then))
    return [_member(first, sent.id, "own"), _member(then, "", "link", after=[first["label"]])]


def main() -> None:
    """Run as the party that the environment names."""
    site = Site.from_environment()
    Producer(make_app(site), site).go()


if __name__ == "__main__":
    main()
