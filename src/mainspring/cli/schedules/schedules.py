"""`mainspring schedule enable | disable | delete | run-now`, and the group of all its commands

Next: operations/schedules.py
"""

from __future__ import annotations

from copy import copy

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.parse import name_of
from mainspring.cli.render import note, on_terminal, print_if_json
from mainspring.cli.schedules.backfill import backfill
from mainspring.cli.schedules.calendar import calendar
from mainspring.cli.schedules.edit import create, edit, report_change, tell_recalled
from mainspring.cli.schedules.preview import preview
from mainspring.cli.schedules.story import check, explain
from mainspring.cli.schedules.view import list_schedules, show


@click.group(cls=Group)
def schedule() -> None:
    """Say when jobs run, and see the outcome of each plan time."""


for command in (create, edit, list_schedules, show, preview, explain, check, backfill, calendar):
    schedule.add_command(command)


@schedule.operation("enable", "mainspring schedule enable nightly")
@click.argument("name", type=name_of("schedule"))
async def enable(client: Client, name: str) -> None:
    """Let a schedule run, from its next plan time on."""
    report_change(await client.call(operations.schedules.enable, name), done="enabled")


@schedule.operation("disable", "mainspring schedule disable nightly")
@click.argument("name", type=name_of("schedule"))
async def disable(client: Client, name: str) -> None:
    """Pause a schedule: tasks that have not started are taken back, running ones continue. A daemon stops."""
    report_change(await client.call(operations.schedules.disable, name), done="disabled")


for alias, original in (("resume", enable), ("pause", disable)):  # what others call it
    hidden = copy(original)
    hidden.name, hidden.hidden, hidden.epilog = alias, True, examples(f"mainspring schedule {alias} nightly")
    schedule.add_command(hidden)


@schedule.operation("delete", "mainspring schedule delete nightly")
@click.argument("name", type=name_of("schedule"))
async def delete(client: Client, name: str) -> None:
    """Remove a schedule. The record of its plan times is kept until retention drops it."""
    change = await client.call(operations.schedules.delete, name)
    view, recalled = change.schedule, change.recalled
    assert recalled is not None  # a deletion always changes something
    if print_if_json({"name": name, "deleted": True, "recalled": recalled._asdict()}):
        return
    note("deleted" + tell_recalled(recalled))
    if view.app is not None and not view.is_orphan:
        note(f"the code of {view.app!r} defines it: it comes back when that starts, unless it is removed there")


@schedule.operation("run-now", "mainspring schedule run-now nightly", "mainspring schedule run-now invoices --scope eu")
@click.argument("name", type=name_of("schedule"))
@click.option("--scope", type=name_of("scope"), multiple=True, metavar="SCOPE", help="Only this scope; repeatable.")
async def run_now(client: Client, name: str, scope: tuple[str, ...]) -> None:
    """Run a schedule's job once, at once, beside its plan; prints the task of each scope."""
    ids = await client.call(operations.schedules.run_now, name, scope)
    if print_if_json({"name": name, "tasks": ids}):
        return
    for id in ids:
        click.echo(id)
    if on_terminal():
        note(f"see it with `mainspring task show {ids[0]}`")
