"""Settling: add up what has changed in batches and end them; cancel or retry their tasks in bounded steps.

The functions of the schema do the former (0001_schema.sql, Batches), one call and one transaction for each batch. Each
step can be repeated, and two servers may do the same at once.
Writes  mainspring.batch   (closed → ended), callbacks into mainspring.task
Next:   server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from mainspring.model.flows.batches import BatchState, ByClient
from mainspring.model.tasks.states import IS_WAITING, CancelMode, among
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import affected
from mainspring.store.tasks import tasks

STEP = 1000  # tasks that are cancelled or retried in one transaction

_ANY = f"""
    select exists (select from mainspring.batch_change)
        or exists (select from mainspring.batch b
                    where b.state < {BatchState.ENDED:d} and (b.cancelled_at is not null or b.retry_before is not null))
"""


async def any_there(conn: Connection) -> bool:
    """Whether a batch has changed, or is to be cancelled or retried. Mostly none is."""
    found: bool = await conn.fetchval(_ANY)
    return found


_CHANGED = "select distinct batch_id from mainspring.batch_change limit $1"
# Of batches that retention has dropped.
_FORGET = """
    delete from mainspring.batch_change c
     where not exists (select from mainspring.batch b where b.id = c.batch_id)
"""


async def changed(conn: Connection, limit: int) -> list[int]:
    """Batches to settle."""
    return [row["batch_id"] for row in await conn.fetch(_CHANGED, limit)]


class Settled(NamedTuple):
    ended: bool
    fired: int  # callbacks


async def settle(conn: Connection, batch: int) -> Settled | None:
    """Count, and end it if it is over. None: another server does so at this moment, or there is no such batch."""
    ended, fired = await conn.fetchrow("select ended, fired from mainspring.settle_batch($1)", batch)
    return None if ended is None else Settled(ended, fired)


_TAKE = f"""
    delete from mainspring.batch_change where batch_id = any ($1::bigint[]) and outcome in {among(ByClient)}
    returning outcome, count
"""


class Done(NamedTuple):
    ended: int
    fired: int


async def done_by_clients(conn: Connection, batches: Sequence[int]) -> Done:
    """What clients did when they closed these batches; each row is counted once."""
    rows = await conn.fetch(_TAKE, batches)
    ended, fired = (sum(row["count"] for row in rows if row["outcome"] == what) for what in ByClient)
    return Done(ended, fired)


async def forget_orphans(conn: Connection) -> None:
    await conn.execute(_FORGET)


# Should a count ever be wrong, the tasks decide: every closed batch ends.
_LEFT_OVER = f"""
    select b.id, mainspring.look_at_batch(b.id) from mainspring.batch b
     where b.state = {BatchState.CLOSED:d} and b.retry_before is null
       and not exists (select from mainspring.task t where t.batch_id = b.id)
       and not exists (select from mainspring.batch c where c.parent = b.id and c.state < {BatchState.ENDED:d})
       and not exists (select from mainspring.batch_change d where d.batch_id = b.id)
     limit $1
"""
_CORRECT_TOTAL = """
    update mainspring.batch_count c
       set total = c.succeeded + c.failed + c.timed_out + c.cancelled + c.skipped + c.lost
     where c.batch_id = any ($1::bigint[])
"""


async def recount(conn: Connection, limit: int) -> list[int]:
    """Closed batches without live members that were not ended; the next step ends them."""
    async with conn.transaction():
        found = [row["id"] for row in await conn.fetch(_LEFT_OVER, limit)]
        if found:
            await conn.execute(_CORRECT_TOTAL, found)
    return found


# As long as the last of its tasks: failures are kept longer. One that was never closed, and lost its last task.
_RETENTION = f"""
    delete from mainspring.batch where id = any (array(
        select b.id from mainspring.batch b join mainspring.batch_count c on c.batch_id = b.id
         where b.state = {BatchState.ENDED:d} and b.ended_at < (select mainspring.now()) - case
                   when c.failed + c.timed_out + c.lost > 0 then $2::interval else $1::interval end
           and b.ended_at < (select mainspring.now()) - least($1::interval, $2::interval)
           and not exists (select from mainspring.task_history h where h.batch_id = b.id)
         order by b.ended_at limit $3)
     || array(
        select b.id from mainspring.batch b
         where b.state = {BatchState.OPEN:d} and b.created_at < (select mainspring.now()) - greatest($1::interval, $2)
           and not exists (select from mainspring.task t where t.batch_id = b.id)
           and not exists (select from mainspring.task_history h where h.batch_id = b.id)
           and not exists (select from mainspring.batch c where c.parent = b.id)
         limit $3))
