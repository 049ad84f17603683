"""`mainspring schedule forecast`

Next: operations/planning/forecast.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.layout import Room
from mainspring.cli.parse import read_in
from mainspring.cli.render import counted, note, print_if_json, table
from mainspring.model.words.durations import seconds
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from mainspring.operations.planning.forecast import Forecast


@operation(
    "forecast",
    "mainspring schedule forecast",
    "mainspring schedule forecast --from 2026-12-24 --to 2026-12-27 --tz Europe/Paris --cell 1h",
    "mainspring schedule forecast --by job --json | jq '.series[0]'",
)
@click.option("--from", "start", metavar="INSTANT", help="Starts from here: ISO 8601, in --tz. Now.")
@click.option("--to", "end", metavar="INSTANT", help="Up to here, at most 8 days. A day later.")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="IANA timezone of --from and --to.")
@click.option("--cell", metavar="DURATION", default="15m", show_default=True, help="Count the starts of so long.")
@click.option("--by", metavar="WHAT", default="none", show_default=True, help="none, job, or label of its agents.")
async def forecast(client: Client, start: str | None, end: str | None, tz: str, cell: str, by: str) -> None:
    """Show how many tasks the schedules will start, and when many of them start in the same second.

    What limits, overlap and agents make of them is not foreseen."""
    from mainspring.model.words.instants import parse_time
    from mainspring.model.words.zones import check_zone

    zone = check_zone(tz)
    first = None if start is None else read_in(parse_time(start, field="from"), zone, field="from")
    last = None if end is None else read_in(parse_time(end, field="to"), zone, field="to")
    length = timedelta(seconds=seconds(cell, field="cell"))
    found = await client.call(
        operations.forecast.forecast,
        start=first,
        end=last,
        cell=length,
        by=by,  # type: ignore[arg-type]
    )
    if not print_if_json(found):
        _tell(found)


def _tell(found: Forecast) -> None:
    cells = [[one.at, one.starts, one.peak, one.peak_at] for one in found.cells if one.starts]
    table(
        ["FROM", "STARTS", "PEAK", "PEAK AT"],
        cells,
        empty="no schedule starts anything in this time",
        room=Room(drop=("PEAK AT",)),
    )
    if found.series:
        click.echo()
        rows = [[one.name, sum(one.starts)] for one in found.series]
        table([found.by.upper(), "STARTS"], rows, room=Room(cut=(found.by.upper(),)))
    if found.herds:
        click.echo()
        rows = [[one.at, one.starts, ", ".join(one.schedules)] for one in found.herds]
        table(["AT ONCE", "STARTS", "SCHEDULES"], rows, room=Room(fold=("SCHEDULES",)))
        note("many start in the same second; --jitter spreads them")
    note(f"{counted(found.starts, 'start')}; PEAK is the most in one second")
    for skip in found.skips:
        why = f": {skip.note}" if skip.note else ""
        when = f"{'at' if skip.start == skip.until else 'until'} {instant_text(skip.until)}"
        note(f"not counted, because skipped by {skip.by}{why}: {skip.schedule} {when}")
    if found.unknown:
        note(f"not counted, because they cannot be planned here: {', '.join(found.unknown)}")
    if not found.complete:
        note("there was no time to count all schedules; give a shorter range")
