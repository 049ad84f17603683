"""Detail: one task with everything known of it: attempts, runs, phases, what it waits for, its graph.

Next: store/search/whole.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.placement.aging import counts_as
from mainspring.model.settings import unless_off
from mainspring.model.tasks.states import ASSIGNED, BLOCKED, PENDING, TaskState
from mainspring.model.tasks.waits import Wait
from mainspring.operations.parts.task_views import TaskDetail, phases
from mainspring.store.cluster import settings
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection, is_producer
from mainspring.store.search import whole
from mainspring.store.search.search import MOST_COUNTED, Count
from mainspring.store.tasks import broadcasts
from mainspring.store.views.parents import Graph
from mainspring.store.views.task_views import TaskView, WaitView

SHOWN = whole.MOST  # runs of a broadcast that are shown with it
WAITING = tuple(state.label for state in (BLOCKED, PENDING, ASSIGNED))  # those of store/limits/waits.py


async def detail(conn: Connection, actor: Actor, id: int) -> TaskDetail:
    """Of a task that the caller has found to be in the actor's reach."""
    view, age, tried, has_children, has_more, graph = await whole.whole(conn, id)
    waits = await find_waits(conn, [id]) if view.state in WAITING else {}
    children = await broadcasts.children(conn, id, limit=SHOWN + 1) if has_children else []
    return TaskDetail(
        *msgspec.structs.astuple(view),
        waits=wait_view(waits.get(id)),
        attempts=tried,
        attempt_count=await _counted(conn, whole.count_attempts, id) if has_more else Count(len(tried), True),
        children=children[:SHOWN],
        child_count=await _counted(conn, whole.count_children, id)
        if len(children) > SHOWN
        else Count(len(children), True),
        phases=phases(view),
        counts_as=await _counts_as(conn, view, age),
        graph=None if graph is None else _within_reach(actor, graph),
    )


def _within_reach(actor: Actor, graph: Graph) -> Graph:
    """Of jobs that the actor reaches: the others are not there for it."""
    if not actor.jobs:
        return graph
    parents, children = ([r for r in its if actor.reaches(r.job or "")] for its in (graph.parents, graph.children))
    return Graph(parents, children, len(parents), len(children))


async def _counts_as(conn: Connection, view: TaskView, age: float) -> int | None:
    """Of a task that waits. A producer may not read settings."""
    if view.state != TaskState.PENDING.label or is_producer(conn):
        return None
    aging = unless_off((await settings.load(conn)).aging)
    return counts_as(view.priority, age, aging)


async def _counted(conn: Connection, count: Callable[[Connection, int, int], Awaitable[int]], id: int) -> Count:
    found = await count(conn, id, MOST_COUNTED + 1)
    return Count(min(found, MOST_COUNTED), found <= MOST_COUNTED)


def wait_view(wait: Wait | None) -> WaitView | None:
    return None if wait is None else WaitView(wait.code, wait.reason)
