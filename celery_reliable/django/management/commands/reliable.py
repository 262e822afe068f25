"""``manage.py reliable dlq list``: the commands of ``celery -A proj reliable``, without ``-A``."""

from __future__ import annotations

from contextlib import redirect_stdout
from typing import Any

import click
from django.apps import apps
from django.core.management import BaseCommand, CommandError

from celery_reliable import internals
from celery_reliable.cli import reliable
from celery_reliable.errors import ConfigurationError


class Command(BaseCommand):
    """Hand everything over to the command line that Celery users have; exit codes are the same."""

    help = "Look after reliable tasks: what `celery -A proj reliable` does, for this project's Celery app."
    requires_system_checks: tuple[str, ...] = ()  # whoever repairs something must not be stopped by it

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with all words as they are: options are for click to read, ``--help`` included."""
        name = f"python {argv[0]}" if argv[0].endswith(".py") else argv[0]
        try:
            context = self._context()
        except CommandError as exc:
            self.stderr.write(str(exc))
            raise SystemExit(exc.returncode) from exc
        reliable.main(args=argv[2:], prog_name=f"{name} {argv[1]}", obj=context)

    def add_arguments(self, parser: Any) -> None:
        """Take words for `handle`."""
        parser.add_argument("words", nargs="*")

    def handle(self, *_: Any, words: list[str], **options: Any) -> None:
        """Run for ``call_command("reliable", "dlq", "list")``. Raises `CommandError` where the exit code is not 0."""
        context = self._context()
        try:
            with redirect_stdout(options.get("stdout") or self.stdout._out):  # noqa: SLF001  # the stream inside
                code = reliable.main(args=words, prog_name="manage.py reliable", obj=context, standalone_mode=False)
        except click.ClickException as exc:
            raise CommandError(exc.format_message(), returncode=exc.exit_code) from exc
        except click.Abort as exc:
            raise CommandError("stopped") from exc
        if code:
            raise CommandError(f"reliable {' '.join(words)}: exit code {code}", returncode=code)

    def _context(self) -> Any:
        try:
            return internals.command_context(apps.get_app_config("celery_reliable").project.app)
        except ConfigurationError as exc:
            raise CommandError(str(exc)) from exc
