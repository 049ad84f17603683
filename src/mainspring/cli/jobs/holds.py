"""`mainspring job hold | release`, and `mainspring hold | release` for everything.

Next: operations/definitions/holds.py
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, with_options
from mainspring.cli.jobs.jobs import job
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of
from mainspring.cli.render import cell, confirm, print_if_json, table

if TYPE_CHECKING:
    from mainspring.operations.definitions.holds import HoldChange

_hold_options = with_options(
    click.option("--note", metavar="TEXT", help="Why, for whoever meets the hold."),
    click.option("--skip", is_flag=True, help="Skip plan times meanwhile, as paused; else their tasks wait."),
)
_release_options = with_options(
    click.option("--note", metavar="TEXT", help="Why, for the audit."),
    click.option("--at-once", is_flag=True, help="Start what waits at once, and not spread over a minute."),
)


@job.operation("hold", "mainspring job hold report --note 'the warehouse is down'", "mainspring job hold report --skip")
@click.argument("name", type=name_of("job"))
@_hold_options
async def hold_job(client: Client, name: str, note: str | None, skip: bool) -> None:
    """Start nothing new of a job until it is released; what runs goes on.

    Tasks of it can be submitted, and its plan times are decided as ever: they wait.
    """
    done = await client.call(operations.holds.hold_job, name, note=note, skip=skip)
    _confirm_hold(done, name, f"mainspring job release {shlex.quote(name)}")


@job.operation("release", "mainspring job release report", "mainspring job release report --at-once")
@click.argument("name", type=name_of("job"))
@_release_options
async def release_job(client: Client, name: str, note: str | None, at_once: bool) -> None:
    """Let the tasks of a held job start; what waits is spread over a minute."""
    _confirm_release(await client.call(operations.holds.release_job, name, note=note, at_once=at_once), name)


@operation("hold", "mainspring hold --note 'until the database is moved'", "mainspring hold --list")
@_hold_options
@click.option("--list", "only_list", is_flag=True, help="Change nothing; show what is held, by whom and why.")
async def hold(client: Client, note: str | None, skip: bool, only_list: bool) -> None:
    """Start nothing new at all until it is released; what runs goes on."""
    if only_list:
        await _list(client)
        return
    _confirm_hold(await client.call(operations.holds.hold, note=note, skip=skip), "everything", "mainspring release")


@operation("release", "mainspring release", "mainspring release --at-once")
@_release_options
async def release(client: Client, note: str | None, at_once: bool) -> None:
    """End the hold of everything; jobs that are held themselves stay so."""
    _confirm_release(await client.call(operations.holds.release, note=note, at_once=at_once), "everything")


async def _list(client: Client) -> None:
    found = await client.call(operations.holds.show)
    if print_if_json(found):
        return
    every = [*([] if found.everything is None else [found.everything]), *found.jobs]
    table(
        ["JOB", "SINCE", "BY", "SKIPS", "RELEASED", "NOTE"],
        [
            [one.job or "(everything)", one.since, one.by, "yes" if one.skip else None, one.released_at, one.note]
            for one in every
        ],
        empty="nothing is held",
        room=Room(cut=("JOB", "BY"), fold=("NOTE",), drop=("SKIPS", "RELEASED")),
    )


def _confirm_hold(done: HoldChange, what: str, release: str) -> None:
    again = "" if done.changed else ", as before"
    recalled = f"; recalled from agents: {done.armed:,}" if done.armed else ""
    runs = f"; still running: {done.running:,}" if done.running else ""
    confirm(done, f"{what} is held{again}{recalled}{runs}; `{release}` lets it go on")


def _confirm_release(done: HoldChange, what: str) -> None:
    if done.waiting is None or done.hold is None:
        confirm(done, f"{what} was not held" if done.hold is None else f"{what} was released before")
        return
    until = done.hold.spread_until
    is_spread = until is not None and done.hold.released_at is not None and until > done.hold.released_at
    start = f"which start one after another, by {cell(until)} at the latest" if is_spread else "which start now"
    waits = f"; waiting: {done.waiting:,}, {start}" if done.waiting else ""
    confirm(done, f"{what} is released{waits}")
