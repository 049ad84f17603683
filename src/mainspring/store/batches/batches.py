"""Batches as people see them: find, list, close, cancel, retry what failed.

To cancel and to retry are commands in the batch's row, which servers carry out in steps (store/batches/settling.py):
they may touch a hundred thousand tasks, and the caller may disconnect before the last.
Reads   mainspring.batch, mainspring.batch_count, mainspring.batch_change, mainspring.batch_callback
Writes  open → closed; ended → closed
Next:   store/batches/settling.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from mainspring.errors import BatchNotFound
from mainspring.model.flows.batches import FAILURES, BatchState, ByClient, Counts
from mainspring.model.tasks.states import TaskState, among
from mainspring.store.postgres.connection import Connection, is_producer
from mainspring.store.postgres.rows import readable, views

MOST_FAILED = 100  # ids that a view names


class CallbackView(msgspec.Struct, frozen=True):
    """A callback, and the task that it has become."""

    event: str  # success, complete, failure
    job: str
    args: Any = None
    at: datetime | None = None  # None: it was not called yet
    task: int | None = None
    error: str | None = None  # why there is no task


class BatchView(msgspec.Struct, frozen=True):
    id: int
    name: str
    state: str  # open, closed, ended
    outcome: str | None  # of one that has ended: succeeded, failed, cancelled, skipped
    total: int  # members: tasks, and batches in it
    live: int
    succeeded: int
    failed: int
    timed_out: int
    cancelled: int
    skipped: int
    lost: int
    progress: float  # the share that has ended, 0 to 1
    rate: float | None  # members that end per second, over the last minute; None: none has
    time_left: float | None  # seconds, by that rate
    parent: int | None
    callbacks: list[CallbackView]
    created_by: str
    created_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None
    cancelled_at: datetime | None
    retrying: bool  # what failed is being retried
    unreadable: list[str] = []
    namespace: str = "default"


# What was counted, and what has changed since.
_VIEW = """
    select b.id, b.name, b.state, b.outcome, b.parent, b.callbacks, b.created_by, b.created_at, b.closed_at, b.ended_at,
           b.cancelled_at, b.retry_before is not null as retrying,
           c.total + s.total as total, c.succeeded + s.succeeded as succeeded, c.failed + s.failed as failed,
           c.timed_out + s.timed_out as timed_out, c.cancelled + s.cancelled as cancelled,
           c.skipped + s.skipped as skipped, c.lost + s.lost as lost,
           coalesce(c.sampled_before, c.sampled) as sampled,
           date_part('epoch', (select mainspring.now()) - coalesce(c.sampled_before_at, c.sampled_at)) as sampled_ago,
           (select jsonb_agg(jsonb_build_object('event', e.event, 'at', e.at, 'task', e.task_id, 'error', e.error))
              from mainspring.batch_callback e where e.batch_id = b.id) as called
      from mainspring.batch b
      join mainspring.batch_count c on c.batch_id = b.id
     cross join lateral (
         select coalesce(sum(d.count) filter (where d.outcome is null), 0)::bigint as total,
                coalesce(sum(d.count) filter (where d.outcome = 10), 0)::bigint as succeeded,
                coalesce(sum(d.count) filter (where d.outcome = 11), 0)::bigint as failed,
                coalesce(sum(d.count) filter (where d.outcome = 12), 0)::bigint as timed_out,
                coalesce(sum(d.count) filter (where d.outcome = 13), 0)::bigint as cancelled,
                coalesce(sum(d.count) filter (where d.outcome = 14), 0)::bigint as skipped,
                coalesce(sum(d.count) filter (where d.outcome = 15), 0)::bigint as lost
           from mainspring.batch_change d where d.batch_id = b.id
     ) s
"""


def not_found(batch: int) -> BatchNotFound:
    return BatchNotFound(f"batch: no batch {batch}; it never existed, or retention dropped it", field="batch")


async def get(conn: Connection, batch: int) -> BatchView:
    rows = await readable(conn, f"{_VIEW} where b.id = $1", batch)
    if not rows:
        raise not_found(batch)
    return _views(rows)[0]


async def exists(conn: Connection, batch: int) -> bool:
    return await conn.fetchval("select true from mainspring.batch where id = $1", batch) is not None


_LISTING = f"""
    {_VIEW}
     where ($1::bigint is null or b.id < $1) and ($2::smallint[] is null or b.state = any ($2))
       and ($3::bigint is null or b.parent = $3) and ($4::text[] is null or b.name like any ($4))
       and ($5::text is null or b.created_by = $5)
     order by b.id desc limit $6
