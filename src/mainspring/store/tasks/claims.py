"""Claims: pending → assigned, in batches, in the order of priority and time.

A claim scans the index from a floor that its caller remembers. Below it are the tasks that were claimed before and the
dead entries of those that have ended, which stay as long as any old snapshot does.
Next: server/dispatch/arming.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from mainspring.model.messages import Armed
from mainspring.model.tasks.claim_floors import Floor
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.model.tasks.pools import IS_DAEMON
from mainspring.model.tasks.states import ARM, ASSIGNED, PENDING, RECALL, CancelMode
from mainspring.store.cluster.holds import ON_HOLD, any_hold_of, is_not_held, most
from mainspring.store.cluster.segments import holds, owned_or_shared
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection

LEVELS = list(PRIORITY_LEVELS)
BATCH_TOKENS = 2048  # tokens of one claim: the batch times this, and one more for each task
AT_ONCE = 1000  # tasks of a claim that are read in one step of the event loop

# What few tasks have is one column, which is null for all others: to send and to read a column costs as much if it is
# null.
ARMED_COLUMNS = f"""
    t.id, t.token, t.job_id, t.attempt, date_part('epoch', t.run_at) as run_at, t.args, t.priority,
    case when t.schedule_id is not null or t.options is not null or t.batch_id is not null or t.expires_at is not null
           or t.checkpoint is not null or t.crashes > 0 or t.scope is not null or t.plan_time is not null
           or t.{IS_DAEMON}
         then row (t.checkpoint, t.crashes > 0, date_part('epoch', t.plan_time), t.scope, t.{IS_DAEMON},
                   (select s.name from mainspring.schedule s where s.id = t.schedule_id),
                   date_part('epoch', t.expires_at),
                   case when t.batch_id is null then t.options
                        else coalesce(t.options, '{{}}') || jsonb_build_object('batch', t.batch_id) end)
         end as rare
"""
COLUMNS = f"{ARMED_COLUMNS}, t.session"

# For statements that choose a session for each row: `placed` has the rows, each with its session and its turn. They are
# noted under one batch number, which their tokens begin with.
NOTED = """
    number as materialized (
        select nextval('mainspring.claim_batch') as batch from placed limit 1
    ), noted as (
        insert into mainspring.claim (session, batch, tasks)
        select session, (select batch from number), array_agg(id) from placed group by session
    )
