"""`mainspring schedule skip | unskip`

Next: operations/planning/skips.py
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, with_options
from mainspring.cli.parse import Whole, name_of, read_in
from mainspring.cli.render import note, print_if_json
from mainspring.errors import ValidationError
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from mainspring.operations.planning.skips import SkipChange

_which = with_options(
    click.option("--next", "count", type=Whole(), metavar="N", help="The next so many plan times."),
    click.option(
        "--at",
        multiple=True,
        metavar="INSTANT",
        help="The plan time: ISO 8601, in the schedule's timezone; repeatable.",
    ),
    click.option("--until", metavar="INSTANT", help="All plan times up to this instant, and one at it."),
    click.option("--tz", metavar="ZONE", help="IANA timezone of instants without an offset, if another."),
    click.option("--note", "said", metavar="TEXT", help="Why; it is shown wherever the skip is."),
)


@operation(
    "skip",
    "mainspring schedule skip nightly --next 1 --note 'release night'",
    "mainspring schedule skip nightly --at '2026-11-20 03:00' --at '2026-11-21 03:00'",
    "mainspring schedule skip nightly --until 2026-12-01T00:00:00+01:00",
)
@click.argument("name", type=name_of("schedule"))
@_which
async def skip(client: Client, /, name: str, **given: Any) -> None:
    """Take plan times out before they come. They are decided as skipped, by you; `unskip` takes it back."""
    change = await client.call(operations.skips.skip, name, **await _read(client, name, given, is_needed=True))
    if print_if_json(change):
        return
    if not change.changed:
        note("unchanged: they are skipped already" if change.schedule.skips else "unchanged: no plan time comes")
        return
    _tell(change, "skipped")


@operation(
    "unskip",
    "mainspring schedule unskip nightly",
    "mainspring schedule unskip nightly --at '2026-11-20 03:00' --note 'the release is off'",
)
@click.argument("name", type=name_of("schedule"))
@_which
async def unskip(client: Client, /, name: str, **given: Any) -> None:
    """Take skips back, all of them or some, as long as their plan times have not passed."""
    change = await client.call(operations.skips.unskip, name, **await _read(client, name, given, is_needed=False))
    if print_if_json(change):
        return
    if not change.changed:
        note("unchanged: nothing of it is skipped")
        return
    _tell(change, "taken back")


async def _read(client: Client, name: str, given: dict[str, Any], *, is_needed: bool) -> dict[str, Any]:
    """The options as the operation takes them."""
    from mainspring.model.words.instants import parse_time
    from mainspring.model.words.zones import check_zone

    chosen = [option for option in ("count", "at", "until") if given[option] not in (None, ())]
    if len(chosen) > 1 or (is_needed and not chosen):
        raise ValidationError("next, at, until: give one of --next, --at and --until", field="next")
    zone = None if given["tz"] is None else check_zone(given["tz"])
    times = {"at": [parse_time(text, field="at") for text in given["at"]]}
    times["until"] = [] if given["until"] is None else [parse_time(given["until"], field="until")]
    if zone is None and any(time.tzinfo is None for some in times.values() for time in some):
        zone = check_zone((await client.call(operations.schedules.show, name)).schedule.timezone)

    def instants(field: str) -> list[datetime]:
        return [time if zone is None else read_in(time, zone, field=field) for time in times[field]]

    until = instants("until")
    return {
        "next": given["count"],
        "at": instants("at"),
        "until": until[0] if until else None,
        "note": given["said"],
    }


def _tell(change: SkipChange, done: str) -> None:
    from mainspring.cli.schedules.schedules import tell_recalled

    for at in change.plan_times:
        note(f"{done}: {instant_text(at)}")
    if change.more:
        note("and more")
    if not change.plan_times:
        note(f"{done}; no plan time lies there as the schedule is now")
    if told := tell_recalled(change.recalled):
        note(told.removeprefix(": "))
    if change.schedule.next is not None:
        note(f"next: {instant_text(change.schedule.next)}")
