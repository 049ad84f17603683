"""`mainspring grant | revoke`

Next: operations/access.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, with_options
from mainspring.cli.render import note, print_if_json

if TYPE_CHECKING:
    from mainspring.operations.access import Change
    from mainspring.store.postgres.roles import Kind

_arguments = with_options(
    click.argument("kind", type=click.Choice(["producer", "viewer", "server"]), metavar="producer|viewer|server"),
    click.argument("role"),
    click.option("--dry-run", is_flag=True, help="Print the SQL, and change nothing."),
)


@operation(
    "grant",
    "mainspring grant producer shop              it submits tasks and sees its own",
    "mainspring grant viewer reports             it reads everything and changes nothing",
    "mainspring grant server scheduler           servers and workers connect with it",
    "mainspring grant server scheduler --dry-run | psql shop",
)
@_arguments
async def grant(client: Client, kind: Kind, role: str, dry_run: bool) -> None:
    """Give a role of PostgreSQL the rights that it needs, and those alone."""
    made = await client.call(operations.access.grant_role, kind, role, dry_run=dry_run)
    _show(made, f"{role} is a {kind}")


@operation("revoke", "mainspring revoke producer shop", "mainspring revoke server scheduler --dry-run")
@_arguments
async def revoke(client: Client, kind: Kind, role: str, dry_run: bool) -> None:
    """Take from a role of PostgreSQL all rights on the schema."""
    made = await client.call(operations.access.revoke_role, kind, role, dry_run=dry_run)
    _show(made, f"{role} has no rights any more")


def _show(made: Change, done: str) -> None:
    if print_if_json(made):
        return
    if made.done:
        note(done)
    else:
        click.echo("\n".join(f"{statement};" for statement in made.statements))
