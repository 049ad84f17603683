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
from mainspring.errors import ServerUnavailable
from mainspring.model.words.durations import seconds

ROLES = ("agent", "viewer", "submitter", "operator", "admin", "metrics")


@click.group(
    cls=Group, epilog=examples("mainspring token create rack-7", "mainspring token create ci --role submitter")
)
def token() -> None:
    """Let agents and programs in, and shut them out."""


@token.operation(
    "create",
    "mainspring token create rack-7          for many agents, until revoked",
    "mainspring token create laptop --once   for one agent, within an hour",
    "mainspring token create web --agent 'web-*' --label app=shop",
    "mainspring token create ci --role submitter --jobs 'report*' --expires 30d",
    "MAINSPRING_TOKEN=$(mainspring token create rack-7) mainspring agent --server wss://10.0.0.1:7070",
)
@click.argument("name", type=name_of("name"))
@click.option("--role", type=click.Choice(ROLES), default="agent", show_default=True, help="What it may do.")
@click.option("--jobs", multiple=True, metavar="PATTERN", help="Only these jobs, as report*; repeatable.")
@click.option("--rate", type=float, metavar="N", help="Requests per second that it may make; no limit.")
@click.option("--expires", metavar="DURATION", help="After this long it ends, with what came from it; with --once: 1h.")
@click.option("--once", is_flag=True, help="For one agent, which gets a credential of its own.")
@click.option("--agent", multiple=True, metavar="PATTERN", help="Names its agents may have, as web-*; repeatable.")
@click.option(
    "--label", multiple=True, metavar="NAME[=VALUE]", help="Labels and offers they may have; repeatable, wildcards."
)
async def create(
    client: Client,
    name: str,
    role: str,
    jobs: tuple[str, ...],
    rate: float | None,
    expires: str | None,
    once: bool,
    agent: tuple[str, ...],
    label: tuple[str, ...],
) -> None:
    """Make a token; prints it, this once."""
    from mainspring.model.access.actors import Role

    lifetime = seconds(expires or "1h", field="expires", at_least=1.0) if expires or once else None
    made = await client.call(
        operations.access.create_token,
        name,
        role=Role(role),
        jobs=jobs,
        rate=rate,
        expires=lifetime,
        once=once,
        agents=agent,
        labels=label,
    )
    if made.token is None:
        raise ServerUnavailable(
            f"token {made.id} was made, and lost with the server's answer; revoke it with "
            f"`mainspring token revoke {made.id}`, and make another"
        )
    if not print_if_json(made):
        click.echo(made.token)
        where = "where agents find it, such as MAINSPRING_TOKEN" if role == "agent" else "in a safe place"
        note(f"token {made.id}, {role}; nobody can read it again: keep it {where}")


@token.operation("list", "mainspring token list")
async def list_tokens(client: Client) -> None:
    """Show the tokens there are, without their secrets."""
    found = await client.every(operations.access.list_tokens)
    if print_if_json(found):
        return
    table(
        ["ID", "NAME", "ROLE", "JOBS", "ONCE", "AGENTS", "LABELS", "CREATED", "EXPIRES", "LAST USED", "REVOKED"],
        [
            [
                *(t.id, t.name, t.role, ", ".join(t.jobs) or None, t.once or None, ", ".join(t.agents or ()) or None),
                *(", ".join(t.labels or ()) or None, t.created_at, t.expires_at, t.last_used_at, t.revoked_at),
            ]
            for t in found
        ],
        empty="no tokens yet; make one with `mainspring token create NAME`",
        room=Room(
            cut=("NAME", "JOBS", "AGENTS", "LABELS"), drop=("ONCE", "CREATED", "EXPIRES", "LABELS", "AGENTS", "JOBS")
        ),
    )


@token.operation("revoke", "mainspring token revoke 3")
@click.argument("id", type=Whole(1, 2**31 - 1))
async def revoke(client: Client, id: int) -> None:
    """End a token: agents and sessions that came with it are cut off within seconds."""
    await client.call(operations.access.revoke_token, id)
    confirm({"id": id, "revoked": True}, "revoked")
