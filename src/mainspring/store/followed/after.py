"""After: the tasks of schedules that wait for another schedule, and the names in that relation.

A planner makes such a task blocked, with a count of one that no dependency stands for. Once the other schedule's plan
time is known, dependencies on its tasks take the place of the count, and server/planning/dependencies.py settles them.
Every move is guarded by the state that it leaves, so two leaders do no harm.
Next: store/tasks/dependencies.py
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from mainspring.errors import Conflict, ScheduleNotFound, ValidationError
from mainspring.model.schedules.after import Earlier, Other, Waiting
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.pools import unblocked
from mainspring.model.tasks.states import BLOCKED, SKIP, UNBLOCK, TaskState
from mainspring.store.postgres import hints
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import into_history, noted

LONGEST = 100  # schedules that wait for each other in a row

_LOCK = "select from mainspring.work_lock where name = 'after' for update"
_OTHER = "select kind, policies->>'after' as after from mainspring.schedule where namespace = 'default' and name = $1"


async def check(conn: Connection, name: str, other: str) -> None:
    """Refuse to wait for what is not there, or for a schedule that waits for this one. In the caller's transaction."""
    await conn.execute(_LOCK)  # two changes at once could close a circle
    chain = [name]
    at: str | None = other
    while at is not None:
        if at in chain:
            raise ValidationError(
                f"after: {' → '.join([*chain, at])} is a circle; none of them could ever run", field="after"
            )
        if len(chain) > LONGEST:
            raise ValidationError(f"after: more than {LONGEST} schedules would wait in a row", field="after")
        found = await conn.fetchrow(_OTHER, at)
        if found is None and at == other:
            raise ScheduleNotFound(f"after: no schedule named {other!r}; make it first", field="after")
        if found is not None and at == other and found["kind"] == "daemon":
            raise ValidationError(f"after: {other!r} keeps replicas running, and has no plan times", field="after")
        chain.append(at)
        at = None if found is None else found["after"]


_WAIT_FOR = """
    select name, policies->>'after' as other from mainspring.schedule
     where policies->>'after' = any($1::text[]) and name <> all($1::text[]) order by other, name limit 5
"""


async def check_unused(conn: Connection, names: Sequence[str]) -> None:
    """Refuse to delete what others wait for."""
    if found := await conn.fetch(_WAIT_FOR, names):
        name = found[0]["other"]
        waiting = [row["name"] for row in found if row["other"] == name]
        raise Conflict(
            f"schedule {name!r} cannot go: {', '.join(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for it; "
            f"first `mainspring schedule edit {waiting[0]} --clear after`",
            field="schedule",
        )


_ANY = "select exists (select from mainspring.task where schedule_id is not null and waiting_for > 0)"


async def any_there(conn: Connection) -> bool:
    """Whether a task of a schedule is blocked. Mostly none is, and the search for them need not begin."""
    found: bool = await conn.fetchval(_ANY)
    return found


# The cursor and the ledger of the other schedule are written together, and read here in one statement.
_WAITING = f"""
    select t.id, t.plan_time, t.scope, t.run_at, (select mainspring.now()) as now, s.policies->>'after' as name,
           o.id is not null as exists, coalesce(o.enabled, false) as enabled, o.next_plan_at, q.plan_time as other_time,
           f.scope as other_scope, f.task_id, f.reason, coalesce(h.state, l.state) as state
      from (select id, plan_time, scope, run_at, schedule_id from mainspring.task
             where schedule_id is not null and waiting_for > 0 and state = {BLOCKED:d}
               and ($2::bigint[] is null or id = any ($2)) and id > $3
               and not exists (select from mainspring.dependency d where d.child = task.id)
             order by id limit $1) t
      join mainspring.schedule s on s.id = t.schedule_id
      left join mainspring.schedule o on o.namespace = s.namespace and o.name = s.policies->>'after'
      left join lateral (
          select plan_time from mainspring.fire
           where schedule_id = o.id and plan_time <= t.plan_time and origin <> 'manual'
           order by plan_time desc limit 1
      ) q on true
      left join lateral (
          select scope, task_id, reason, decided_at from mainspring.fire
           where schedule_id = o.id and plan_time = q.plan_time and origin <> 'manual'
      ) f on true
      left join lateral (select state from mainspring.task where id = f.task_id limit 1) l on true
      left join lateral (
          select state from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
     order by t.id
"""


