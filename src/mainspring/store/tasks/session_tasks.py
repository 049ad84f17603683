"""Session tasks: what the sessions of agents hold, what is asked of it, whose attempts reports are about, and what
running attempts report: progress, checkpoints, health, output.

Reads   mainspring.task of active tasks by session
Writes  mainspring.task.session, when an agent reconnects; its progress; mainspring.output
Next:   server/agents/gateway.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.messages import Armed, Chunk, Note
from mainspring.model.tasks.states import IS_ACTIVE, RUNNING, CancelMode
from mainspring.store.cluster.agents import AgentInfo, resume
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected
from mainspring.store.tasks.claims import ARMED_COLUMNS, as_armed

_KEPT = f"""
    select {ARMED_COLUMNS} from mainspring.task t
     where t.id = any ($1::bigint[]) and t.session = $2 and t.{IS_ACTIVE}
"""


class TakenOver(NamedTuple):
    """A session that continues another: its number, the tasks it took over, and the batch that notes them."""

    session: int
    tasks: list[Armed]
    batch: int


async def take_over(
    conn: Connection, agent: AgentInfo, lease: float, tasks: Sequence[int], tokens: Sequence[int]
) -> TakenOver:
    """Open a session that takes over what the agent process still holds of its previous ones."""
    session, batch = await resume(conn, agent, lease, tasks, tokens)
    rows = await conn.fetch(_KEPT, tasks, session) if batch else []
    return TakenOver(session, [as_armed(row) for row in rows], batch)


_ANY_ASKED = f"""
    select exists (select from mainspring.task
                    where session = any($1::bigint[]) and cancel_at is not null and {IS_ACTIVE})
        or exists (select from mainspring.task
                    where session = any($1::bigint[]) and paused_at is not null and state = {RUNNING:d})
        or exists (select from mainspring.stop_order where session = any($1::bigint[]))
"""


async def any_asked(conn: Connection, sessions: Sequence[int]) -> bool:
    """Whether an attempt of these sessions is to be stopped or paused. Mostly none is."""
    found: bool = await conn.fetchval(_ANY_ASKED, sessions)
    return found


_CANCELLED = f"""
    select session, id, token, cancel_mode from mainspring.task
     where session = any($1::bigint[]) and cancel_at is not null and {IS_ACTIVE}
"""


class CancelRequest(NamedTuple):
    """An attempt that its agent is to stop. Without a mode: with its grace."""

    session: int
    task: int
    token: int
    mode: CancelMode | None


async def cancelled(conn: Connection, sessions: Sequence[int]) -> list[CancelRequest]:
    """The attempts of these sessions that are to be stopped."""
    return [
        CancelRequest(session, task, token, None if mode is None else CancelMode(mode))
        for session, task, token, mode in await conn.fetch(_CANCELLED, sessions)
    ]


_PAUSED = f"""
    select session, id, token from mainspring.task
     where session = any($1::bigint[]) and paused_at is not null and state = {RUNNING:d}
"""


async def paused(conn: Connection, sessions: Sequence[int]) -> dict[int, dict[int, int]]:
    """The attempts of these sessions that are to be paused: by session, the task of each token."""
    found: dict[int, dict[int, int]] = {}
    for row in await conn.fetch(_PAUSED, sessions):
        found.setdefault(row["session"], {})[row["token"]] = row["id"]
    return found


# An attempt belongs to an agent if a session of the same agent process holds it or held it.
_OWN = """
    with own as (select session from mainspring.agent where instance = $3)
    select given.id, given.token from unnest($1::bigint[], $2::bigint[]) as given(id, token)
     where exists (select from mainspring.task t
                    where t.id = given.id and t.token = given.token and t.session in (select session from own))
        or exists (select from mainspring.task_history h
                    where h.id = given.id and h.token = given.token and h.session in (select session from own))
        or exists (select from mainspring.attempt a
                    where a.task_id = given.id and a.token = given.token and a.session in (select session from own))
"""


async def own(conn: Connection, instance: str, attempts: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the attempts, as (task, token), that this agent process holds or held."""
    within = [(task, token) for task, token in attempts if 0 < task < 2**63 and 0 <= token < 2**63]
    rows = await conn.fetch(_OWN, [task for task, _ in within], [token for _, token in within], instance)
    return {(row["id"], row["token"]) for row in rows}


# ── what running attempts report ─────────────────────────────────────────────────────────────────────

_NOTE = f"""
    with given as (
        select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::boolean[])
                   as given(id, token, progress, checkpoint, healthy)
    )
    update mainspring.task t
       set progress = coalesce(given.progress::jsonb, t.progress),
           checkpoint = coalesce(given.checkpoint::jsonb, t.checkpoint),
           healthy = coalesce(given.healthy, t.healthy)
      from given
     where t.id = any (array[given.id]) and t.token = given.token and t.{IS_ACTIVE}
"""


async def note(conn: Connection, notes: Sequence[Note]) -> None:
    """Record progress, checkpoints and health of attempts that still own their task."""
    await conn.execute(
        _NOTE,
        [n.task for n in notes],
        [n.token for n in notes],
        [n.progress for n in notes],
        [n.checkpoint for n in notes],
        [n.healthy for n in notes],
    )


_OUTPUT = """
    insert into mainspring.output (task_id, token, number, stream, at, recorded_at, data)
    select given.id, given.token, given.number, given.stream, to_timestamp(given.at), (select mainspring.now()),
           given.data
      from unnest($1::bigint[], $2::bigint[], $3::integer[], $4::smallint[], $5::float8[], $6::bytea[])
        as given(id, token, number, stream, at, data)
     where not exists (select from mainspring.output o
                        where o.task_id = given.id and o.token = given.token and o.number = given.number)
"""


async def output(conn: Connection, chunks: Sequence[Chunk]) -> int:
    """Record chunks of output, each once. Returns how many were new."""
    tag = await conn.execute(
        _OUTPUT,
        [c.task for c in chunks],
        [c.token for c in chunks],
        [c.number for c in chunks],
        [c.stream for c in chunks],
        [c.at for c in chunks],
        [c.data for c in chunks],
    )
    return affected(tag)


_OUTPUT_SIZES = """
    select given.token, (select sum(octet_length(o.data)) from mainspring.output o
                          where o.task_id = given.id and o.token = given.token)::bigint as size
      from unnest($1::bigint[], $2::bigint[]) as given(id, token)
"""


async def output_sizes(conn: Connection, attempts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """By token, the bytes of output that are stored of these attempts, given as (task, token)."""
    rows = await conn.fetch(_OUTPUT_SIZES, [task for task, _ in attempts], [token for _, token in attempts])
    return [(row["token"], row["size"] or 0) for row in rows]
