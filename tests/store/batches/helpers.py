"""What the tests of batches share: members, ends, and how a batch stands."""

from __future__ import annotations

from typing import Any

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.store.batches import batches, settling
from mainspring.store.batches.batches import BatchView
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import transitions

SUCCEEDED, FAILED = TaskState.SUCCEEDED, TaskState.FAILED
ALL = '{"job": "callback"}'


async def opened(conn: Connection, name: str = "import", **given: Any) -> int:
    """With all three callbacks."""
    sql = "select mainspring.open_batch($1, on_success => $2, on_complete => $2, on_failure => $2, parent => $3)"
    return int(await conn.fetchval(sql, name, ALL, given.get("parent")))


async def member(conn: Connection, batch: int, **given: Any) -> int:
    names = ", ".join(f"{name} => ${number}" for number, name in enumerate(given, 2))
    sql = f"select mainspring.enqueue('job', batch => $1{', ' if names else ''}{names})"
    return int(await conn.fetchval(sql, batch, *given.values()))


async def end(conn: Connection, task: int, state: TaskState = SUCCEEDED) -> None:
    """By the report of an agent."""
    await conn.execute("update mainspring.task set state = 3, token = id where id = $1", task)
    assert len(await transitions.finish(conn, [Ending(task, task, 1, 1, state, 1.0, 2.0)])) == 1


async def close(conn: Connection, batch: int) -> bool:
    return bool(await conn.fetchval("select mainspring.close_batch($1)", batch))


async def settle(conn: Connection) -> None:
    for batch in await settling.changed(conn, 100):
        await settling.settle(conn, batch)


async def view(conn: Connection, batch: int) -> BatchView:
    return await batches.get(conn, batch)


async def stands(conn: Connection, batch: int) -> tuple[str, str | None]:
    await settle(conn)
    shown = await view(conn, batch)
    return shown.state, shown.outcome


async def called(conn: Connection) -> list[str]:
    """The events of the callbacks that were enqueued, in their order."""
    rows = await conn.fetch("""
        select options #>> '{callback,event}' as event from (
            select id, options from mainspring.task union all select id, options from mainspring.task_history) t
         where options ? 'callback' order by id
    """)
    return [row["event"] for row in rows]
