"""Make the tables of a store in a database, or print what makes them."""

from __future__ import annotations

import click

from celery_reliable.cli import screens
from celery_reliable.errors import ReliableError
from celery_reliable.runtime import runtime_of
from celery_reliable.stores.sql import SqlStore


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the statements; change nothing.")
@click.pass_context
def schema(ctx: click.Context, /, *, only_print: bool) -> None:
    """Make the tables that reliable_store_url needs, where they are not there yet."""
    with screens.in_one_line(ReliableError):
        store = runtime_of(ctx.obj.app).store
        if not isinstance(store, SqlStore):
            click.echo("Nothing to do: this store (reliable_store_url) is no database and needs no tables.")
            return
        statements = store.schema()
        if only_print:
            click.echo("".join(f"{statement};\n\n" for statement in statements).rstrip())
            return
        store.create_tables()
        click.echo("The tables are there.")
