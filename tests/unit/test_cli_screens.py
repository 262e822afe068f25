"""How a dead letter of a message that could not be read looks to an operator."""

from __future__ import annotations

import base64
import io

import pytest
from rich.console import Console

from celery_reliable.cli import screens
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.payloads import RawMessage


def shown(*, item: bool, content: bytes = b"\xff\x1b[31mhello" + b"x" * 300) -> str:
    """Return the screen of one letter."""
    raw = RawMessage(queue="fast", body=base64.b64encode(content).decode(), content_type="text/plain", item=item)
    letter = DeadLetter.of(None, reason="undecodable", envelope=None, message="no JSON", raw=raw, task_id="m", now=1.0)
    output = io.StringIO()
    screens.show_letter(Console(file=output, width=120, color_system=None), letter, now=2.0)
    return output.getvalue()


def test_message_is_described_and_its_beginning_shown_harmlessly() -> None:
    """Size, type, queue, why, and bytes that cannot drive the terminal."""
    screen = shown(item=False)
    for text in ("<message 311 bytes text/plain>", "no JSON", "fast", r"\xff\x1b[31mhello", "(111 more"):
        assert text in screen
    assert "\x1b" not in screen


@pytest.mark.parametrize(("item", "expected"), [(False, True), (True, False)])
def test_only_what_can_go_back_is_offered_to(*, item: bool, expected: bool) -> None:
    """A message by force; an item of a queue that is no message never."""
    screen = shown(item=item)
    assert ("--force" in screen) == expected
    assert "Send it back" not in screen
    assert "discard" in screen
