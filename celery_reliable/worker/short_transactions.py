"""Note and acknowledge messages of a Redis broker in a quarter of redis-py's time.

For every message kombu (5.7) sends two small transactions: what was received goes into ``unacked``, and out of it when
it is acknowledged. Both may be repeated without harm. redis-py (8.1) spends more time on each than all else that is done
for a message in the worker's main process, and waits for the answer to each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from celery_reliable.stores.redis_line import Line, ReplyError, pack_command

_REPEATABLE = frozenset({"HDEL", "HSET", "ZADD", "ZREM"})
_TAKES_AWAY = frozenset({"HDEL", "ZREM"})
_MULTI, _EXEC = pack_command(("MULTI",)), pack_command(("EXEC",))
MOST_OWED = 16
"""Transactions whose answers may lie unread on one connection."""
_MOST_IDLE = 8
_MOST_LOOKS = 5  # in vain, before an answer is given up
_LONGEST_REST = 25.0  # seconds unused, after which a connection may be lost without a word; as kombu's health checks

Commands = Sequence[tuple[tuple[Any, ...], Any]]
"""What a pipeline of redis-py has collected: the words of each command, and options for its reply."""


class _Talk:
    """A connection, and the transactions on it whose answers are not read yet."""

    __slots__ = ("line", "looks", "owed", "used")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.looks = 0  # in vain, for answers
        self.owed: list[Commands] = []
        self.used = time.monotonic()


class ShortTransactions:
    """Send the short transactions of one client on connections of their own.

    Guarantee: one that only takes away, as an ack does, is sent when `send` returns, and its answer is read with that to
    a later one, or by `settle`; until then a broken connection or an error of the server may have undone it, and it is
    sent again by redis-py. An ack that is lost for good, because Redis was silent for long or away, has a second delivery
    for a consequence, as one that kombu could not send. Every other one is answered when `send` returns. Safe for threads and greenlets.
    """

    def __init__(self, client: Any, *, ordinary: Callable[[Commands], Any]) -> None:
        """Take a redis-py client, and what sends commands as redis-py does; nothing connects before the first use."""
        self._pool, self._ordinary = client.connection_pool, ordinary
        self._idle: deque[_Talk] = deque()
        self._closed = False

    def send(self, commands: Commands) -> Any:
        """Send; return the answers of the commands, None when they come later. Raises what redis-py raises."""
        talk = self._take()
        packed = b"".join([pack_command(words) for words, _ in commands])
        bare = _only_takes_away(commands)
        try:
            talk.owed.append(commands)
            talk.line.send(packed if bare else _MULTI + packed + _EXEC)
            later = bare and len(talk.owed) <= MOST_OWED and not self._closed
            answers = None if later else _read(talk)
        except (OSError, ReplyError):
            talk.line.close()
            return self._again(talk.owed)
        except BaseException:
            talk.line.close()  # an interrupted exchange leaves an answer behind
            raise
        self._keep(talk)
        return answers

    def _take(self) -> _Talk:
        now = time.monotonic()
        with suppress(IndexError):
            talk = self._idle.pop()
            if now - talk.used <= _LONGEST_REST:
                talk.used = now
                return talk
            talk.line.close()
        options = {**self._pool.connection_kwargs, "protocol": 2}  # what a `Line` reads
        return _Talk(Line(self._pool.connection_class(**options)))

    @property
    def owed(self) -> int:
        """How many transactions were sent whose answers are not read."""
        return sum(len(talk.owed) for talk in tuple(self._idle))

    def settle(self) -> None:
        """Read what has been answered, and send again what was not done; never wait. Raises what redis-py raises."""
        for _ in range(len(self._idle)):
            try:
                talk = self._idle.popleft()
            except IndexError:
                return
            self._settle(talk)

    def _settle(self, talk: _Talk) -> None:
        if talk.owed and not talk.line.has_replies():
            talk.looks += 1
            if talk.looks > _MOST_LOOKS:
                talk.line.close()  # given up: the message may be another worker's by now
            else:
                self._keep(talk)
            return
        try:
            _read(talk)
        except (OSError, ReplyError):
            talk.line.close()
            self._again(talk.owed)
        except BaseException:
            talk.line.close()  # as in `send`
            raise
        else:
            self._keep(talk)

    def close(self) -> None:
        """Close every idle connection; answers that are owed stay unread. What is sent after this is answered at once."""
        self._closed = True
        while self._idle:
            self._idle.pop().line.close()

    def _again(self, owed: Sequence[Commands]) -> Any:
        """Send by redis-py, which connects anew and raises its own errors; return the answers to the last one."""
        return [self._ordinary(commands) for commands in owed][-1]

    def _keep(self, talk: _Talk) -> None:
        if not self._closed and (talk.owed or len(self._idle) < _MOST_IDLE):
            self._idle.append(talk)
        else:
            talk.line.close()


def _read(talk: _Talk) -> Any:
    """Return the answers to the last transaction, after those before it. Raises `ReplyError` for any that was not done."""
    answers: Any = None
    for commands in talk.owed:
        if _only_takes_away(commands):
            replies = answers = talk.line.receive(len(commands))
        else:
            replies = talk.line.receive(len(commands) + 2)
            answers = replies[-1]
            replies += answers if isinstance(answers, list) else ()
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
    talk.owed.clear()
    talk.looks = 0
    return answers


def _only_takes_away(commands: Commands) -> bool:
    """Tell whether commands need no ``MULTI``, in which a full Redis (7) refuses even what frees memory."""
    return all(words[0] in _TAKES_AWAY for words, _ in commands)


def shorten(client: Any) -> ShortTransactions:
    """Let a client's pipelines send their short transactions by themselves, all others as before."""
    pipeline = client.pipeline
    ordinary: Any = type(pipeline())

    def by_redis_py(commands: Commands) -> Any:
        with pipeline(transaction=not _only_takes_away(commands)) as pipe:
            pipe.command_stack = list(commands)
            return pipe.execute()

    transactions = ShortTransactions(client, ordinary=by_redis_py)

    class Pipeline(ordinary):  # redis-py's, or kombu's with a prefix
        command_stack: Any

        def execute(self, raise_on_error: bool = True) -> Any:  # noqa: FBT001, FBT002  # redis-py's signature
            commands = self.command_stack
            if (
                not commands
                or self.watching
                or not self.transaction
                or any(words[0] not in _REPEATABLE for words, _ in commands)
            ):
                return super().execute(raise_on_error)
            self.command_stack = []
            return transactions.send(commands)

    prefix = {"global_keyprefix": client.global_keyprefix} if hasattr(client, "global_keyprefix") else {}

    def make(transaction: bool = True, shard_hint: Any = None) -> Any:  # noqa: FBT001, FBT002  # redis-py's signature
        return Pipeline(client.connection_pool, client.response_callbacks, transaction, shard_hint, **prefix)

    client.pipeline = make
    return transactions
