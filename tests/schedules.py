"""What tests of planning share: a clock that stands still until it is set, schedules in a line, the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from mainspring.model.messages import Armed, Ending, Start
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.planning import decide
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import plans, schedules, skips
from mainspring.store.schedules.plans import Advance, DueSchedule, Fire
from mainspring.store.tasks import claims, jobs, partitions, transitions
from tests.cluster import OWNER

START = datetime(2031, 3, 29, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def set_clock(conn: Connection, seconds: float | datetime) -> None:
    now = seconds if isinstance(seconds, datetime) else at(seconds)
    await conn.execute(f"""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select timestamptz ''{now.isoformat()}'''
    """)


async def create(
    conn: Connection,
    name: str = "report",
    *,
    enabled: bool = True,
    app: str | None = None,
    args: dict[str, Any] | None = None,
    provider: str | None = None,
    takes: tuple[str, ...] = (),
    **options: Any,
) -> int:
    """A schedule of a job named `job`; returns its id."""
    await jobs.register(conn, {"job": Definition(Python("job", takes))})
    schedule = define_schedule(
        name,
        "job",
        options,  # type: ignore[arg-type]
        args=args,
        provider=provider,
    )
    assert await schedules.create(conn, schedule, enabled=enabled, app=app)
    return (await schedules.find(conn, name)).id


class Entry(NamedTuple):
    """A row of the ledger; the plan time in seconds from START."""

    at: float
    scope: str
    reason: str | None


async def ledger(conn: Connection, schedule: int, *, origin: str = "plan") -> list[Entry]:
    rows = await conn.fetch(
        "select * from mainspring.fire where schedule_id = $1 and origin = $2 order by plan_time, scope",
        schedule,
        origin,
    )
    return [Entry((row["plan_time"] - START).total_seconds(), row["scope"], row["reason"]) for row in rows]


async def live(conn: Connection, schedule: int) -> list[tuple[float, TaskState]]:
    """Live tasks of a schedule: the plan time in seconds from START, and the state."""
    rows = await conn.fetch(
        "select plan_time, state from mainspring.task where schedule_id = $1 order by plan_time, scope", schedule
    )
    return [((row["plan_time"] - START).total_seconds(), TaskState(row["state"])) for row in rows]


async def planned(conn: Connection, found: Sequence[DueSchedule] | None = None) -> set[int]:
    """Do what a planner does: decide about `found`, or about all that are due; returns the schedules that moved."""
    moves: list[Advance] = []
    fires: list[Fire] = []
    all_due = await plans.due(conn, OWNER, 1000) if found is None else found
    skipped = await skips.of_due(conn, all_due)
    for due in all_due:
        versions = await plans.versions(conn, due)
        decision = decide(versions, due.cursor, due.now, runs=due.runs, skips=skipped.get(due.id, ()))
        moves.append(Advance(due.id, due.number, due.cursor, decision.cursor, decision.look_at, skips=due.skips))
        fires += [
            Fire(due.id, one.plan_time, scope, one.due, one.reason)
            for one in decision.plan_times
            for scope in due.schedule.policies.scopes or ("",)
        ]
    return await plans.plan(conn, OWNER, moves, fires)


async def claimed(conn: Connection, *, ahead: float = 5.0, limit: int = 1000) -> list[Armed]:
    """Claim for session 1 what is due within so many seconds."""
    pool = await conn.fetchval("select pool from mainspring.job")
    claim = await claims.claim(conn, OWNER, pool, [1], limit, [BOTTOM] * len(PRIORITY_LEVELS), ahead=ahead)
    return claim.tasks.get(1, [])


async def started(conn: Connection, armed: Sequence[Armed]) -> None:
    await transitions.start(conn, [Start(a.task, a.token, a.fire_at) for a in armed])


async def finished(conn: Connection, armed: Sequence[Armed], state: TaskState = TaskState.SUCCEEDED) -> int:
    endings = [Ending(a.task, a.token, a.job, a.attempt, state, a.fire_at, a.fire_at) for a in armed]
    return len(await partitions.write(conn, lambda: transitions.finish(conn, endings)))
