"""Find the Celery app of a Django project, and what its pages need of it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from celery_reliable.app_letters import known_letters_of, seen_by
from celery_reliable.errors import ConfigurationError
from celery_reliable.internals import loaded_app
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from celery_reliable.dead_letters import DeadLetter, DeadLetters
    from celery_reliable.stores.base import Store

NO_APP: Final = (
    "no Celery app is loaded in this process, so it is not known which broker and store are meant. Import yours in the "
    "project's package, for example in mysite/__init__.py: from .celery import app as celery_app"
)


class Project:
    """The project's Celery app, looked for when it is needed, and found in every thread from then on."""

    @cached_property
    def app(self) -> Celery:
        """Return the app. Raises `ConfigurationError` when none was made in this process."""
        found = loaded_app()
        if found is None:
            raise ConfigurationError(NO_APP)
        return found

    @property
    def store(self) -> Store:
        """The store."""
        return runtime_of(self.app).store

    @property
    def letters(self) -> DeadLetters:
        """The dead letters, its task modules imported so that its tasks are known."""
        _ = self._tasks
        return known_letters_of(self.app)

    @property
    def seen(self) -> Callable[[DeadLetter], DeadLetter]:
        """What makes of a letter the one that may be shown."""
        return seen_by(self.app)

    @property
    def signs(self) -> bool:
        """Whether its messages are signed."""
        return bool(runtime_of(self.app).settings.signing_keys)

    @property
    def task_names(self) -> list[str]:
        """Return the names of the project's tasks."""
        return sorted(name for name in self._tasks.tasks if not name.startswith("celery."))

    @cached_property
    def _tasks(self) -> Celery:
        """Import the task modules once: with Celery's own Django fixup each import runs the system checks."""
        self.app.loader.import_default_modules()
        return self.app