"""


async def forget(conn: Connection, keep_succeeded: timedelta, keep_failed: timedelta, limit: int) -> int:
    """Delete batches that have outlived their tasks; returns how many."""
    return affected(await conn.execute(_RETENTION, keep_succeeded, keep_failed, limit))


class Command(NamedTuple):
    """What servers are to do with the tasks of a batch."""

    batch: int
    cancels: bool
    kills: bool
    given_at: datetime  # a later command begins anew


# Tasks that an agent holds are asked once; with `kills` once more, without grace.
def _uncancelled(kills: str) -> str:
    killed = f"t.cancel_mode is not distinct from {CancelMode.KILL:d}"
    return f"(t.{IS_WAITING} or t.cancel_at is null or {kills} and not {killed})"


def _uncancelled_within(kills: str) -> str:
    return f"c.state < {BatchState.ENDED:d} and (c.cancelled_at is null or {kills} and not c.kills)"


# A batch that waits for tasks that were asked to stop has nothing to do, and must not keep others from their turn.
_COMMANDS = f"""
    select b.id, b.cancelled_at is not null, b.kills, coalesce(b.cancelled_at, b.retry_before) from mainspring.batch b
     where b.state < {BatchState.ENDED:d} and (b.cancelled_at is not null or b.retry_before is not null)
       and (b.retry_before is not null
            or exists (select from mainspring.task t where t.batch_id = b.id and {_uncancelled("b.kills")})
            or exists (select from mainspring.batch c where c.parent = b.id and {_uncancelled_within("b.kills")}))
     order by b.id limit $1
"""


async def commands(conn: Connection, limit: int) -> list[Command]:
    return [Command(*row) for row in await conn.fetch(_COMMANDS, limit)]


_LIVE = f"""
    select t.id from mainspring.task t
     where t.batch_id = $1 and t.id > $2 and {_uncancelled("$3")}
     order by t.id limit {STEP}
"""
_CANCEL_WITHIN = f"""
    update mainspring.batch c
       set cancelled_at = coalesce(c.cancelled_at, mainspring.now()), kills = $2, retry_before = null,
           state = {BatchState.CLOSED:d}, closed_at = coalesce(c.closed_at, mainspring.now())
     where c.parent = $1 and {_uncancelled_within("$2")}
    returning mainspring.look_at_batch(c.id)
"""


class Step(NamedTuple):
    tasks: int
    reached: int  # the last of them

    @property
    def has_more(self) -> bool:
        return self.tasks == STEP


async def cancel_step(conn: Connection, command: Command, after: int) -> Step:
    """Cancel the next tasks behind the id `after`."""
    async with conn.transaction():
        await conn.fetch(_CANCEL_WITHIN, command.batch, command.kills)
        ids: list[int] = [row["id"] for row in await conn.fetch(_LIVE, command.batch, after, command.kills)]
        if ids:
            await tasks.cancel_each(conn, ids, kill=command.kills)
    return Step(len(ids), ids[-1] if ids else after)


_FAILED = f"""
    select h.id from mainspring.task_history_failed h
     where h.batch_id = $1 and h.id > $2 and h.recorded_at < $3
     order by h.id limit {STEP}
"""
_RETRIED = """
    update mainspring.batch b set retry_before = null where b.id = $1 and b.retry_before = $2
    returning mainspring.look_at_batch(b.id)
"""


async def retry_step(conn: Connection, command: Command, after: int) -> Step:
    """Retry the next failed tasks behind the id `after`; with the last of them the command is carried out."""
    async with conn.transaction():
        ids: list[int] = [row["id"] for row in await conn.fetch(_FAILED, command.batch, after, command.given_at)]
        if ids:
            await tasks.run_each_again(conn, ids)
        if len(ids) < STEP:
            await conn.fetch(_RETRIED, command.batch, command.given_at)
    return Step(len(ids), ids[-1] if ids else after)
