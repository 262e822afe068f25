"""Decide what follows a failed attempt.

Two pure steps, nothing acts here::

    exception ── judge() ──► Verdict ── next_step() ──► Release(outcome, delay)   give the right back, run again later
                             retry / fail / snooze      Bury(reason)              dead letter

`judge` asks in this order, the first opinion counts: the exceptions of celery_reliable that *are* a verdict, the task's
``classify``, its ``fail_on`` and ``retry_on``, the built-in rules, and at last ``on_unknown_error``. The rules know
many libraries by the names of their classes and import none of them.
"""

from __future__ import annotations

from celery_reliable.retries.delays import LONGEST_WAIT, Bury, Release, delay, next_step
from celery_reliable.retries.judging import judge
from celery_reliable.retries.verdict import Verdict

__all__ = ["LONGEST_WAIT", "Bury", "Release", "Verdict", "delay", "judge", "next_step"]
