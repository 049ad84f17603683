"""Whole: one task with everything known of it, for most tasks in one round trip.

Reads   mainspring.task, mainspring.task_history, mainspring.attempt, mainspring.dependency, mainspring.pool
Next:   store/views/recent.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mainspring.model.flows.options import read_options
from mainspring.model.tasks.pools import unblocked
from mainspring.model.tasks.states import BLOCKED, PENDING
from mainspring.store.postgres.connection import is_producer
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import clamped, fetched
from mainspring.store.tasks.tasks import attempts, by_id, no_task
from mainspring.store.views import parents, recent
from mainspring.store.views.task_views import AttemptView, TaskView, task_view

MOST = 100  # attempts that are shown with their task, the last ones


class Whole(NamedTuple):
    """A task with its last attempts, and whether it has children, as a broadcast."""

    task: TaskView
    age: float  # seconds since it was due, by the database's clock
    attempts: list[AttemptView]
    has_children: bool
    has_more: bool = False  # attempts
    graph: parents.Graph | None = None  # the tasks that it runs after, and those that run after it


def _whole(bound: str = "", *, is_producer: bool = False) -> str:
    """`has_earlier`: it has attempts beside the one in its own row. Only broadcasts have children; a producer may not
    know the requirements of a task, which say what it is."""
    is_broadcast = f"""
        exists (select from mainspring.pool p
                 where p.id = {unblocked("found.pool")} and p.requirements ? '@broadcast')
    """
    also = f"""
        , found.token, found.session, a.name as held_by, a.server as server_id,
        extract(epoch from mainspring.now() - found.run_at)::float8 as age,
        (select s.name from mainspring.server s where s.id = a.server) as server,
        exists (select from mainspring.attempt e where e.task_id = $1 {bound.format("e")}) as has_earlier,
        {"true" if is_producer else is_broadcast} as has_children, found.options as its_options,
        exists (select from mainspring.dependent d where d.parent = $1) as has_dependents
    """
    return by_id(", t.token, t.pool", also, bound.format("t"))


_RECENT, _WHOLE, _OF_PRODUCER = _whole("and {}.recorded_at >= $2"), _whole(), _whole(is_producer=True)


async def whole(conn: Connection, task: int) -> Whole:
    since = recent.since()
    rows = [] if is_producer(conn) else await fetched(conn, _RECENT, task, since)
    if not rows or not recent.is_whole(clamped(rows[0]["created_at"]), since):
        rows = await fetched(conn, _OF_PRODUCER if is_producer(conn) else _WHOLE, task)
    if not rows:
        raise no_task(task)
    row = rows[0]
    view = await task_view(row, row["waiting_for"])
    if row["has_earlier"]:
        found = await attempts(conn, task, limit=MOST + 1)
    elif row["token"] is None or row["session"] is None or row["state"] in (PENDING, BLOCKED):
        found = []
    else:
        found = [_its_own(row, view)]
    after = read_options(row["its_options"]).parents
    graph = await parents.graph(conn, task, after) if after or row["has_dependents"] else None
    return Whole(view, row["age"], found[-MOST:], row["has_children"], len(found) > MOST, graph)


def _its_own(row: Any, view: TaskView) -> AttemptView:
    """The attempt in the row of the task."""
    return AttemptView(
        view.attempt, row["token"], view.state, row["held_by"], view.started_at, view.finished_at, view.lateness_ms,
        view.error_code, view.error, view.exit_code, row["session"], row["server"], row["server_id"], view.armed_ahead,
    )  # fmt: skip


_COUNT_ATTEMPTS = """
    select (select count(*) from (select from mainspring.attempt where task_id = $1 limit $2) earlier)
         + (select count(*) from mainspring.task_history where id = $1 and token is not null and session is not null)
         + (select count(*) from mainspring.task where id = $1 and session is not null)
"""
_COUNT_CHILDREN = """
    select count(*) from (select from mainspring.task where parent_id = $1
                          union all
                          select from mainspring.task_history where parent_id = $1 limit $2) child
"""


async def count_attempts(conn: Connection, task: int, most: int) -> int:
    """How many attempts a task has had, `most` at most."""
    return min(most, int(await conn.fetchval(_COUNT_ATTEMPTS, task, most)))


async def count_children(conn: Connection, task: int, most: int) -> int:
    """How many runs a broadcast has, `most` at most."""
    return int(await conn.fetchval(_COUNT_CHILDREN, task, most))
