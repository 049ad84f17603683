"""Resolve: a schedule as planners need it, with the days of its calendars and the arguments that its job takes.

Next: store/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.errors import JobNotFound
from mainspring.model.daemons.daemons import check_can_stay_up
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition, Python, kind_of
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import calendars


class JobTraits(NamedTuple):
    """What a schedule needs to know of its job."""

    takes: tuple[str, ...]
    kind: str
    broadcast: bool
    limited: bool
    chunked: bool


def traits_of(definition: Definition) -> JobTraits:
    run = definition.run
    takes, chunk = (run.takes, run.chunk) if isinstance(run, Python) else ((), None)
    is_limited = definition.gate is not None
    return JobTraits(takes, kind_of(run), definition.placement.broadcast, is_limited, chunk is not None)


_TRAITS = """
    select name, definition->'run'->'takes' as takes, definition->'run'->>'type' as kind,
           definition @> '{"placement": {"broadcast": true}}' as broadcast, definition ? 'gate' as limited,
           definition->'run' ? 'chunk' as chunked
      from mainspring.job where namespace = 'default' and name = any($1::text[])
"""


async def traits(conn: Connection, jobs: Sequence[str]) -> dict[str, JobTraits]:
    """Those of these jobs that exist."""
    found = {}
    for name, takes, *others in await conn.fetch(_TRAITS, jobs):
        known = () if takes is None else msgspec.json.decode(takes, type=tuple[str, ...])
        found[name] = JobTraits(known, *others)
    return found


def resolved(schedule: Schedule, job: JobTraits | None, days: Mapping[str, Sequence[str]]) -> Schedule:
    """The schedule for this job and these days of its calendars. JobNotFound, CalendarNotFound."""
    if job is None:
        raise JobNotFound(f"no job named {schedule.job!r}; make it first with `mainspring job create`", field="job")
    if schedule.kind == "daemon":
        limited, chunked = job.limited, job.chunked
        check_can_stay_up(schedule.job, job.kind, broadcast=job.broadcast, limited=limited, chunked=chunked)
    fills, policies = job.takes, schedule.policies
    if not policies.scopes and policies.provider is None:
        fills = tuple(name for name in fills if name != "scope")
    if fills != policies.fills:
        schedule = replace(schedule, policies=replace(policies, fills=fills))
    return calendars.with_days(schedule, days)


async def resolve(conn: Connection, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Each of them, resolved; keeps their calendars locked until the caller's transaction ends."""
    known = await traits(conn, list({schedule.job for schedule in schedules}))
    days = await calendars.days_of(conn, schedules)
    return [resolved(schedule, known.get(schedule.job), days) for schedule in schedules]
