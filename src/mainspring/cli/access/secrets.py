"""`mainspring secret set | list | show | delete | rotate | key`

Next: operations/definitions/secrets.py
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, command, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of, pairs
from mainspring.cli.render import confirm, fields, note, print_if_json, table

if TYPE_CHECKING:
    from mainspring.compose.secret_keys import SecretKeys

LONGEST = 1 << 20  # bytes that are read: more than any value may have


@click.group(
    cls=Group,
    epilog=examples(
        "mainspring secret set shop-db < password.txt",
        "mainspring job create dump --secret-env PGPASSWORD=shop-db -- pg_dump shop",
        "mainspring secret list",
    ),
)
def secret() -> None:
    """Keep secrets for the environment of commands, for headers and for channels."""


@secret.operation(
    "set",
    "mainspring secret set shop-db                            asks for the value",
    "mainspring secret set shop-db < password.txt",
    "vault read -field=password shop | mainspring secret set shop-db --label zone=eu",
)
@click.argument("name", type=name_of("name"))
@click.option("--label", "labels", multiple=True, metavar="LABEL=VALUE", help="Agents must have it; repeatable.")
@click.option("--any-agent", is_flag=True, help="All agents get it, whatever their labels.")
async def set_secret(client: Client, name: str, labels: tuple[str, ...], any_agent: bool) -> None:
    """Make a secret, or give it another value: the standard input, without a line end at its end.

    Without --label and --any-agent it keeps the labels that it has.
    """
    from mainspring.model.secrets.masker import LEAST

    if labels and any_agent:
        raise click.UsageError("--label, --any-agent: give one of them")
    wanted = {} if any_agent else pairs(labels, field="labels") if labels else None
    value = _value(name)
    made = await client.call(operations.secrets.put, name, value, labels=wanted, keys=_keys(client))
    confirm(made, "made" if made.created else "changed; tasks get the new value from the next dispatch on")
    if len(value.strip().encode()) < LEAST:
        note(f"a value of less than {LEAST} bytes is not hidden in output")


def _value(name: str) -> str:
    """Never from the arguments, which other users of the machine can read."""
    if sys.stdin.isatty():
        return str(click.prompt(f"value of {name}", hide_input=True, confirmation_prompt=True, err=True))
    given = sys.stdin.buffer.read(LONGEST)
    try:
        text = given.decode()
    except UnicodeDecodeError:
        raise click.UsageError("the value is not UTF-8; encode it, in base64 for instance") from None
    return text.removesuffix("\n").removesuffix("\r")


def _keys(client: Client) -> SecretKeys:
    from mainspring.compose.secret_keys import SecretKeys

    return SecretKeys(client.settings)


@secret.operation("list", "mainspring secret list")
async def list_secrets(client: Client) -> None:
    """Show the secrets and what uses them; nobody can read a value."""
    found = await client.every(operations.secrets.listing)
    if print_if_json(found):
        return
    table(
        ["NAME", "VERSION", "KEY", "LABELS", "USED BY", "UPDATED", "BY"],
        [
            [one.name, one.version, one.key_id, _labels(one.labels), _users(one), one.updated_at, one.updated_by]
            for one in found
        ],
        empty="no secrets; `mainspring secret set NAME` makes one",
        room=Room(cut=("USED BY", "LABELS", "NAME"), drop=("KEY", "BY", "VERSION")),
    )


@secret.operation("show", "mainspring secret show shop-db")
@click.argument("name", type=name_of("secret"))
async def show_secret(client: Client, name: str) -> None:
    """Show one secret, without its value, and what uses it."""
    found = await client.call(operations.secrets.show, name)
    if print_if_json(found):
        return
    fields(
        {
            "name": found.name,
            "version": found.version,
            "key": found.key_id,
            "labels": _labels(found.labels) or "any agent",
            "jobs": ", ".join(found.jobs),
            "channels": ", ".join(found.channels),
            "created": found.created_at,
            "created by": found.created_by,
            "updated": found.updated_at,
            "updated by": found.updated_by,
        }
    )


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in labels.items())


def _users(one: operations.secrets.SecretView) -> str:
    return ", ".join([*one.jobs, *(f"channel {name}" for name in one.channels)])


@secret.operation("delete", "mainspring secret delete shop-db")
@click.argument("name", type=name_of("secret"))
async def delete_secret(client: Client, name: str) -> None:
    """Remove a secret that nothing refers to."""
    await client.call(operations.secrets.delete, name)
    confirm({"name": name, "deleted": True}, "deleted")


@secret.operation("rotate", "mainspring secret rotate")
async def rotate_secrets(client: Client) -> None:
    """Encrypt all secrets with the first key again, all of them or none."""
    done = await client.call(operations.secrets.rotate, keys=_keys(client))
    confirm(done, f"{done.rotated} of {done.secrets} secrets encrypted again; all have the key {done.key_id} now")


@command("key", "mainspring secret key 2026-11 >> /etc/mainspring/secret.keys")
@click.argument("id", metavar="ID")
def key(id: str) -> None:
    """Print a new random key with this id, for secret_keys_file or MAINSPRING_SECRET_KEYS. Nothing is stored."""
    from mainspring.model.secrets.keys import new_key

    click.echo(new_key(id))


secret.add_command(key)
