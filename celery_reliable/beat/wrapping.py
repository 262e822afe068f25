"""Choose the class that puts leadership over the scheduler a project uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_reliable.beat.mixin import LeaderMixin
from celery_reliable.errors import ConfigurationError
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery


class _OfConfiguration(LeaderMixin):
    """What Celery's two schedulers share: entries of ``beat_schedule``, of which a wrong one must not stop the rest."""

    def merge_inplace(self, b: Any) -> None:
        """Take entries over from the configuration, those that can be made."""
        try:
            super().merge_inplace(b)
        except Exception:  # noqa: BLE001  # an entry that cannot be made: find which
            super().merge_inplace({name: fields for name, fields in b.items() if self._can_be_made(name, fields)})

    def _can_be_made(self, name: str, fields: Any) -> bool:
        try:
            self.Entry(**dict(fields, name=name, app=self.app))
        except Exception as exc:  # noqa: BLE001  # whatever the project wrote
            self._events.emit("schedule_failed", entry=name, error=repr(exc))
            return False
        return True


class ReliableMemoryScheduler(_OfConfiguration, Scheduler):
    """Celery's `Scheduler`, which keeps nothing on disk: last slots are in the store."""


class PersistentMixin(_OfConfiguration):
    """For Celery's `PersistentScheduler`: a file that cannot be read is replaced, or else done without."""

    _store: Any

    def _open_schedule(self) -> Any:
        try:
            return super()._open_schedule()
        except Exception as exc:  # noqa: BLE001  # every dbm has its own
            return self._destroy_open_corrupted_schedule(exc)

    def _destroy_open_corrupted_schedule(self, exc: Exception) -> Any:
        try:
            self._remove_db()
            return self.persistence.open(self.schedule_filename, writeback=True)
        except Exception:  # noqa: BLE001  # no such directory, no right to write, somebody else's lock
            self._events.emit("schedule_file_unusable", file=str(self.schedule_filename), error=repr(exc))
            return _NoFile()

    def close_wrapped(self) -> None:
        """Close the file: the beat that leads may be on this host."""
        kept, self._store = self._store, None
        if kept is not None:
            kept.close()


class ReliablePersistentScheduler(PersistentMixin, PersistentScheduler):
    """Celery's `PersistentScheduler`. Its file is a convenience: what has fired stands in the store."""


class _NoFile(dict[str, Any]):
    """Stands for the file when there is none."""

    def sync(self) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Keep nothing."""


class ReliableScheduler:
    """Make the scheduler that ``reliable_beat_scheduler`` names reliable: ``celery beat -S`` takes this class.

    .. versionadded:: 0.1
    """

    def __new__(cls, app: Celery, *args: Any, **kwargs: Any) -> Any:
        """Return an instance of the right class."""
        return class_over(runtime_of(app).settings.beat_scheduler)(app, *args, **kwargs)


def class_over(name: str) -> type[Any]:
    """Return a scheduler class with leadership over the one that is named. Raises `ConfigurationError`."""
    wrapped = _named(name)
    if wrapped is ReliableScheduler or issubclass(wrapped, LeaderMixin):
        msg = (
            f"reliable_beat_scheduler: expected the scheduler to wrap, found {name!r}, which is reliable by itself; "
            f"name it with `celery beat -S`, or set the scheduler that you used before"
        )
        raise ConfigurationError(msg)
    return type(f"Reliable{wrapped.__name__}", (_mixin_for(wrapped), wrapped), {"__module__": __name__})


def _named(name: str) -> type[Any]:
    try:
        found: type[Any] = symbol_by_name(name, aliases=dict(load_extension_class_names("celery.beat_schedulers")))
    except (ImportError, AttributeError) as exc:
        msg = f"reliable_beat_scheduler: expected the path of a scheduler, found {name!r}: {exc}; correct it, or install it"
        raise ConfigurationError(msg) from exc
    return found


def _mixin_for(wrapped: type[Any]) -> type[LeaderMixin]:
    """Return the mixin that knows a kind of scheduler, by what only that kind has."""
    if hasattr(wrapped, "enabled_models"):
        from celery_reliable.beat.database import DatabaseMixin  # noqa: PLC0415  # needs django

        return DatabaseMixin
    if hasattr(wrapped, "maybe_due"):
        from celery_reliable.beat.redbeat import RedBeatMixin  # noqa: PLC0415  # needs redbeat

        return RedBeatMixin
    return PersistentMixin if issubclass(wrapped, PersistentScheduler) else _OfConfiguration
