"""Effects in a database that is used through SQLAlchemy: inbox, outbox, and writes that a late run cannot do.

The inbox needs its table in the database of the effect: `metadata`, for ``create_all`` or Alembic's
``target_metadata``.
"""

from __future__ import annotations

from celery_reliable.contrib.sqlalchemy.inbox import transaction
from celery_reliable.contrib.sqlalchemy.outbox import outbox
from celery_reliable.contrib.sqlalchemy.sinks import fenced_update, insert_once, transition
from celery_reliable.stores.sql.schema import inbox_metadata as metadata

__all__ = ["fenced_update", "insert_once", "metadata", "outbox", "transaction", "transition"]
