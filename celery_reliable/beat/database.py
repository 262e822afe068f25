"""Put leadership over django-celery-beat's scheduler."""

from __future__ import annotations

from typing import Any

from celery_reliable.beat import schedules
from celery_reliable.beat.mixin import LeaderMixin


class DatabaseMixin(LeaderMixin):
    """For `django_celery_beat.schedulers.DatabaseScheduler` (2.9), whose entries are rows."""

    def reset_wrapped(self) -> None:
        """Read the rows anew, and forget what the last leadership would have written back."""
        super().reset_wrapped()
        self._dirty.clear()
        self._schedule = None
        self._initial_read = True

    def close_wrapped(self) -> None:
        """Write nothing back: the rows are the new leader's."""
        self._dirty.clear()

    def all_as_schedule(self) -> dict[str, Any]:
        """Return the entries of all enabled rows; one that cannot be read must not stop the others."""
        found: dict[str, Any] = {}
        for model in self.enabled_models():
            try:
                found[model.name] = self.Entry(model, app=self.app)
            except Exception as exc:  # noqa: BLE001  # an impossible crontab, arguments that are no JSON
                self._events.emit("schedule_failed", entry=model.name, error=repr(exc))
        return found

    def _get_crontab_exclude_query(self) -> Any:
        """Leave no crontab out: one that is hours away may have been missed, and a row that is gone counts as disabled."""
        from django.db.models import Q  # noqa: PLC0415  # django is there when this scheduler is

        return Q()

    def put_last_run(self, entry: Any, when: Any) -> None:
        """Show the slot in the row, too."""
        entry.last_run_at = entry.model.last_run_at = when

    def is_disabled(self, entry: Any) -> bool:
        """Tell whether the row is switched off."""
        return not entry.model.enabled

    def _blocked_for(self, entry: Any, *, now: int) -> float | None:
        """Spare most rows the questions of `Slotting._blocked_for`: those without start, end and count."""
        row = entry.model
        asks_no_more = type(entry).is_due.__module__ == "django_celery_beat.schedulers"  # else the project's own kind
        if asks_no_more and row.enabled and row.start_time is None and row.expires is None and not row.one_off:
            return None
        return super()._blocked_for(entry, now=now)

    def starts_at(self, entry: Any) -> int:
        """Return the row's start."""
        start = entry.model.start_time
        return 0 if start is None else schedules.moment_of(start)


def __getattr__(name: str) -> Any:
    """Make the class when it is asked for: Django must be set up by then."""
    if name != "ReliableDatabaseScheduler":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from celery_reliable.beat.wrapping import class_over  # noqa: PLC0415

    return class_over("django_celery_beat.schedulers:DatabaseScheduler")
