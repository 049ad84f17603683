"""`mainspring doctor`

Next: operations/condition/health.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, command, with_client
from mainspring.cli.layout import Room
from mainspring.cli.render import note, print_if_json, table
from mainspring.errors import AccessDenied, SchemaMismatch, StoreUnavailable

if TYPE_CHECKING:
    from mainspring.operations.condition.health import Health

UNWELL = 1  # the exit code


@command(
    "doctor",
    "mainspring doctor                   each check, and what to do where one fails",
    "mainspring doctor --json | jq -r '.checks[] | select(.status != \"healthy\").code'",
)
@with_client
async def doctor(client: Client) -> None:
    """Check the health of the cluster; exit code 0 if all is well, 1 if not."""
    found = await _ask(client)
    if not print_if_json(found):
        _show(found)
    if found.status != "healthy":
        click.get_current_context().exit(UNWELL)


async def _ask(client: Client) -> Health:
    """What keeps the database from being asked is a finding too."""
    try:
        return await client.call(operations.health.health, skew_limit=client.settings.skew_limit)
    except (StoreUnavailable, SchemaMismatch, AccessDenied) as error:
        return operations.health.unavailable(error)


def _show(found: Health) -> None:
    table(
        ["CHECK", "STATUS", "SINCE", "WHAT"],
        [[check.code, check.status.value, check.since, check.message] for check in found.checks],
        room=Room(fold=("WHAT",)),
    )
    note(f"the cluster is {found.status.value}")
