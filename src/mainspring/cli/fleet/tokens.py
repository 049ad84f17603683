"""`mainspring token create | list | revoke`

Next: operations/access.py
"""

from __future__ import annotations

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, name_of
from mainspring.cli.render import confirm, note, print_if_json, table
from mainspring.model.words.durations import seconds


@click.group(cls=Group, epilog=examples("mainspring token create rack-7"))
def token() -> None:
    """Let agents in, and shut them out."""


@token.operation(
    "create",
    "mainspring token create rack-7          for many agents, until revoked",
    "mainspring token create laptop --once   for one agent, within an hour",
    "mainspring token create web --agent 'web-*' --label app=shop",
    "MAINSPRING_TOKEN=$(mainspring token create rack-7) mainspring agent --server wss://10.0.0.1:7070",
)
@click.argument("name", type=name_of("name"))
@click.option(
    "--expires", metavar="DURATION", help="After this long it ends, with the sessions of its agents; with --once: 1h."
)
@click.option("--once", is_flag=True, help="For one agent, which gets a credential of its own.")
@click.option("--agent", multiple=True, metavar="PATTERN", help="Names its agents may have, as web-*; repeatable.")
@click.option(
    "--label", multiple=True, metavar="NAME[=VALUE]", help="Labels and offers they may have; repeatable, wildcards."
)
async def create(
    client: Client, name: str, expires: str | None, once: bool, agent: tuple[str, ...], label: tuple[str, ...]
) -> None:
    """Make a token for agents; prints it, this once."""
    made = await client.call(
        operations.access.create_token,
        name,
        expires=seconds(expires or "1h", field="expires", at_least=1.0) if expires or once else None,
        once=once,
        agents=agent,
        labels=label,
    )
    if not print_if_json(made):
        click.echo(made.token)
        note(f"token {made.id}; nobody can read it again: keep it where agents find it, such as MAINSPRING_TOKEN")


@token.operation("list", "mainspring token list")
async def list_tokens(client: Client) -> None:
    """Show the tokens there are, without their secrets."""
    found = await client.call(operations.access.list_tokens)
    if print_if_json(found):
        return
    table(
        ["ID", "NAME", "ROLE", "ONCE", "AGENTS", "LABELS", "CREATED", "EXPIRES", "USED", "REVOKED"],
        [
            [
                *(t.id, t.name, t.role, t.once or None, ", ".join(t.agents or ()) or None),
                *(", ".join(t.labels or ()) or None, t.created_at, t.expires_at, t.used_at, t.revoked_at),
            ]
            for t in found
        ],
        empty="no tokens yet; make one with `mainspring token create NAME`",
        room=Room(cut=("NAME", "AGENTS", "LABELS"), drop=("ROLE", "ONCE", "CREATED", "EXPIRES")),
    )


@token.operation("revoke", "mainspring token revoke 3")
@click.argument("id", type=Whole(1, 2**31 - 1))
async def revoke(client: Client, id: int) -> None:
    """End a token: agents that came with it are cut off within seconds."""
    await client.call(operations.access.revoke_token, id)
    confirm({"id": id, "revoked": True}, "revoked")