"""


def _claim(session: str, noted: str) -> str:
    """The statement of a claim.

    One index scan per priority level, which stops as soon as there are enough. It skips tasks of segments that other
    servers own, and those of held jobs. SKIP LOCKED skips rows that other claims have locked; NO KEY does not conflict
    with the key share locks of store/limits/release.py.
    The state in the last WHERE lets one claimer have each row. A locked row keeps its place, so the update finds it
    whatever the planner believes about the table.
    `taken` has what the rest needs as arrays, in one row: the update then visits all places in one scan, where a join
    would begin a scan for each. A task's turn is its rank among the ids.
    """
    return f"""
        with {owned_or_shared(server="$8", pool="$1")}, {ON_HOLD}, due as materialized (
            select found.ctid as place, found.id
              from unnest($2::smallint[], $3::float8[], $4::bigint[]) as level(priority, floor_at, floor_id)
             cross join lateral (
                 select ctid, id from mainspring.task
                  where pool = $1 and priority = level.priority
                    and (run_at, id) >= (to_timestamp(level.floor_at), level.floor_id)
                    and run_at <= (select mainspring.now()) + make_interval(secs => $5)
                    and state = {PENDING:d} and {holds("id % 100")} and {is_not_held()}
                  order by run_at, id
                  limit {most("$7")}
                    for no key update skip locked
             ) found
             limit $7
        ), taken as materialized (
            select array_agg(place) as places, array_agg(id order by id) as tasks from due
        ), number as materialized (
            select nextval('mainspring.claim_batch') as batch from taken where tasks is not null
        ), noted as (
            insert into mainspring.claim (session, batch, tasks) {noted}
        )
        update mainspring.task t
           set {ARM.enters}, token = (select batch from number) * {BATCH_TOKENS} + {_TURN}, attempt = attempt + 1,
               session = {session}
         where t.ctid = any ((select places from taken)::tid[]) and t.{ARM.leaves}
        returning {COLUMNS}
    """


_TURN = "width_bucket(t.id, (select tasks from taken)) - 1"
_SESSION = "($6::bigint[])[({turn}) % cardinality($6::bigint[]) + 1]"
_FOR_ONE = _claim(session="($6::bigint[])[1]", noted="select ($6::bigint[])[1], batch, tasks from taken, number")
_FOR_SEVERAL = _claim(
    session=_SESSION.format(turn=_TURN),
    noted=f"""
        select session, (select batch from number), array_agg(id)
          from (select id, {_SESSION.format(turn="rank - 1")} as session
                  from taken, unnest(tasks) with ordinality as task(id, rank)) shared
         group by session
    """,
)


class Claim(NamedTuple):
    """The result of one statement: the tasks by session, and the last position by priority."""

    tasks: dict[int, list[Armed]]
    positions: dict[int, Floor]
    size: int

    @property
    def batches(self) -> dict[int, int]:
        """The batch number of each session's tasks; the last, if there are several."""
        return {session: tasks[-1].token // BATCH_TOKENS for session, tasks in self.tasks.items()}


def as_armed(row: Sequence[Any]) -> Armed:
    """An attempt from a row that begins with ARMED_COLUMNS."""
    id, token, job, attempt, run_at, args, priority, rare, *_ = row
    if rare is None:
        return Armed(id, token, job, attempt, run_at, args, priority=priority)
    checkpoint, careful, plan_time, scope, daemon, schedule, expires, options = rare
    return Armed(
        id, token, job, attempt, run_at, args, checkpoint, careful, plan_time, scope, daemon, priority, schedule,
        expires, options,
    )  # fmt: skip


def as_claim(rows: Sequence[Any]) -> Claim:
    """A claim from rows with COLUMNS, in the order of the queue."""
    claim = Claim({}, {}, len(rows))
    _read(rows, claim)
    return claim


def _read(rows: Sequence[Any], claim: Claim) -> None:
    tasks, positions, _ = claim
    for row in rows:
        id, token, job, attempt, run_at, args, priority, rare, session = row
        plain = rare is None  # as most: no call
        armed = Armed(id, token, job, attempt, run_at, args, priority=priority) if plain else as_armed(row)
        if session in tasks:
            tasks[session].append(armed)
        else:
            tasks[session] = [armed]
        positions[priority] = (run_at, id)


async def claim(
    conn: Connection,
    server: UUID,
    pool: int,
    sessions: Sequence[int],
    limit: int,
    floors: Sequence[Floor],
    *,
    ahead: float,
    levels: Sequence[int] = LEVELS,
) -> Claim:
    """Give up to `limit` tasks of `pool`, due within `ahead` seconds, to `sessions` in turn.

    Only of segments that `server` owns, or whose owner has opened the pool to others. `floors` has one lower bound
    for each of `levels`, which are all, in the order of PRIORITY_LEVELS, unless some priorities go first.
    """
    assert limit <= BATCH_TOKENS
    at, ids = [at for at, _ in floors], [id for _, id in floors]
    statement = _FOR_ONE if len(sessions) == 1 else _FOR_SEVERAL
    rows = await conn.fetch(statement, pool, levels, at, ids, ahead, sessions, limit, server)
    rows.sort(key=_TIME_AND_ID)  # they come in the order of their places, which is nearly this one
    rows.sort(key=_PRIORITY, reverse=True)
    claim = Claim({}, {}, len(rows))
    for start in range(0, len(rows), AT_ONCE):
        _read(rows[start : start + AT_ONCE], claim)
        if len(rows) > AT_ONCE:
            await asyncio.sleep(0)
    return claim


_TIME_AND_ID, _PRIORITY = itemgetter(4, 0), itemgetter(6)


_UNANSWERED = f"""
    select {COLUMNS}
      from unnest($1::bigint[], $2::bigint[]) as given(session, batch)
      join mainspring.claim c on c.session = given.session and c.batch > given.batch
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = claimed.id and t.session = c.session and t.state = {ASSIGNED:d}
     order by c.batch
"""


async def unanswered(conn: Connection, batches: dict[int, int]) -> Claim:
    """What was claimed for these sessions after their last known batch: a claim whose result was lost."""
    return as_claim(await conn.fetch(_UNANSWERED, list(batches), list(batches.values())))


_UNDISPATCHED = "select session, batch from mainspring.claim where session = any($1::bigint[]) and undispatched"
_CLAIMED = f"""
    select {COLUMNS}
      from unnest($1::bigint[], $2::bigint[]) as given(session, batch)
      join mainspring.claim c on c.session = given.session and c.batch = given.batch
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = claimed.id and t.session = c.session and t.state = {ASSIGNED:d}
     where t.token / {BATCH_TOKENS} = c.batch        -- else it was given back and claimed again
     order by c.batch
"""
_MARK_DISPATCHED = """
    update mainspring.claim c set undispatched = false
      from unnest($1::bigint[], $2::bigint[]) as given(session, batch)
     where c.session = given.session and c.batch = given.batch
"""

Batches = list[tuple[int, int]]  # (session, batch)


async def undispatched(conn: Connection, sessions: Sequence[int]) -> tuple[Batches, Claim]:
    """Claims of broadcasts, for sessions of any server, that the session's server has not dispatched yet.

    The batch number does not identify them: another server draws it while the session's server draws others, and
    commits before or after those. So these claims are marked (`undispatched`). `compact` keeps a marked claim.
    `mark_dispatched` removes the mark after the tasks are armed, when they are among what the session holds. If the
    server dies in between, the claim is found again; an agent accepts a token once.
    """
    batches = [(row["session"], row["batch"]) for row in await conn.fetch(_UNDISPATCHED, sessions)]
    if not batches:
        return [], Claim({}, {}, 0)
    return batches, as_claim(await conn.fetch(_CLAIMED, *zip(*batches, strict=True)))


async def mark_dispatched(conn: Connection, batches: Batches) -> None:
    """These claims are dispatched: remove their mark."""
    await conn.execute(_MARK_DISPATCHED, [session for session, _ in batches], [batch for _, batch in batches])


_COMPACT = """
    with given as materialized (
        select session, batch, ($4::bigint[])[upto - held + 1 : upto] as tasks
          from (select session, batch, held, sum(held) over (order by number) as upto
                  from unnest($1::bigint[], $2::bigint[], $3::integer[]) with ordinality
                    as latest(session, batch, held, number)) counted
    ), now as (
        update mainspring.claim c set tasks = given.tasks
          from given
         where c.session = any (array[given.session]) and c.batch = any (array[given.batch]) and not c.undispatched
        returning c.session, c.batch
    )
    delete from mainspring.claim c using now
     where c.session = any (array[now.session]) and c.batch < now.batch and not c.undispatched
"""


async def compact(conn: Connection, held: Mapping[tuple[int, int], Collection[int]]) -> None:
    """Replace each session's claims up to a batch by one of all tasks that it still holds, given by (session, batch).

    One statement however many sessions are busy. Marked claims stay.
    """
    await conn.execute(
        _COMPACT,
        [session for session, _ in held],
        [batch for _, batch in held],
        [len(tasks) for tasks in held.values()],
        list(chain.from_iterable(held.values())),
    )


# One that has slots keeps them and its place, unless its job is held: then others may have the slots. One that has a
# gate and no slots belongs to a job that was held since it was claimed.
_GIVE_BACK = f"""
    with given as (select * from unnest($1::bigint[], $2::bigint[]) as given(id, token)), was as materialized (
        select t.id, t.gate, t.job_id, slots.has_slots,
               t.gate is not null and (not slots.has_slots or {any_hold_of("t.job_id")}) as returns,
               case when t.key_slot is not null then t.concurrency_key end as held_key
          from given
          join mainspring.task t on t.id = any (array[given.id])    -- one index probe each: see transitions.py
         cross join lateral (select t.job_slot is not null or t.key_slot is not null as has_slots) slots
         where t.token = given.token and t.{RECALL.leaves}
           and (t.cancel_at is null or t.cancel_mode = {CancelMode.RESTART:d})
           for update of t
    ), moved as (
        update mainspring.task t
           set {RECALL.enters}, session = null, started_at = null, attempt = attempt - 1, cancel_at = null,
               cancel_mode = null, pool = case when was.returns then t.gate else t.pool end,
               job_slot = case when not was.returns then t.job_slot end,
               key_slot = case when not was.returns then t.key_slot end
          from was
         where t.id = any (array[was.id]) and t.{RECALL.leaves}
        returning t.id, t.pool, t.priority, t.run_at
    )
    select id, ({hints.due("moved")}) as hints,
           (select count(mainspring.slot_freed(was.gate, was.job_id, was.held_key))
              from was where was.returns and was.has_slots) as freed
      from moved
"""


async def give_back(conn: Connection, tasks: Sequence[int], tokens: Sequence[int]) -> int:
    """assigned → pending for tasks that never started: costs no attempt. Returns how many; cancelled ones stay."""
    return len(await conn.fetch(_GIVE_BACK, tasks, tokens))
