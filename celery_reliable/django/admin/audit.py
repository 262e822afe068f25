"""Write into the admin's log who did what, before it is done: what cannot be logged is not done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType

from celery_reliable.cli.screens import printable

if TYPE_CHECKING:
    from django.http import HttpRequest

_NAME_LENGTH = 200


class Audited:
    """One line of the log. It says first what was asked for, and then how that ended."""

    def __init__(self, request: HttpRequest, model: Any, object_id: str, *, name: str, flag: int, asked: str) -> None:
        """Write the line."""
        self._entry = LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(model, for_concrete_model=False),
            object_id=object_id,
            object_repr=printable(name)[:_NAME_LENGTH],
            action_flag=flag,
            change_message=printable(asked),
        )

    def ended(self, how: str) -> None:
        """Say how it ended. A process that dies before leaves the line as it was: asked for, end unknown."""
        self._entry.change_message = printable(how)
        self._entry.save(update_fields=["change_message"])


def history_of(model: Any, object_id: str) -> list[LogEntry]:
    """Return the log's lines about one object, newest first."""
    kind = ContentType.objects.get_for_model(model, for_concrete_model=False)
    entries = LogEntry.objects.filter(content_type=kind, object_id=object_id).select_related("user")
    return list(entries.order_by("-action_time")[:100])
