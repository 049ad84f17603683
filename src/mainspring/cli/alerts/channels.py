"""`mainspring channel set | list | test | delete`

Next: operations/alerting/channels.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of
from mainspring.cli.render import confirm, note, print_if_json, table
from mainspring.errors import ChannelNotFound, ValidationError
from mainspring.model.words.durations import seconds

if TYPE_CHECKING:
    from mainspring.operations.alerting.channels import ChannelChange

ASK_EVERY = 0.3  # seconds
FAILED = 1  # the exit code


@click.group(
    cls=Group,
    epilog=examples(
        "mainspring channel set ops https://hooks.example/alerts     JSON, signed",
        "mainspring channel set team URL --kind slack                text, for Slack and the like",
        "mainspring channel test ops",
    ),
)
def channel() -> None:
    """Say where alerts are told."""


@channel.operation(
    "set",
    "mainspring channel set ops https://hooks.example/alerts     prints the secret that signs",
    "mainspring channel set team https://hooks.slack.com/services/… --kind slack",
    "mainspring channel set ops --secret-file secret.txt         a secret of your own; - reads stdin",
    "mainspring channel set team --kind slack --secret-url NAME  the URL is a secret: `mainspring secret set NAME`",
    "mainspring channel set ops --disable",
)
@click.argument("name", type=name_of("channel"))
@click.argument("url", required=False)
@click.option("--kind", type=click.Choice(("webhook", "slack")), help="JSON or text; webhook without it.")
@click.option("--secret-file", type=click.File("r"), help="The secret that signs, from a file; - is stdin.")
@click.option("--secret-url", metavar="NAME", help="The URL, from `mainspring secret set NAME`.")
@click.option("--secret", metavar="NAME", help="The secret that signs, from `mainspring secret set NAME`.")
@click.option("--unsigned", is_flag=True, help="Sign nothing.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether it is told anything.")
async def set_channel(
    client: Client,
    name: str,
    url: str | None,
    kind: str | None,
    secret_file: Any,
    secret_url: str | None,
    secret: str | None,
    unsigned: bool,
    enabled: bool | None,
) -> None:
    """Make a channel, or change what is given of it."""
    if (secret_file is not None) + (secret is not None) + unsigned > 1:
        raise click.UsageError("--secret-file, --secret, --unsigned: give one of them")
    if url is not None and secret_url is not None:
        raise click.UsageError("URL, --secret-url: give one of them")
    change: dict[str, Any] = {"kind": kind, "url": _reference(secret_url) or url, "enabled": enabled}
    change = {member: value for member, value in change.items() if value is not None}
    if secret_file is not None or secret is not None or unsigned:
        change["secret"] = None if unsigned else _reference(secret) or _secret(secret_file)
    changed = await _set(client, name, change)
    if print_if_json(changed):
        return
    if changed.secret is not None:
        click.echo(changed.secret)
        note(f"channel {name} made; this secret signs what it is sent, and nobody can read it again")
    else:
        confirm(changed, "made" if changed.created else "changed" if changed.changed else "it is so already")


def _reference(name: str | None) -> dict[str, str] | None:
    return None if name is None else {"$secret": name}


def _secret(file: Any) -> str:
    try:
        return str(file.read()).strip()
    except UnicodeDecodeError:
        raise click.UsageError(f"--secret-file: {file.name} is not text") from None


async def _set(client: Client, name: str, change: dict[str, Any]) -> ChannelChange:
    from mainspring.model.alerts.channels import read_channel

    try:
        return await client.call(operations.channels.edit, name, change)
    except ChannelNotFound:
        if "url" not in change:
            raise ValidationError(f"url: missing; there is no channel {name!r} yet", field="url") from None
        spec = read_channel({"kind": "webhook", **change})
        return await client.call(operations.channels.put, name, spec, replace=False)


@channel.operation("list", "mainspring channel list")
async def list_channels(client: Client) -> None:
    """Show the channels, and whether their receivers take what is sent."""
    found = await client.every(operations.channels.listing)
    if print_if_json(found):
        return
    table(
        ["NAME", "KIND", "URL", "SIGNED", "ENABLED", "DELIVERED", "FAILING SINCE", "ERROR"],
        [[c.name, c.kind, c.url, c.is_signed, c.enabled, c.delivered_at, c.failing_since, c.last_error] for c in found],
        empty="no channels: nobody is told; `mainspring channel set NAME URL` makes one",
        room=Room(fold=("ERROR",), cut=("URL", "NAME"), drop=("SIGNED", "DELIVERED", "ENABLED")),
    )


@channel.operation("test", "mainspring channel test ops")
@click.argument("name", type=name_of("channel"))
@click.option("--timeout", default="20s", show_default=True, metavar="DURATION", help="How long to wait.")
async def test_channel(client: Client, name: str, timeout: str) -> None:
    """Have the leader send a test message; exit code 1 if it was not taken."""
    import asyncio

    within = seconds(timeout, field="timeout")
    sent = await client.call(operations.channels.send_test, name)
    until = asyncio.get_running_loop().time() + within
    while True:
        found = await client.call(operations.alerts.show_delivery, sent.delivery)
        if found.state == "delivered" or (found.attempts > 0 and found.last_error is not None):
            break
        if asyncio.get_running_loop().time() >= until:
            break
        await asyncio.sleep(ASK_EVERY)
    reason = found.last_error or "no leader has sent it yet: does a server run?"
    confirm(found, "delivered" if found.state == "delivered" else f"not delivered: {reason}")
    if found.state != "delivered":
        click.get_current_context().exit(FAILED)


@channel.operation("delete", "mainspring channel delete ops")
@click.argument("name", type=name_of("channel"))
async def delete_channel(client: Client, name: str) -> None:
    """Remove a channel; what waits for it is not sent."""
    await client.call(operations.channels.delete, name)
    confirm({"name": name, "deleted": True}, "deleted")
