"""Run one delivery of a task: claim, run, judge, settle.

Everything here happens where the body runs: in the pool child, the thread or the greenlet. `life.Execution.perform` is
the life of a task on one screen. A delivery ends in one of four ways: the tracer gets a result, the task's failure,
Celery's Retry or Ignore (then the message is acked), or a `Reject` that carries a `Hold` or a `GiveBack` (then it is
not).
"""

from __future__ import annotations

from celery_reliable.execution.eager import run_eagerly
from celery_reliable.execution.life import Execution
from celery_reliable.execution.verdicts import RetryAsked

__all__ = ["Execution", "RetryAsked", "run_eagerly"]