async def waiting(
    conn: Connection, limit: int, tasks: Sequence[int] | None = None, *, behind: int = 0
) -> list[Waiting]:
    """Tasks without dependencies yet: the first ones `behind` an id, or those among `tasks`. Begins a transaction."""
    async with conn.transaction():
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")  # as in fires.py
        rows = await conn.fetch(_WAITING, limit, tasks, behind)
    found = []
    for _, group in groupby(rows, key=itemgetter("id")):
        scopes = list(group)
        *its, name, exists, enabled, cursor, at, _, _, _, _ = scopes[0]
        runs = [
            Earlier(scope, task, reason, None if state is None else TaskState(state))
            for *_, scope, task, reason, state in scopes
            if at is not None
        ]
        found.append(Waiting(*its, Other(name, exists, enabled, cursor, at, runs)))  # type: ignore[call-arg]
    return found


_HELD = f"""
    held as materialized (
        select t.id from mainspring.task t
         where t.id = any ($1::bigint[]) and t.schedule_id is not null and t.waiting_for > 0 and t.state = {BLOCKED:d}
           and not exists (select from mainspring.dependency d where d.child = t.id)
         order by t.id for update skip locked
    )
"""
# A parent that ends at this moment leaves an edge behind, which the dependencies loop finds.
_DEPEND = f"""
    with {_HELD}, edge as (
        insert into mainspring.dependency (parent, child)
        select given.parent, given.child from unnest($1::bigint[], $2::bigint[]) as given(child, parent)
          join held on held.id = given.child
        on conflict do nothing
        returning child
    ), counted as (
        select child, count(*) as parents from edge group by child
    )
    update mainspring.task t set waiting_for = counted.parents from counted where t.id = counted.child
    returning pg_notify('mainspring', 'dependency')
"""


async def depend(conn: Connection, parents: dict[int, list[int]]) -> None:
    """Let each task wait for its parents."""
    edges = [(child, parent) for child, its in parents.items() for parent in its]
    await conn.execute(_DEPEND, [child for child, _ in edges], [parent for _, parent in edges])


_RELEASE = f"""
    with {_HELD}, moved as (
        update mainspring.task t
           set {UNBLOCK.enters}, pool = {unblocked("t.pool")}, waiting_for = 0,
               run_at = greatest(t.run_at, (select mainspring.now()))    -- late from now on, not since it was blocked
          from held where t.id = held.id
        returning t.pool, t.priority, t.run_at, t.id
    )
    select pool, priority, date_part('epoch', run_at) as run_at, id, ({hints.due("moved")}) as hints from moved
"""


async def release(conn: Connection, tasks: Sequence[int]) -> list[Released]:
    """blocked → pending: what they wait for has succeeded."""
    rows = await conn.fetch(_RELEASE, tasks)
    return [Released(row["pool"], row["priority"], (row["run_at"], row["id"])) for row in rows]


_SKIP = f"""
    with {_HELD}, gone as (
        delete from mainspring.task t using held where t.id = held.id
        returning t.*
    ), {noted("gone", f"{SKIP.target:d}")}
    {into_history("gone", SKIP, "after", "($2::text[])[array_position($1::bigint[], gone.id)]")}
"""


async def skip(conn: Connection, why: dict[int, str]) -> int:
    """blocked → skipped: what they wait for has not succeeded. Their children follow."""
    return await partitions.execute(conn, _SKIP, list(why), list(why.values()))
