"""`mainspring schedule preview`. Needs no database.

Next: model/forecasting/preview.py
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.base import command
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, plain_words, read_in
from mainspring.cli.render import note, print_if_json, table
from mainspring.model.schedules.excluded_days import check_excluded

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from mainspring.model.forecasting.preview import PreviewFire
    from mainspring.model.schedules.schedules import Schedule

MAX_FIRES = 1000
_ROOM = Room(fold=("NOTE",), drop=("UTC",))


@command(
    "preview",
    "mainspring schedule preview '0 9 * * MON-FRI' --tz Europe/Paris",
    "mainspring schedule preview every weekday at 9 --tz Europe/Paris",
    "mainspring schedule preview daily at 02:30 --tz Europe/Paris --after 2026-03-27 -n 4",
    "mainspring schedule preview every 90 minutes --anchor 2026-01-01T00:15Z --exclude sun",
)
@click.argument("expression", nargs=-1, required=True, metavar="EXPR...")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="IANA timezone, such as Europe/Paris.")
@click.option("--after", metavar="INSTANT", help="Plan times after this: ISO 8601, in --tz. Now.")
@click.option("-n", "count", type=Whole(1, MAX_FIRES), default=10, show_default=True, metavar="N", help="How many.")
@click.option("--gap", default="shift", metavar="HOW", help="A time that the clocks leave out: shift or skip.")
@click.option("--fold", default="first", metavar="HOW", help="A time that comes twice: first, second or both.")
@click.option("--anchor", metavar="INSTANT", help="Any instant of `every`.")
@click.option("--start", metavar="INSTANT", help="No plan time before.")
@click.option("--end", metavar="INSTANT", help="No plan time after.")
@click.option("--exclude", multiple=True, metavar="DAY", help="2026-12-25, 12-25 or sun; repeatable.")
@click.option("--name", metavar="NAME", help="Of the schedule: H is spread by it.")
def preview(expression: tuple[str, ...], after: str | None, count: int, name: str | None, **options: Any) -> None:
    """Show in words what EXPR means, and when it fires next: cron, "every 30s", "daily at 09:00", an instant."""
    from mainspring.model.forecasting.preview import preview as foresee
    from mainspring.model.words.instants import parse_time
    from mainspring.model.words.zones import check_zone

    zone = check_zone(options["tz"])
    schedule = _schedule(expression, zone, name or "preview", **options)
    start = datetime.now(UTC) if after is None else read_in(parse_time(after, field="after"), zone, field="after")
    found = foresee(schedule, start, count)
    fires = [{"at": fire.at.isoformat(), "utc": fire.utc, "note": fire.note} for fire in found.fires]
    if print_if_json({"words": found.words, "fires": fires}):
        return
    click.echo(f"{found.words}, in {schedule.timezone}")
    if found.fires:
        table(["AT", "UTC", "NOTE"], [_row(fire) for fire in found.fires], room=_ROOM)
    else:
        note("no plan time comes after that")
    if name is None and "H resolved" in found.words:
        note("H is spread by the schedule's name; give it with --name")


def _row(fire: PreviewFire) -> list[str | None]:
    return [f"{fire.at:%a} {fire.at.isoformat(sep=' ')}", f"{fire.utc:%Y-%m-%d %H:%M:%S}Z", fire.note]


def _schedule(
    expression: tuple[str, ...], zone: ZoneInfo, name: str, *, exclude: tuple[str, ...], **options: Any
) -> Schedule:
    from msgspec.structs import replace

    from mainspring.model.schedules.define_schedule import define_schedule

    kind, parsed = plain_words(expression, zone)
    given: Any = {kind: parsed, **{option: value for option, value in options.items() if value is not None}}
    schedule = define_schedule(name, "preview", given)
    excluded = tuple(check_excluded(day, field="exclude") for day in exclude)
    return replace(schedule, policies=replace(schedule.policies, excluded=excluded))
