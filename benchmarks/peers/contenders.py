"""Name the contenders: what is installed, how a worker is started, and what its users should know of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_APPS: Final = "benchmarks.peers.apps"
_QUICK: Final = ("--pool", "prefork", "--without-gossip", "--without-mingle", "--loglevel", "WARNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One library, or one way to set it up.

    ``command`` runs in the environment's ``bin``; ``{processes}`` and ``{url}`` are replaced. ``first`` runs once before the
    first worker, ``beside`` all the time, as the library's guide asks for it. ``variables`` are its processes' own.
    """

    name: str
    title: str
    module: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]
    python: str = ""
    """The interpreter that it needs, when not every one will do."""
    database: bool = False
    first: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def module_path(self) -> str:
        """Where its app is."""
        return f"{_APPS}.{self.module}"


def _celery(name: str, title: str, module: str, *, extra: tuple[str, ...] = ()) -> Contender:
    # hiredis for all: celery_reliable requires it, and it must not win by that.
    requirements = ("celery[redis]>=5.7,<6", "redis[hiredis]>=6.4", "packaging", *extra)
    return Contender(name=name, title=title, module=module, requirements=requirements, command=_worker(module))


def _redis_plus(name: str, title: str, module: str) -> Contender:
    return Contender(
        name=name,
        title=title,
        module=module,
        requirements=("celery>=5.7,<6", "celery-redis-plus[hiredis]", "packaging"),
        command=_worker(module),
        python="python3.13",
    )


def _worker(module: str) -> tuple[str, ...]:
    return ("celery", "-A", f"{_APPS}.{module}", "worker", *_QUICK, "--concurrency", "{processes}")


CONTENDERS: Final[Mapping[str, Contender]] = {
    one.name: one
    for one in (
        _celery("celery", "Celery, defaults", "plain"),
        _celery("celery-safe", "Celery, crash-safe", "safe"),
        _celery("celery-fast", "Celery, crash-safe, visibility timeout 10 s", "fast"),
        _celery("celery-reliable", "celery_reliable", "reliable", extra=(".",)),
        _celery("celery-once", "celery-once on crash-safe Celery, 10 s", "once", extra=("celery-once",)),
        _celery(
            "celery-singleton", "celery-singleton on crash-safe Celery, 10 s", "singleton", extra=("celery-singleton",)
        ),
        _redis_plus("celery-redis-plus", "celery-redis-plus, crash-safe", "redis_plus"),
        _redis_plus(
            "celery-redis-plus-fast", "celery-redis-plus, crash-safe, visibility timeout 10 s", "redis_plus_fast"
        ),
        Contender(
            name="relier",
            title="relier, idempotent",
            module="relier_app",
            requirements=("relier", "packaging"),
            command=(
                *("celery", "-A", "relier.tasks.app", "worker", *_QUICK, "--concurrency", "{processes}"),
                *("-Q", "high_priority,default,low_priority,re-queue", f"--include={_APPS}.relier_app"),
            ),
            beside=("rl", "run-resurrector"),
            variables=(("RELIER_REDIS_URL", "{url}"),),
        ),
        Contender(
            name="dramatiq",
            title="dramatiq",
            module="dramatiq_app",
            requirements=("dramatiq[redis]", "redis[hiredis]"),
            command=(
                *("dramatiq", f"{_APPS}.dramatiq_app", "--processes", "{processes}", "--threads", "1"),
                *("--worker-shutdown-timeout", "8000"),
            ),
        ),
        Contender(
            name="rq",
            title="rq",
            module="rq_app",
            requirements=("rq", "redis[hiredis]"),
            command=("rq", "worker-pool", "--num-workers", "{processes}", "--url", "{url}", "default"),
        ),
        Contender(
            name="huey",
            title="huey",
            module="huey_app",
            requirements=("huey", "redis[hiredis]"),
            command=("huey_consumer", f"{_APPS}.huey_app.huey", "-w", "{processes}", "-k", "process"),
        ),
        Contender(
            name="taskiq",
            title="taskiq, Redis stream",
            module="taskiq_app",
            requirements=("taskiq", "taskiq-redis", "redis[hiredis]"),
            command=(
                *("taskiq", "worker", f"{_APPS}.taskiq_app:broker", "-w", "{processes}", "--max-async-tasks", "1"),
                *("--wait-tasks-timeout", "8"),
            ),
        ),
        Contender(
            name="procrastinate",
            title="procrastinate, PostgreSQL",
            module="procrastinate_app",
            requirements=("procrastinate", "psycopg[binary,pool]"),
            command=("procrastinate", f"--app={_APPS}.procrastinate_app.app", "worker", "--concurrency", "{processes}"),
            first=("procrastinate", f"--app={_APPS}.procrastinate_app.app", "schema", "--apply"),
            database=True,
        ),
    )
}
