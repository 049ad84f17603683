"""`mainspring schedule calendar set | list | show | delete`

Next: operations/definitions/calendars.py
"""

from __future__ import annotations

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of
from mainspring.cli.render import confirm, counted, fields, print_if_json, table
from mainspring.model.schedules.excluded_days import check_excluded


def _day(text: str) -> str:
    return check_excluded(text.lower(), field="day")


@click.group(cls=Group, epilog=examples("mainspring schedule calendar set holidays 12-25 2026-04-06"))
def calendar() -> None:
    """Name days without plan times, for schedules to use."""


@calendar.operation(
    "set",
    "mainspring schedule calendar set holidays 12-25 01-01 2026-04-06",
    "mainspring schedule calendar set weekend sat sun",
)
@click.argument("name", type=name_of("calendar"))
@click.argument("days", type=_day, nargs=-1, required=True, metavar="DAY...")
async def set_calendar(client: Client, name: str, days: tuple[str, ...]) -> None:
    """Make a calendar of exactly these days, or change it; the schedules that use it follow at once."""
    view = (await client.call(operations.calendars.put, name, days)).calendar
    users = view.schedules or []
    confirm(view, f"set; {counted(len(users), 'schedule')} use{'s' if len(users) == 1 else ''} it")


@calendar.operation("list", "mainspring schedule calendar list")
async def list_calendars(client: Client) -> None:
    """Show all calendars."""
    found = await client.every(operations.calendars.listing)
    if print_if_json([{"name": view.name, "days": view.days} for view in found]):
        return
    table(
        ["NAME", "DAYS"],
        [[view.name, ", ".join(view.days)] for view in found],
        empty="no calendars; make one with `mainspring schedule calendar set holidays 12-25`",
        room=Room(cut=("NAME",), fold=("DAYS",)),
    )


@calendar.operation("show", "mainspring schedule calendar show holidays")
@click.argument("name", type=name_of("calendar"))
async def show_calendar(client: Client, name: str) -> None:
    """Show the days of a calendar, and the schedules that use it."""
    view = await client.call(operations.calendars.show, name)
    if print_if_json(view):
        return
    owners = {"app": view.app, "manifest": view.manifest}
    fields({"name": name, "days": "\n".join(view.days), "schedules": "\n".join(view.schedules or []), **owners})


@calendar.operation("delete", "mainspring schedule calendar delete holidays")
@click.argument("name", type=name_of("calendar"))
async def delete_calendar(client: Client, name: str) -> None:
    """Remove a calendar that no schedule uses."""
    await client.call(operations.calendars.delete, name)
    confirm({"name": name, "deleted": True}, "deleted")
