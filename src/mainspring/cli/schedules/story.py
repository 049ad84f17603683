"""`mainspring schedule explain | check`

Next: operations/definitions/schedules.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of, read_in
from mainspring.cli.render import counted, note, print_if_json, table, visible, wrapped
from mainspring.model.words.durations import seconds
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from mainspring.store.schedules.missed import Checked

MISSING = 1  # the exit code


@operation(
    "explain",
    "mainspring schedule explain nightly",
    "mainspring schedule explain nightly --at '2026-11-15 03:00'",
    "mainspring schedule explain nightly --at 2026-11-15T03:00:00+01:00",
)
@click.argument("name", type=name_of("schedule"))
@click.option(
    "--at", metavar="INSTANT", help="The plan time: ISO 8601, in the schedule's timezone. Else the last and the next."
)
@click.option("--tz", metavar="ZONE", help="IANA timezone of an --at without an offset, if another.")
async def explain(client: Client, name: str, at: str | None, tz: str | None) -> None:
    """Tell the story of a plan time: expected or not, planned, armed, fired how late, or why not."""
    from mainspring.model.schedules.story import as_lines
    from mainspring.model.words.instants import parse_time
    from mainspring.model.words.zones import check_zone, zone_or_utc

    zone = None if tz is None else check_zone(tz)
    instant = None if at is None else parse_time(at, field="at")
    if instant is not None:
        zone = zone or check_zone((await client.call(operations.schedules.show, name)).schedule.timezone)
        instant = read_in(instant, zone, field="at")
    found = await client.call(operations.plan_times.explain, name, at=instant)
    if print_if_json({"schedule": name, "plan_times": found.plan_times}):
        return
    for story in found.plan_times:
        for line in as_lines(name, story, zone_or_utc(found.timezone)):
            click.echo(wrapped(visible(line)))
    if not found.plan_times:
        note("nothing was decided yet, and no plan time comes: `mainspring schedule show` tells its state")


@operation("check", "mainspring schedule check", "mainspring schedule check nightly --since 7d || alert")
@click.argument("name", type=name_of("schedule"), required=False)
@click.option("--since", metavar="DURATION", default="24h", show_default=True, help="So far back.")
async def check(client: Client, name: str | None, since: str) -> None:
    """Compare the plan times that were expected with those that were decided; the exit code is 1 if any is missing.

    So it is if a schedule could not be checked to the end."""
    back = timedelta(seconds=seconds(since, field="since"))
    keep = timedelta(seconds=max(client.settings.keep_succeeded, client.settings.keep_failed))
    found = await client.every(operations.plan_times.check, since=back, schedule=name, keep=keep)
    bad = [one for one in found if one.missing or one.why is not None or not one.complete]
    if not print_if_json({"ok": not bad, **_counts(found), "schedules": bad if name is None else found}):
        _tell(found, bad)
    if bad:
        click.get_current_context().exit(MISSING)


def _counts(found: list[Checked]) -> dict[str, int]:
    return {
        "checked": len(found),
        "expected": sum(one.expected for one in found),
        "missing": sum(len(one.missing) + one.more for one in found),
    }


def _tell(found: list[Checked], bad: list[Checked]) -> None:
    """What is wrong with each schedule, then the missing plan times."""
    for one in bad:
        if one.missing:
            count = len(one.missing) + one.more
            shown = f" ({len(one.missing):,} are shown)" if one.more else ""
            note(f"{one.schedule}: {counted(count, 'run')} missing{shown}: {one.why}")
        elif one.why is not None:
            note(f"{one.schedule}: it cannot be checked: {one.why}")
        if not one.complete and one.expected:
            note(f"{one.schedule}: checked up to {instant_text(one.until)} only; give a shorter --since")
    rows = [[one.schedule, instant_text(gap.plan_time), gap.scope] for one in bad for gap in one.missing]
    if rows:
        table(["SCHEDULE", "PLAN TIME", "SCOPE"], rows, room=Room(cut=("SCHEDULE", "SCOPE")))
    if not bad:
        expected = sum(one.expected for one in found)
        verb = "was" if expected == 1 else "were"
        note(f"nothing is missing: {counted(expected, 'run')} of {counted(len(found), 'schedule')} {verb} expected")
