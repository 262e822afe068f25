"""Every exception of celery_reliable.

::

    ReliableError                  the root: catch this to catch all of ours
    ├── ConfigurationError         a setting, template or option is wrong; says which and what to do
    ├── StoreError                 the store refused a command
    │   ├── StoreUnavailable       the store cannot be reached; the same call may work later
    │   └── StoreFull              the store is at its memory limit
    ├── LeaseLost                  another claim took over; what this run still writes is refused
    ├── DuplicateTask              submit of a key that is alive or done, with ``on_conflict="raise"``
    ├── PayloadMismatch            the same key was submitted with other arguments
    ├── QueueFull                  the submission was refused before anything was published
    ├── ReplayRefused              this dead letter cannot be replayed (again)
    ├── SignatureRefused           a message or a kept call that no holder of ``reliable_signing_keys`` has made
    ├── Transient                  raised by a task: try again later
    ├── Permanent                  raised by a task: trying again cannot help
    │   ├── BlobLost               what was kept aside below ``reliable_blob_url`` is missing or was altered
    │   └── IncompatiblePayload    a message of an older ``payload_version`` that no upgrade could lift
    └── Snooze                     raised by a task: try later, no attempt spent
        └── BreakerOpen            a dependency fails; it was not called
    Draining (BaseException)       raised inside a task when its worker must stop now
    AlreadyCommitted (BaseException)  raised by an inbox whose effect an earlier run has committed
    ProcessKilled (BaseException)  raised by the test kit where a worker would be killed

Every one survives pickling with its fields, and can be rebuilt from ``args`` alone, as Celery's result backends do.
"""

from __future__ import annotations

from typing import Any


class ReliableError(Exception):
    """The root of every exception of celery_reliable, except `Draining`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle class, args and fields, whatever the constructor's signature."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[ReliableError], args: tuple[Any, ...], fields: dict[str, Any]) -> ReliableError:
    exc = cls.__new__(cls, *args)
    exc.args = args
    exc.__dict__.update(fields)
    return exc


class ConfigurationError(ReliableError):
    """A setting, a key template or a task option is wrong. The text gives expected, found, setting and remedy."""


class StoreError(ReliableError):
    """The store refused a command for a reason that will not go away by itself."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or is loading, read-only or failing over. The same call may work later."""


class StoreFull(StoreError):
    """The store is at its memory limit: new work is refused, finishing verbs still work."""


class LeaseLost(ReliableError):
    """Another claim took over this key; nothing that this run still writes will be accepted."""


class DuplicateTask(ReliableError):
    """The key is alive or done, and the task says ``on_conflict="raise"``.

    ``existing_id`` is the task id of the job that holds the key, ``state`` its state.
    """

    def __init__(self, *args: object, existing_id: str = "", state: str = "") -> None:
        """Keep who holds the key."""
        super().__init__(*args)
        self.existing_id = existing_id
        self.state = state


class PayloadMismatch(ReliableError):
    """The same idempotency key was submitted with other arguments. ``existing_id`` holds the key."""

    def __init__(self, *args: object, existing_id: str = "") -> None:
        """Keep who holds the key."""
        super().__init__(*args)
        self.existing_id = existing_id


class QueueFull(ReliableError):
    """The submission was refused: nothing was stored or published.

    ``queue`` has ``depth`` messages, the oldest submitted ``age`` seconds ago (None: not known); all three are empty when it
    is the store that is full. Come back in ``retry_after`` seconds (None: not known).
    """

    def __init__(
        self,
        *args: object,
        queue: str = "",
        depth: int = 0,
        age: float | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Keep what waits where, and when to come back."""
        super().__init__(*args)
        self.queue = queue
        self.depth = depth
        self.age = age
        self.retry_after = retry_after


class ReplayRefused(ReliableError):
    """The dead letter was not replayed; the text says what to do.

    ``reason``: ``gone``; ``replayed`` (or being replayed by somebody else right now); ``superseded`` by a later life;
    ``no_task`` (the app does not know the task, or its arguments no longer fit); ``no_body``; ``looping`` (it died again
    after each of several replays); ``unsigned`` (its replay would be signed, and nobody is known to have signed the call).
    """

    def __init__(self, *args: object, reason: str = "") -> None:
        """Keep why."""
        super().__init__(*args)
        self.reason = reason


class Transient(ReliableError):
    """Raise it in a task: the attempt failed, the next one may not. ``retry_after`` (seconds) is a floor for the delay."""

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        """Keep the floor."""
        super().__init__(*args)
        self.retry_after = retry_after


class Permanent(ReliableError):
    """Raise it in a task: trying again cannot help. The task is dead-lettered at once with reason ``permanent``."""


class BlobLost(Permanent):
    """What was kept aside below ``reliable_blob_url`` is missing, or its SHA-256 is not the one that was written."""


class IncompatiblePayload(Permanent):
    """A message has an older ``payload_version``, and no upgrade leads from there to what its task takes now, or one failed."""


class Snooze(ReliableError):
    """Raise it in a task (or call ``self.snooze``): run again after ``seconds``, without spending an attempt."""

    def __init__(self, seconds: float = 0.0, *args: object) -> None:
        """Keep the delay, in seconds."""
        super().__init__(seconds, *args)
        self.seconds = float(seconds)


class BreakerOpen(Snooze):
    """The dependency ``name`` fails and was not called; ask again in ``seconds``. A task that lets it pass is snoozed."""

    def __init__(self, name: str = "", seconds: float = 0.0) -> None:
        """Keep which one, and when to come back."""
        super().__init__(seconds)
        self.args = (name, seconds)
        self.name = name

    def __str__(self) -> str:
        """Say it in words."""
        return f"breaker {self.name!r} is open, nothing was called; try again in {self.seconds:.0f} s"


class SignatureRefused(ReliableError):
    """A message, or a kept call, that no holder of ``reliable_signing_keys`` has made, or that was changed since."""


class Draining(BaseException):
    """Raised inside a running task when its worker has to stop now and the drain timeout is over.

    A ``BaseException`` on purpose: ``except Exception`` and ``autoretry_for=(Exception,)`` must not swallow it.
    Save a checkpoint and let it pass; the message goes back to its queue and no attempt is spent.
    """


class ProcessKilled(BaseException):
    """Raised by `celery_reliable.testing` at a point where a worker is killed: nothing after it happens.

    Unlike at a real SIGKILL, ``finally`` blocks run; what a database would roll back is rolled back.
    """


class AlreadyCommitted(BaseException):
    """Raised by ``self.inbox()`` in place of its block: an earlier run has committed this job's effect.

    A ``BaseException`` on purpose: ``except Exception`` around the block must not swallow it. Let it pass: the task then
    ends with ``result``, the one that was committed.
    """

    def __init__(self, result: Any = None) -> None:
        """Keep what was committed."""
        super().__init__(result)
        self.result = result
