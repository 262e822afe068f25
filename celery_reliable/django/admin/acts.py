"""Do one thing to one letter on behalf of a user, and write it into the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import CHANGE, DELETION
from kombu.exceptions import OperationalError

from celery_reliable.django.admin.audit import Audited
from celery_reliable.errors import ReliableError, ReplayRefused

if TYPE_CHECKING:
    from django.http import HttpRequest

    from celery_reliable.dead_letters import DeadLetters


class Acts:
    """Each act returns why it was refused, None when it was done; what store and broker raise is passed on."""

    def __init__(self, request: HttpRequest, model: Any, letters: DeadLetters, *, force: bool, sign: bool) -> None:
        """Take who asks, and of what."""
        self._request, self._model, self._letters = request, model, letters
        self._force, self._sign = force, sign
        self._who = request.user.get_username()

    def check(self, letter_id: str) -> ReplayRefused | None:
        """Say whether a replay would be refused; changes nothing, so it is not logged."""
        try:
            self._letters.check(letter_id, who=self._who, force=self._force, sign=self._sign)
        except ReplayRefused as exc:
            return exc
        return None

    def replay(self, letter_id: str, **changes: Any) -> ReplayRefused | None:
        """Replay a letter, with other arguments if some are given."""
        how = "Replayed with other arguments" if changes else "Replayed"
        options = {"who": self._who, "force": self._force, "sign": self._sign, **changes}
        return self._logged(
            letter_id,
            lambda: f"{how} as task {self._letters.replay(letter_id, **options)}.",
            flag=CHANGE,
            name="Replay",
        )

    def discard(self, letter_id: str) -> ReplayRefused | None:
        """Discard a letter."""
        return self._logged(letter_id, lambda: self._discarded(letter_id), flag=DELETION, name="Discard")

    def _discarded(self, letter_id: str) -> str:
        if not self._letters.discard(letter_id, who=self._who):
            raise ReplayRefused(f"dead letter {letter_id} was gone already", reason="gone")
        return "Discarded."

    def _logged(self, letter_id: str, act: Callable[[], str], *, flag: int, name: str) -> ReplayRefused | None:
        letter = self._letters.show(letter_id)
        title = f"{letter.task} {letter_id}" if letter else letter_id
        line = Audited(self._request, self._model, letter_id, name=title, flag=flag, asked=f"{name} asked for.")
        try:
            line.ended(act())
        except ReplayRefused as exc:
            line.ended(f"{name} refused: {exc}")
            return exc
        except (ReliableError, OperationalError) as exc:
            line.ended(f"{name} not known to be done: {exc}")
            raise
        return None
