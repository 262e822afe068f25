"""Ask the store about a submission, and see what it says before the message goes."""

from __future__ import annotations

from collections.abc import Callable

from celery_reliable.stores.base import Existing, New, SubmitAnswer


class Otherwise(Exception):  # not an error: the message that was built is not the one to send
    """The store did not say what the message was built for."""


class Question:
    """A submission of which the store was told. The message is built meanwhile, for a key that nobody has had before.

    Of one thread. Once it was answered, or asking has failed, it is not asked again.
    """

    __slots__ = ("_ask", "_goes", "_on_new", "answer")

    def __init__(self, ask: Callable[[], SubmitAnswer], *, on_new: Callable[[], None]) -> None:
        """Take what waits for the answer, and what is told of a new job before its message goes."""
        self._ask: Callable[[], SubmitAnswer] | None = ask
        self._on_new = on_new
        self._goes = False
        self.answer: SubmitAnswer | None = None

    def see(self) -> None:
        """Wait for the answer, the first time. Raises `Otherwise`, and what asking raises."""
        if self._goes:
            return
        answer = self.answer if self._ask is None else self._taken()
        if not (isinstance(answer, New) and answer.life == 1):
            raise Otherwise
        self._goes = True
        self._on_new()

    def accepted(self) -> bool:
        """Tell whether a message that was not sent is one that the store would have sent. Raises what asking raises."""
        answer = self.answer if self._ask is None else self._taken()
        return isinstance(answer, New) or (isinstance(answer, Existing) and answer.publish == "own")

    def _taken(self) -> SubmitAnswer:
        ask, self._ask = self._ask, None
        assert ask is not None  # noqa: S101  # its two callers look
        self.answer = ask()
        return self.answer
