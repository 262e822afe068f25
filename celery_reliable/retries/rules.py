"""Judge an exception by the built-in rules, importing none of the libraries that raise.

The first opinion counts: what the exception *carries* (an HTTP answer, a SQLSTATE); what it *wraps*, if its class is
known to translate another library's error; its *class* (see `table`). The cause of any other exception is not asked: who
wrote ``raise Mine from exc`` chose the meaning.
"""

from __future__ import annotations

from typing import Final

from celery_reliable.retries import codes
from celery_reliable.retries.answers import Clock, judge_answer
from celery_reliable.retries.peek import names, peek
from celery_reliable.retries.table import BY_CLASS, TRANSLATES, Rule
from celery_reliable.retries.verdict import Verdict

_DEPTH: Final = 8  # requests -> urllib3 -> urllib3 -> ssl is 4; a ring of causes must end too


def judge_by_rules(exc: BaseException, *, clock: Clock, depth: int = _DEPTH) -> Verdict | None:
    """Return what the first rule that knows this exception says; None when none does."""
    return _by_content(exc, clock=clock) or _by_wrapped(exc, clock=clock, depth=depth) or _by_class(exc)


def _by_content(exc: BaseException, *, clock: Clock) -> Verdict | None:
    return judge_answer(exc, clock=clock) or codes.judge_sqlstate(exc) or codes.judge_invalidated(exc)


def _by_wrapped(exc: BaseException, *, clock: Clock, depth: int) -> Verdict | None:
    if not depth or TRANSLATES.isdisjoint(names(exc)):
        return None
    wrapped = _wrapped(exc)
    return None if wrapped is None else judge_by_rules(wrapped, clock=clock, depth=depth - 1)


def _wrapped(exc: BaseException) -> BaseException | None:
    """Return the error that ``exc`` translates, wherever its library keeps it."""
    places = (peek(exc, "orig"), peek(exc, "reason"), peek(exc, "kwargs", "error"), *exc.args, exc.__cause__)
    return next((place for place in places if isinstance(place, BaseException)), None)


def _by_class(exc: BaseException) -> Verdict | None:
    rules = (BY_CLASS[name] for name in names(exc) if name in BY_CLASS)
    opinion = next(filter(None, (_apply(rule, exc) for rule in rules)), None)
    if opinion is None and not isinstance(exc, Exception):
        return Verdict.fail(rule="exit")
    return opinion


def _apply(rule: Rule, exc: BaseException) -> Verdict | None:
    if callable(rule.verdict):
        return rule.verdict(exc)
    if rule.verdict == "retry":
        return Verdict.retry(rule=rule.name, reason=rule.reason or "exhausted")
    return Verdict.fail(rule=rule.name, reason=rule.reason or "permanent")
