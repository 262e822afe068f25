"""Events, errors, envelopes, flags, lifetimes: small parts, each with its promise."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_reliable import errors
from celery_reliable.errors import QueueFull, ReliableError
from celery_reliable.events import EVENTS, Events
from celery_reliable.lifetimes import late_after, marker_ttl
from celery_reliable.payloads import Envelope
from celery_reliable.settings import Settings
from celery_reliable.worker import flags
from celery_reliable.worker.waiting import GiveBack, Hold

EXCEPTIONS = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, ReliableError)]


class TestErrors:
    """They cross processes."""

    @pytest.mark.parametrize("cls", EXCEPTIONS)
    def test_survives_pickling_with_its_fields(self, cls: type[ReliableError]) -> None:
        """Pool children send exceptions to their parent."""
        exc = cls("text") if cls is not errors.Snooze else errors.Snooze(3, "text")
        exc.__dict__["extra"] = 7
        back = pickle.loads(pickle.dumps(exc))
        assert (type(back), back.args, back.__dict__) == (cls, exc.args, exc.__dict__)

    @pytest.mark.parametrize("cls", EXCEPTIONS)
    def test_can_be_rebuilt_from_its_args(self, cls: type[ReliableError]) -> None:
        """Celery's result backends do it."""
        exc = cls(*([3] if cls is errors.Snooze else ["text"]))
        assert cls(*exc.args).args == exc.args

    def test_draining_is_no_exception(self) -> None:
        """``except Exception`` must not swallow it."""
        assert not issubclass(errors.Draining, Exception)

    def test_fields_are_kept(self) -> None:
        """Pickled ones included."""
        assert pickle.loads(pickle.dumps(QueueFull("full", retry_after=2.5))).retry_after == 2.5


class TestEvents:
    """One table behind log and hooks."""

    def test_log_line_has_a_constant_message_and_facts_apart(self, caplog: pytest.LogCaptureFixture) -> None:
        """So that log systems can group them."""
        with caplog.at_level(logging.INFO, logger="celery_reliable"):
            Events().emit("busy", task="t", task_id="i", key="k", wait=1.5)
        (record,) = caplog.records
        assert record.getMessage() == f"busy: {EVENTS['busy'].message}"
        assert (record.reliable_event, record.reliable_wait) == ("busy", 1.5)  # type: ignore[attr-defined]

    def test_hook_gets_name_and_fields(self) -> None:
        """At every level."""
        seen: list[tuple[str, Mapping[str, Any]]] = []
        Events([lambda name, fields: seen.append((name, fields))]).emit("claimed", task="t", task_id="i", key="k")
        assert seen == [("claimed", {"task": "t", "task_id": "i", "key": "k"})]

    def test_hook_that_raises_is_logged_and_skipped(self, caplog: pytest.LogCaptureFixture) -> None:
        """It never decides a task's fate; the next hook is called."""
        seen: list[str] = []

        def broken(name: str, fields: Mapping[str, Any]) -> None:
            msg = "broken"
            raise RuntimeError(msg)

        Events([broken, lambda name, _: seen.append(name)]).emit("done", task="t", task_id="i", key="k")
        assert seen == ["done"]
        assert "event hook failed" in caplog.text

    def test_unknown_event_is_a_programming_error(self) -> None:
        """A name without documentation does not exist."""
        with pytest.raises(KeyError):
            Events().emit("nonesuch")


class TestEnvelopes:
    """A call, byte for byte."""

    @given(st.text(), st.text(max_size=40), st.dictionaries(st.text(max_size=5), st.text(), max_size=5))
    def test_survives_encoding(self, body: str, task_id: str, options: dict[str, str]) -> None:
        """Whatever it holds."""
        envelope = Envelope("t", task_id, body, options=options)
        assert Envelope.from_bytes(envelope.to_bytes()) == envelope

    def test_large_ones_are_compressed(self) -> None:
        """A backlog costs less."""
        assert len(Envelope("t", "i", "x" * 10_000).to_bytes()) < 500

    @pytest.mark.parametrize("raw", [b"", b"[]", b"[1]", b"{}", b"\xff\xfe", b"not json"])
    def test_anything_else_is_refused(self, raw: bytes) -> None:
        """With one error."""
        with pytest.raises(ValueError, match="not an envelope"):
            Envelope.from_bytes(raw)


class TestFlags:
    """What pool children see."""

    def test_child_process_sees_the_flag_without_being_told(self) -> None:
        """A started process as well as a forked one."""
        made = flags.Flags()
        code = "from celery_reliable.worker.flags import draining; print(draining())"
        try:
            before = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            made.set_draining()
            after = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        finally:
            made.close()
        assert (before.strip(), after.strip()) == ("False", "True")

    def test_no_worker_means_not_draining(self) -> None:
        """Tests, producers, eager mode."""
        assert flags.draining() is False

    def test_close_removes_the_file_and_may_be_called_twice(self) -> None:
        """Nothing is left behind."""
        made = flags.Flags()
        made.close()
        made.close()
        assert not made.path.exists()
        assert flags.VARIABLE not in os.environ

    def test_missing_file_means_not_draining(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A child that outlives its worker."""
        monkeypatch.setenv(flags.VARIABLE, "/nonexistent/flags")
        assert flags.draining() is False


class TestLifetimes:
    """How long a finished job is remembered."""

    def test_marker_lives_by_kind(self) -> None:
        """PROTOCOL T12."""
        settings = Settings(idempotency_ttl=7 * 86_400.0)
        lives = {
            kind: marker_ttl(kind, settings, ledger=True) for kind in ("declared", "derived", "slot", "own", "given")
        }
        day, hour = 86_400.0, 3600.0
        assert lives == {"declared": 7 * day, "derived": day, "slot": day, "own": hour, "given": hour}

    def test_without_a_ledger_ids_live_a_day_and_nothing_is_late(self) -> None:
        """Age proves nothing there."""
        assert marker_ttl("own", Settings(), ledger=False) == 86_400.0
        assert late_after("own", Settings(), ledger=False) == 0.0


class TestReasonsOfReject:
    """They cross from the pool child to the parent."""

    @pytest.mark.parametrize("reason", [Hold(3.0, "busy"), Hold(1.0, "store away", counted=False), GiveBack("stale")])
    def test_survives_pickling_and_reads_well(self, reason: Hold | GiveBack) -> None:
        """Celery logs it."""
        assert pickle.loads(pickle.dumps(reason)) == reason
        assert json.dumps(str(reason))
