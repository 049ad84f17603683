"""Plan times: what was decided about them, why, what comes next, and whether any is missing.

Next: store/schedules/fires.py, store/schedules/explain.py, store/schedules/missed.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring.errors import Conflict, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.forecast import Counts, Source
from mainspring.model.forecasting.preview import Preview, PreviewFire, foreseen
from mainspring.model.schedules.excluded_days import check_excluded
from mainspring.model.schedules.planning import INSTANT
from mainspring.model.schedules.schedule_spec import ScheduleSpec, defined
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.skips import Skip
from mainspring.model.schedules.story import Story
from mainspring.model.schedules.timing import timing
from mainspring.model.words.globs import covering
from mainspring.model.words.instants import check_instant, parse_time
from mainspring.operations import pages
from mainspring.operations.definitions import schedules
from mainspring.operations.pages import Page
from mainspring.operations.parts.by_name import AT_ONCE
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning.schedule_views import FireView, fire_view
from mainspring.store.followed import slo as objectives
from mainspring.store.followed.slo import SloState
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import explain as stories
from mainspring.store.schedules import fires as ledger
from mainspring.store.schedules import missed
from mainspring.store.schedules.missed import Checked
from mainspring.store.schedules.schedules import Stored
from mainspring.store.search import schedule_pages
from mainspring.store.search.schedule_pages import Filter

MAX_FIRES = 1000
DAY_SECONDS = 0.1  # of counting the plan times of a day
CHECK_SECONDS = 0.5  # of one page of `check`
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


class Explanation(msgspec.Struct, frozen=True):
    schedule: str
    timezone: str
    plan_times: list[Story]


async def slo(conn: Connection, actor: Actor, name: str) -> SloState:
    """How a schedule does by its SLO: compliance in the window, the budget that is left, and how fast it burns."""
    stored = await schedules.find(conn, actor, name)
    objective = stored.schedule.policies.slo
    if objective is None:
        raise Conflict(
            f"schedule {name!r} has no SLO; give it one with `mainspring schedule edit {name} --slo lateness=2s`",
            field="slo",
        )
    return await objectives.state(conn, stored.id, objective)


async def fires(
    conn: Connection,
    actor: Actor,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    cursor: str | None = None,
    limit: int = pages.LIMIT,
) -> Page[FireView]:
    """The ledger of a schedule, the latest plan time first; several scopes of one plan time backwards too."""
    for field, at in (("since", since), ("until", until)):
        if at is not None:
            check_instant(at, field=field)
    stored = await schedules.find(conn, actor, name)
    filters = {"list": "fires", "schedule": stored.id, "since": since, "until": until}
    before = pages.position(cursor, filters, tuple[datetime, str]) or (_LAST, "")
    pages.check_limit(limit)
    runs = await ledger.ledger(conn, stored.id, since or _FIRST, until or _LAST, before=before, limit=limit + 1)
    found = [fire_view(stored, run) for run in runs]
    return pages.page(found, limit, filters, lambda fire: (fire.plan_time, fire.scope))


async def explain(
    conn: Connection, actor: Actor, name: str, *, at: datetime | None = None, local: str | None = None
) -> Explanation:
    """The story of one plan time; without one, of the last and the next.

    `local` is a time as the clocks of the schedule show it, such as 2026-03-29T02:30: one that comes twice has two
    stories, and one that a clock change skips has the story of why.
    """
    stored = await schedules.find(conn, actor, name)
    if at is not None:
        check_instant(at, field="at")
    elif local is not None:
        at = parse_time(local, field="local")
    told = await stories.explain(conn, stored, at, waits=find_waits)
    return Explanation(name, stored.schedule.timezone, told)


async def next_times(conn: Connection, actor: Actor, name: str, *, n: int = 10) -> Preview:
    """The next plan times of a schedule, with notes about clock changes and skips; none while it is disabled."""
    _check_count(n)
    stored = await schedules.find(conn, actor, name)
    most = stored.schedule.policies.max_runs
    left = None if most is None else max(0, most - stored.runs)
    return await _foresee(stored.schedule, stored.now, n if stored.enabled else 0, stored.skips, left=left)


async def preview(
    conn: Connection | None,
    actor: Actor,
    spec: ScheduleSpec,
    *,
    name: str = "preview",
    after: datetime | None = None,
    exclude: Sequence[str] = (),
    n: int = 10,
) -> Preview:
    """What a spec means, and its plan times after an instant: now, if none is given. Touches no database.

    `name` is that of the schedule, by which H is spread; `exclude` has days such as those of its calendars.
    """
    _check_count(n)
    if spec.calendars is not UNSET:
        raise ValidationError("calendars: a preview reads no database; give their days as `exclude`", field="calendars")
    schedule = defined(name, spec if spec.job is not UNSET else replace(spec, job="preview"))
    excluded = tuple(check_excluded(day, field="exclude") for day in exclude)
    schedule = replace(schedule, policies=replace(schedule.policies, excluded=excluded))
    start = datetime.now(UTC) if after is None else check_instant(after, field="after")
    return await _foresee(schedule, start, n)


async def _foresee(
    schedule: Schedule, after: datetime, count: int, skips: Sequence[Skip] = (), *, left: int | None = None
) -> Preview:
    """`left` is how many runs are left: what is skipped uses up none."""
    runs = left
    slices, found = Slices(), list[PreviewFire]()
    coming = foreseen(schedule, after, skips)
    while len(found) < count and left != 0 and (fire := next(coming, None)) is not None:
        found.append(fire)
        left = left - 1 if left is not None and fire.skipped_by is None else left
        await slices.rest()
    a_day = await _count_a_day(schedule, after, runs) if count else 0
    return Preview(timing(schedule).words, found, schedule.kind, schedule.expression, a_day)


async def _count_a_day(schedule: Schedule, after: datetime, left: int | None) -> int | None:
    """Plan times in the 24 hours after an instant, if they are counted in `DAY_SECONDS` of computing."""
    slices = Slices()
    policies = replace(schedule.policies, jitter=0.0, delay=0.0)
    first = after + INSTANT
    day = timedelta(days=1)
    counts = Counts(first, first + day, day, after)
    for _ in counts.add(Source(replace(schedule, policies=policies), [schedule.name], {"": 1}, left)):
        await slices.rest()
        if slices.used > DAY_SECONDS:
            return None
    return sum(map(sum, counts.by_series.values()))


def _check_count(n: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_FIRES:
        raise ValidationError(f"n: {shown(n)}; give 1 to {MAX_FIRES}", field="n")


async def check(
    conn: Connection,
    actor: Actor,
    *,
    since: timedelta = timedelta(days=1),
    schedule: str | None = None,
    keep: timedelta | None = None,
    cursor: str | None = None,
    limit: int = pages.MAX_LIMIT,
) -> Page[Checked]:
    """Compare the expected plan times since so long ago with the decided ones, of one schedule or all, by name.

    `keep` is how long fires are kept: before that, a dropped one looks like a missing one.
    """
    if not timedelta(0) < since < timedelta(days=3650):
        raise ValidationError(f"since: {since} is no time to look back; give between 0 and 10 years", field="since")
    back = since if keep is None else min(since, keep)
    if schedule is not None:
        return Page([await _check(conn, await schedules.find(conn, actor, schedule), back)])
    filters = {"list": "check", "since": since.total_seconds()}
    after, until = pages.position(cursor, filters, str), monotonic() + CHECK_SECONDS
    reached = Filter(job=covering(actor.jobs))
    pages.check_limit(limit)
    found: list[Checked] = []
    read = 0
    while True:
        batch = await schedule_pages.page(conn, reached, after=after, limit=min(AT_ONCE, limit - read))
        for number, stored in enumerate(batch.items, 1):
            if actor.reaches(stored.schedule.job):
                found.append(await _check(conn, stored, back))
            if monotonic() >= until and number < len(batch.items):
                return Page(found, pages.cursor(filters, stored.schedule.name))
        read += len(batch.items)
        after = batch.last
        if after is None or read >= limit or monotonic() >= until:
            return Page(found, None if after is None else pages.cursor(filters, after))


async def _check(conn: Connection, stored: Stored, back: timedelta) -> Checked:
    try:
        return await missed.missing(conn, stored, stored.now - back, stored.now)
    except ValidationError as error:  # a timezone that this host does not know
        return missed.unknown(stored, error.message)
