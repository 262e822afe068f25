"""What a worker forks when it starts: our threads begin after that."""

from __future__ import annotations

AFTER_FORKS = (
    "celery_reliable.worker.preflight:Preflight",
    "celery.worker.components:Pool",
    "celery.worker.components:Beat",
)
"""Requirements of each worker step that starts a thread.

A process that is forked while another thread imports a module inherits the lock of that module, and nobody who frees it; what
`internals.free_locks_in_children` frees is not all. An embedded beat stood still for ever. Celery (5.7) orders steps by nothing
but their requirements, so a step that does not require both begins before or after them by chance.
"""
