"""Calendars of days without plan times: `mainspring schedule calendar set | list | show | delete`.

Next: store/schedules/calendars.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mainspring.cli.base import Group, examples, shared, with_client
from mainspring.cli.layout import Room
from mainspring.cli.render import fields, note, print_json, table

if TYPE_CHECKING:
    from mainspring.cli.client import Client


@click.group(cls=Group, epilog=examples("mainspring schedule calendar set holidays 12-25 2026-04-06"))
def calendar() -> None:
    """Name days without plan times, for schedules to use."""


@calendar.command(
    "set",
    epilog=examples(
        "mainspring schedule calendar set holidays 12-25 01-01 2026-04-06",
        "mainspring schedule calendar set weekend sat sun",
    ),
)
@click.argument("name")
@click.argument("days", nargs=-1, required=True, metavar="DAY...")
@with_client
async def set_calendar(client: Client, name: str, days: tuple[str, ...]) -> None:
    """Make a calendar of exactly these days, or change it; the schedules that use it follow at once."""
    users = await client.schedules.put_calendar(name, days)
    if shared().json:
        print_json({"name": name, "days": days, "schedules": users})
    else:
        note(f"set; {len(users)} schedule{'' if len(users) == 1 else 's'} use{'s' if len(users) == 1 else ''} it")


@calendar.command("list", epilog=examples("mainspring schedule calendar list"))
@with_client
async def list_calendars(client: Client) -> None:
    """Show all calendars."""
    found = await client.schedules.calendars()
    if shared().json:
        print_json([{"name": name, "days": days} for name, days in found.items()])
        return
    table(
        ["NAME", "DAYS"],
        [[name, ", ".join(days)] for name, days in found.items()],
        empty="no calendars; make one with `mainspring schedule calendar set holidays 12-25`",
        room=Room(cut=("NAME",), fold=("DAYS",)),
    )


@calendar.command("show", epilog=examples("mainspring schedule calendar show holidays"))
@click.argument("name")
@with_client
async def show_calendar(client: Client, name: str) -> None:
    """Show the days of a calendar, and the schedules that use it."""
    days, users = await client.schedules.calendar(name)
    if shared().json:
        print_json({"name": name, "days": days, "schedules": users})
        return
    fields({"name": name, "days": "\n".join(days), "schedules": "\n".join(users)})


@calendar.command("delete", epilog=examples("mainspring schedule calendar delete holidays"))
@click.argument("name")
@with_client
async def delete_calendar(client: Client, name: str) -> None:
    """Remove a calendar that no schedule uses."""
    await client.schedules.delete_calendar(name)
    if shared().json:
        print_json({"name": name, "deleted": True})
    else:
        note("deleted")