"""


async def listing(
    conn: Connection,
    *,
    before: int | None,
    states: Sequence[BatchState],
    parent: int | None,
    names: Sequence[str],
    created_by: str | None,
    limit: int,
) -> list[BatchView]:
    """The newest first. `names` are patterns for LIKE."""
    given = [int(state) for state in states] or None
    return _views(await readable(conn, _LISTING, before, given, parent, list(names) or None, created_by, limit))


def _views(rows: Sequence[Any]) -> list[BatchView]:
    return views(BatchView, [_columns(row) for row in rows])


def _columns(row: Any) -> dict[str, Any]:
    counts = Counts(**{name: row[name] for name in Counts.__struct_fields__})
    state = BatchState(row["state"])
    rate = None
    if row["sampled_ago"] and counts.ended > (row["sampled"] or 0):
        rate = round((counts.ended - (row["sampled"] or 0)) / max(row["sampled_ago"], 0.001), 3)
    return {
        **row,
        "state": state.label,
        "outcome": None if row["outcome"] is None else TaskState(row["outcome"]).label,
        "live": counts.live,
        "progress": _progress(state, counts),
        "rate": None if state is BatchState.ENDED else rate,
        "time_left": round(counts.live / rate, 1) if rate and state is not BatchState.ENDED else None,
        "callbacks": _callbacks(row["callbacks"], row["called"]),
    }


def _progress(state: BatchState, counts: Counts) -> float:
    if counts.total == 0:
        return 1.0 if state is BatchState.ENDED else 0.0
    return round(min(1.0, counts.ended / counts.total), 4)


def _callbacks(given: str, called: str | None) -> list[dict[str, Any]]:
    callbacks = msgspec.json.decode(given, type=dict[str, dict[str, Any]])
    found = {one["event"]: one for one in msgspec.json.decode(called)} if called else {}
    return [
        {"event": event, "job": str(callback.get("job")), "args": callback.get("args", {}), **found.get(event, {})}
        for event, callback in callbacks.items()
    ]


_FAILED = "select h.id from mainspring.task_history_failed h where h.batch_id = $1 order by h.id limit $2"
_OWN_FAILED = f"""
    select h.id from mainspring.task_history h where h.batch_id = $1 and h.state in {among(FAILURES)}
     order by h.id limit $2
"""


async def failed(conn: Connection, batch: int) -> list[int]:
    """The first tasks of it that failed, timed out or were lost. A producer reads the view of the whole."""
    return [row["id"] for row in await conn.fetch(_OWN_FAILED if is_producer(conn) else _FAILED, batch, MOST_FAILED)]


_CREATED_BY = "select created_by from mainspring.batch where id = $1"


async def created_by(conn: Connection, batch: int) -> str | None:
    """Whose batch it is; None: there is none."""
    actor: str | None = await conn.fetchval(_CREATED_BY, batch)
    return actor


# A client has no metrics, so it leaves what it did to a server, which closing it wakes.
_SETTLE_AND_TELL = f"""
    insert into mainspring.batch_change (batch_id, outcome, count)
    select $1, did.what, did.times
      from mainspring.settle_batch($1) settled
     cross join lateral (values ({ByClient.ENDED:d}, settled.ended::integer), ({ByClient.CALLED:d}, settled.fired))
           as did(what, times)
     where did.times > 0
"""


async def close(conn: Connection, batch: int) -> bool:
    """open → closed, and ended if nothing of it lives. False: it was not open, and nothing changed."""
    was_open: bool = await conn.fetchval("select mainspring.close_batch($1)", batch)
    if was_open:
        await conn.execute(_SETTLE_AND_TELL, batch)
    return was_open


# It takes no more tasks, is closed, and ends as cancelled.
_CANCEL = f"""
    update mainspring.batch b
       set cancelled_at = coalesce(b.cancelled_at, mainspring.now()), kills = b.kills or $2, retry_before = null,
           state = {BatchState.CLOSED:d}, closed_at = coalesce(b.closed_at, mainspring.now())
     where b.id = $1 and b.state < {BatchState.ENDED:d}
    returning mainspring.look_at_batch(b.id)
"""


async def cancel(conn: Connection, batch: int, *, kill: bool) -> bool:
    """Have all cancelled that is live in it. False: it has ended."""
    return bool(await conn.fetch(_CANCEL, batch, kill))


# With the batches in it, whose failures are its own.
_RETRY = """
    with recursive within(id) as (
        select b.id from mainspring.batch b where b.id = $1
        union all
        select b.id from mainspring.batch b join within on b.parent = within.id
    ), failing as materialized (
        select within.id from within
         where exists (select from mainspring.task_history_failed h where h.batch_id = within.id)
    ), again as materialized (
        select mainspring.reopen_batches(array_agg(failing.id)) from failing having count(*) > 0
    )
    select array_agg(failing.id) from failing where exists (select from again)
"""
_RETRY_ALL = """
    update mainspring.batch b
       set retry_before = mainspring.now(), cancelled_at = null, kills = false
     where b.id = any ($1::bigint[])
    returning mainspring.look_at_batch(b.id)
"""
# Of the batch, of those with failures, and of those in between, which end once more too.
_FORGET_CALLS = """
    with recursive up(id, parent) as (
        select b.id, b.parent from mainspring.batch b where b.id = any ($2::bigint[])
        union
        select b.id, b.parent from mainspring.batch b join up on b.id = up.parent where up.id <> $1
    )
    delete from mainspring.batch_callback c using up where c.batch_id = up.id
"""


async def retry(conn: Connection, batch: int, *, callbacks_again: bool) -> list[int]:
    """Have all retried that has failed in it and in the batches within it; returns those that have such tasks.

    They are closed again if they had ended. With `callbacks_again` their callbacks come once more, and
    those of the batches that they are in, up to this one.
    """
    ids: list[int] | None = await conn.fetchval(_RETRY, batch)
    if not ids:
        return []
    if callbacks_again:
        await conn.execute(_FORGET_CALLS, batch, ids)
    await conn.fetch(_RETRY_ALL, ids)
    return ids
