"""`mainspring audit`

Next: operations/access.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, since_when
from mainspring.cli.render import cell, note, print_if_json, table

if TYPE_CHECKING:
    from mainspring.store.access.audit import Entry

PAGE = 500


@operation(
    "audit",
    "mainspring audit --since 24h",
    "mainspring audit --actor 'token:ci' --action 'job.*'",
    "mainspring audit --subject task:17 --json",
)
@click.option(
    "--actor", multiple=True, metavar="PATTERN", help="Who: token:ci, session:3, os:alice@host, 'os:*'; repeatable."
)
@click.option("--action", multiple=True, metavar="PATTERN", help="What was done: task.cancel, 'job.*'; repeatable.")
@click.option(
    "--subject", multiple=True, metavar="PATTERN", help="To what: task:17, job:report, 'schedule:*'; repeatable."
)
@click.option("--since", type=since_when, metavar="WHEN", help="So long ago at most: 24h; or an instant.")
@click.option("--limit", type=Whole(1, 10_000), default=50, show_default=True, metavar="N", help="The newest N.")
async def audit(client: Client, /, limit: int, **filters: Any) -> None:
    """Show who changed what, the newest first; refused attempts too."""
    found: list[Entry] = []
    cursor: str | None = None
    while True:
        page = await client.call(
            operations.access.list_audit, **filters, limit=min(PAGE, limit - len(found)), cursor=cursor
        )
        found += page.items
        cursor = page.next
        if cursor is None or len(found) >= limit:
            break
    if print_if_json(found):
        return
    table(
        ["AT", "ACTOR", "ROLE", "ACTION", "SUBJECT", "WHAT", "FROM"],
        [[one.at, one.actor, one.role, one.action, one.subject, _what(one), one.address] for one in found],
        empty="nothing was changed yet, or not by these filters",
        room=Room(cut=("ACTOR", "SUBJECT", "WHAT"), drop=("FROM", "ROLE")),
    )
    if cursor is not None:
        note(f"the newest {limit}; --limit shows more, --since and the other filters fewer")


def _what(entry: Entry) -> str:
    """`retry.retries 0 → 2`; or why it was refused."""
    if entry.refused is not None:
        return f"refused: {entry.refused}"
    if entry.changes:
        return ", ".join(
            f"{name} {cell(change.old) or '-'} → {cell(change.new) or '-'}" for name, change in entry.changes.items()
        )
    return ", ".join(f"{name} {cell(value)}" for name, value in (entry.detail or {}).items())
