"""Schedules: `mainspring schedule list | show | enable | disable | delete | run-now`, and the group of all the others.

Next: cli/schedule_edit.py, cli/schedule_preview.py, cli/schedule_story.py, cli/schedule_backfill.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.base import Group, examples, shared, with_client
from mainspring.cli.render import fields, note, on_terminal, print_json, table
from mainspring.cli.schedule_backfill import backfill
from mainspring.cli.schedule_calendar import calendar
from mainspring.cli.schedule_edit import create, edit, tell_change, tell_recalled
from mainspring.cli.schedule_preview import preview
from mainspring.cli.schedule_story import check, explain

if TYPE_CHECKING:
    from datetime import datetime

    from mainspring.cli.client import Client
    from mainspring.cli.schedule_client import ScheduleView


@click.group(cls=Group)
def schedule() -> None:
    """Say when jobs run, and see what became of each plan time."""


for command in (create, edit, preview, explain, check, backfill, calendar):
    schedule.add_command(command)


@schedule.command(
    "list", epilog=examples("mainspring schedule list --job backup", "mainspring schedule list --json | jq '.[].next'")
)
@click.option("--job", metavar="NAME", help="Only schedules of this job.")
@with_client
async def list_schedules(client: Client, job: str | None) -> None:
    """Show all schedules, with their next plan times by their own clocks."""
    found = await client.schedules.listing(job)
    if shared().json:
        print_json(found)
        return
    table(
        ["NAME", "JOB", "WHEN", "TIMEZONE", "STATE", "NEXT", "RUNS", "APP", "REMARK"],
        [
            [one.name, one.job, one.words, one.timezone, _state(one), shown(one.next), one.runs, one.app, _remark(one)]
            for one in found
        ],
        empty="no schedules; make one with `mainspring schedule create nightly JOB --daily 03:00 --enable`",
    )


def _state(view: ScheduleView) -> str:
    return "enabled" if view.enabled else "disabled"


def _remark(view: ScheduleView) -> str:
    drift = f"differs from its code in {', '.join(one['field'] for one in view.drift)}" if view.drift else None
    orphan = "gone from its code" if view.is_orphan else None
    return "; ".join(part for part in (view.problem, orphan, drift) if part)


def _policies(view: ScheduleView) -> dict[str, Any]:
    """Those that somebody has chosen."""
    from mainspring.model.schedules import Policies

    default = Policies()
    return {name: value for name, value in view.policies.items() if value != getattr(default, name)}


def shown(at: datetime | None) -> str:
    """A plan time, which already is in the schedule's own timezone."""
    return "" if at is None else at.isoformat(sep=" ")


@schedule.command(
    "show", epilog=examples("mainspring schedule show nightly", "mainspring schedule show nightly --json")
)
@click.argument("name")
@with_client
async def show(client: Client, name: str) -> None:
    """Show one schedule: its policies, what comes next, what came last, and how it differs from its code."""
    found = await client.schedules.show(name)
    view = found.schedule
    if shared().json:
        print_json(found)
        return
    zone = view.created_at if view.next is None else view.next
    fields(
        {
            **{label: getattr(view, label) for label in ("name", "job", "words", "kind", "expression", "timezone")},
            "state": _state(view),
            "problem": view.problem,
            "next": "\n".join(shown(at) for at in found.next) or None,
            "last": "\n".join(
                f"{shown(fire.plan_time.astimezone(zone.tzinfo))} "
                f"{f'[{fire.scope}] ' if fire.scope else ''}{fire.reason or f'task {fire.task_id}'}"
                for fire in found.last
            )
            or None,
            "runs": view.runs,
            **_policies(view),
            "version": view.version,
            "made": view.created_at,
            "changed": view.updated_at if view.version > 1 else None,
            "app": view.app,
            "remark": "gone from the code of its application" if view.is_orphan else None,
        }
    )
    if view.drift:
        click.echo()
        table(["FIELD", "CODE", "IN FORCE"], [list(one.values()) for one in view.drift], empty="")


@schedule.command("enable", epilog=examples("mainspring schedule enable nightly"))
@click.argument("name")
@with_client
async def enable(client: Client, name: str) -> None:
    """Let a schedule run, from its next plan time on."""
    tell_change(*await client.schedules.enable(name, True), done="enabled")


@schedule.command("disable", epilog=examples("mainspring schedule disable nightly"))
@click.argument("name")
@with_client
async def disable(client: Client, name: str) -> None:
    """Pause a schedule: what was planned and has not started is taken back, what runs goes on."""
    tell_change(*await client.schedules.enable(name, False), done="disabled")


@schedule.command("delete", epilog=examples("mainspring schedule delete nightly"))
@click.argument("name")
@with_client
async def delete(client: Client, name: str) -> None:
    """Remove a schedule. What became of its plan times is kept until retention."""
    view, recalled = await client.schedules.delete(name)
    if shared().json:
        told: dict[str, Any] = {"name": name, "deleted": True, "recalled": recalled._asdict()}
        print_json(told)
        return
    note("deleted" + tell_recalled(recalled))
    if view.app is not None:
        note(f"the code of {view.app!r} defines it: it comes back when that starts, unless it is removed there")


@schedule.command(
    "run-now",
    epilog=examples("mainspring schedule run-now nightly", "mainspring schedule run-now invoices --scope eu"),
)
@click.argument("name")
@click.option("--scope", multiple=True, metavar="SCOPE", help="Only this scope; repeatable.")
@with_client
async def run_now(client: Client, name: str, scope: tuple[str, ...]) -> None:
    """Run a schedule's job once, at once, beside its plan; prints the task of each scope."""
    ids = await client.schedules.run_now(name, scope)
    if shared().json:
        print_json({"name": name, "tasks": ids})
        return
    for id in ids:
        click.echo(id)
    if on_terminal():
        note(f"see it with `mainspring task show {ids[0]}`")
