"""`mainspring settings [list] | get | set | reset`

Next: operations/settings.py
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.render import cell, confirm, print_if_json, table

if TYPE_CHECKING:
    from mainspring.operations.settings import SettingsView, SettingView

_WHOLE = re.compile(r"-?[0-9]{1,30}")


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "mainspring settings                    all of them, and what they mean",
        "mainspring settings set aging 30s      servers follow within seconds",
        "mainspring settings reset aging        back to the default",
    ),
)
@click.pass_context
def settings(context: click.Context) -> None:
    """See and change the settings of the whole cluster while it runs."""
    if context.invoked_subcommand is None:
        context.invoke(list_settings)


@settings.operation("list", "mainspring settings list", "mainspring settings --json | jq .aging")
@click.option("--reveal", is_flag=True, help="Show secrets, in place of ***; that is audited.")
async def list_settings(client: Client, reveal: bool) -> None:
    """Show all settings: the values in force, their defaults and what they mean."""
    found = await client.call(operations.settings.show, reveal=reveal)
    if print_if_json(found):
        return
    table(
        ["NAME", "VALUE", "DEFAULT", "CHANGED", "MEANING"],
        [[one.name, _told(one.value), _told(one.default), one.updated_at, one.meaning] for one in found.details],
        room=Room(fold=("MEANING",), cut=("VALUE",), drop=("CHANGED",)),
    )


@settings.operation("get", "mainspring settings get aging")
@click.argument("name")
@click.option("--reveal", is_flag=True, help="Show secrets, in place of ***; that is audited.")
async def get_setting(client: Client, name: str, reveal: bool) -> None:
    """Show the value of one setting."""
    from mainspring.model.settings import find

    find(name)
    view = _named(await client.call(operations.settings.show, reveal=reveal), name)
    if not print_if_json(view):
        click.echo(_told(view.value))


@settings.operation("set", "mainspring settings set aging 30s", "mainspring settings set default_timeout off")
@click.argument("name")
@click.argument("value")
async def set_setting(client: Client, name: str, value: str) -> None:
    """Change one setting. Every server follows within seconds."""
    from mainspring.model.settings import check_change

    given: Any = int(value) if _WHOLE.fullmatch(value) else value
    check_change({name: given})  # before anything is reached
    await _change(client, name, given)


@settings.operation("reset", "mainspring settings reset aging")
@click.argument("name")
async def reset_setting(client: Client, name: str) -> None:
    """Set one setting back to its default."""
    from mainspring.model.settings import find

    find(name)
    await _change(client, name, None)


async def _change(client: Client, name: str, value: Any) -> None:
    view = _named(await client.call(operations.settings.edit, {name: value}), name)
    confirm(view, f"{name} is {'not set' if view.value is None else _told(view.value)}")


def _told(value: Any) -> str:
    """A value as it could be typed; of those that are settings, only durations are fractions."""
    from mainspring.model.words.durations import compact

    return compact(value) if isinstance(value, float) else cell(value)


def _named(found: SettingsView, name: str) -> SettingView:
    return next(one for one in found.details if one.name == name)
