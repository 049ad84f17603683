"""Manual: one run of a schedule at once, beside its plan, and the scopes that a person names.

Next: store/followed/runs.py
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from mainspring.errors import Conflict, InvalidTransition
from mainspring.model.schedules.planning import INSTANT, arguments
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import timing
from mainspring.store.followed import runs
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules.schedules import find


async def run_now(conn: Connection, name: str, scopes: Sequence[str] = ()) -> list[int]:
    """Run it once now, all its scopes or those given, apart from its plan; returns the tasks."""
    stored = await find(conn, name)
    policies = stored.schedule.policies
    if stored.schedule.kind == "daemon":
        raise InvalidTransition(f"schedule {name!r} keeps replicas running; there is no single run", field="schedule")
    if not scopes and policies.provider is not None:
        raise Conflict(
            f"the scopes of {name!r} are told by its application; name those to run with --scope", field="scopes"
        )
    wanted = chosen_scopes(stored.schedule, scopes)
    plan_time, times = stored.now, timing(stored.schedule)
    while True:
        # Only planners decide plan times; and another manual run may have taken this instant.
        if times.after(plan_time - INSTANT) != plan_time:
            args = [arguments(policies, stored.schedule.timezone, plan_time, scope) for scope in wanted]
            try:
                async with conn.transaction():  # a savepoint, where the caller has a transaction
                    return await runs.make(conn, stored.id, wanted, plan_time, args, stored.now, origin="manual")
            except asyncpg.UniqueViolationError:
                pass
        plan_time += INSTANT


def chosen_scopes(schedule: Schedule, given: Sequence[str]) -> tuple[str, ...]:
    """The scopes that a person names, each once, or all; Conflict if the schedule does not have one of them."""
    known = schedule.policies.scopes
    for scope in given if schedule.policies.provider is None else ():
        if scope not in known:
            there = ", ".join(known[:10]) or "none"
            raise Conflict(f"schedule {schedule.name!r} has no scope {scope!r}; it has: {there}", field="scopes")
    return tuple(dict.fromkeys(given)) or known or ("",)
