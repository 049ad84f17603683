"""Tasks: submit, list, count, show; cancel, pause, resume, restart, retry, change; act on all that match.

A task of a job that the actor does not reach is not found, whatever is asked of it.
Next: operations/requests/new_tasks.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec

from mainspring.errors import MainspringError, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.states import LIVE, TaskState
from mainspring.model.tasks.waits import Wait
from mainspring.model.words.durations import Duration
from mainspring.model.words.instants import check_instant
from mainspring.model.words.numbers import MAX_INTEGER, check_id
from mainspring.operations import pages
from mainspring.operations.pages import LIMIT, Page, check_limit
from mainspring.operations.parts.task_views import (
    ActionStep,
    Skipped,
    TaskDetail,
    TaskStateView,
    TaskSummary,
    WaitView,
    phases,
)
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.new_tasks import NewTask, Submitted
from mainspring.operations.requests.task_filters import TaskFilter, check_reach, resolve
from mainspring.store.access import audit
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection
from mainspring.store.search import search
from mainspring.store.search.search import Count, Filters
from mainspring.store.search.task_views import TaskView
from mainspring.store.tasks import broadcasts, control, tasks

MOST_ACTED_ON = 1000  # tasks, in one step
WHOLE_AT_ONCE = 50  # tasks of a page with all that they hold, which may be megabytes each

Fields = Literal["summary", "all"]
Action = Literal["cancel", "kill", "retry"]

_Before = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]  # the position in a list of tasks


# ── submit ──────────────────────────────────────────────────────────────────────────────────────


async def submit(conn: Connection, actor: Actor, task: NewTask) -> Submitted:
    """Create a task, or find the one that has its key."""
    return await new_tasks.submit(conn, actor, task)


# ── look ────────────────────────────────────────────────────────────────────────────────────────


async def listing(
    conn: Connection,
    actor: Actor,
    *,
    job: Sequence[str] = (),
    schedule: Sequence[str] = (),
    state: Sequence[str] = (),
    agent: Sequence[str] = (),
    parent: Sequence[int] = (),
    priority: Sequence[int | str] = (),
    key: Sequence[str] = (),
    concurrency_key: Sequence[str] = (),
    scope: Sequence[str] = (),
    error_code: Sequence[str] = (),
    late_over: Duration | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    run_after: datetime | None = None,
    run_before: datetime | None = None,
    finished_after: datetime | None = None,
    finished_before: datetime | None = None,
    args: Mapping[str, str | int | float | bool] | None = None,
    before: int | None = None,
    fields: Fields = "summary",
    cursor: str | None = None,
    limit: int = LIMIT,
) -> Page[TaskSummary]:
    """Tasks that match, the newest first.

    Several values of one filter are alternatives, different filters must all match. Names take `*`; one without it that
    does not exist is an error. A page may be short, even empty, and have a next one.
    """
    filter = _filter(locals())
    check_limit(limit)
    if fields not in ("summary", "all"):
        raise ValidationError(f"fields: {shown(fields)}; use summary or all", field="fields")
    if fields == "all":
        limit = min(limit, WHOLE_AT_ONCE)
    upto = None if before is None else check_id(before, field="before")
    given = {"list": "tasks", "before": upto, **filter.given}
    position = pages.position(cursor, given, _Before)
    filters = await resolve(conn, actor, filter)
    starts = upto if position is None else position
    found = await search.search(conn, filters, before=starts, limit=limit, summary=fields == "summary")
    return Page(
        await _summaries(conn, found.tasks, fields),
        None if found.next is None else pages.cursor(given, found.next),
        found.searched_to,
    )


async def count(
    conn: Connection,
    actor: Actor,
    *,
    job: Sequence[str] = (),
    schedule: Sequence[str] = (),
    state: Sequence[str] = (),
    agent: Sequence[str] = (),
    parent: Sequence[int] = (),
    priority: Sequence[int | str] = (),
    key: Sequence[str] = (),
    concurrency_key: Sequence[str] = (),
    scope: Sequence[str] = (),
    error_code: Sequence[str] = (),
    late_over: Duration | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    run_after: datetime | None = None,
    run_before: datetime | None = None,
    finished_after: datetime | None = None,
    finished_before: datetime | None = None,
    args: Mapping[str, str | int | float | bool] | None = None,
) -> Count:
    """How many match the same filters, up to 10,000 and as far as a short search gets."""
    return await search.count(conn, await resolve(conn, actor, _filter(locals())))


def _filter(given: Mapping[str, Any]) -> TaskFilter:
    """The filters among the parameters of an operation, which have their names."""
    names = TaskFilter.__struct_fields__
    return TaskFilter(**{name: value for name, value in given.items() if name in names and value is not None})


async def _summaries(conn: Connection, views: Sequence[TaskView], fields: Fields) -> list[TaskSummary]:
    waiting = [view.id for view in views if view.state in _WAITING]
    waits = await find_waits(conn, waiting) if waiting else {}
    read = _READ_ALL if fields == "all" else _READ
    return [_summary(read(view), _wait_view(waits.get(view.id))) for view in views]


def _summary(members: Sequence[Any], waits: WaitView | None) -> TaskSummary:
    """By place: a page has fifty of them, and names cost more than the rest."""
    whole = [*members[:_AT_WAITS], waits, *members[_AT_WAITS:]]
    return TaskSummary(*whole)


_WAITING = (TaskState.PENDING.label, TaskState.ASSIGNED.label)  # those of store/limits/waits.py
_HEAVY = ("args", "progress", "checkpoint", "result", "error")  # the last members of a summary
_AT_WAITS = TaskSummary.__struct_fields__.index("waits")
_MEMBERS = [name for name in TaskSummary.__struct_fields__ if name != "waits"]
_READ_ALL, _READ = attrgetter(*_MEMBERS), attrgetter(*_MEMBERS[: -len(_HEAVY)])  # from a TaskView


def _wait_view(wait: Wait | None) -> WaitView | None:
    return None if wait is None else WaitView(wait.code, wait.reason)


async def show(conn: Connection, actor: Actor, id: int) -> TaskDetail:
    """One task with its attempts, the runs of a broadcast, what it waits for, and when it came how far."""
    await _check(conn, actor, id)
    view, attempts, has_children = await tasks.whole(conn, id)
    waits = await find_waits(conn, [id]) if view.state in _WAITING else {}
    return TaskDetail(
        **msgspec.structs.asdict(view),
        waits=_wait_view(waits.get(id)),
        attempts=attempts,
        children=await broadcasts.children(conn, id) if has_children else [],
        phases=phases(view),
    )


async def status(conn: Connection, actor: Actor, id: int) -> TaskView:
    """The task alone, as it stands: cheaper than the whole."""
    await _check(conn, actor, id)
    return await tasks.get(conn, id)


# ── act on one ──────────────────────────────────────────────────────────────────────────────────


async def _check(conn: Connection, actor: Actor, id: int) -> None:
    await check_reach(conn, actor, check_id(id, field="task"))


async def cancel(conn: Connection, actor: Actor, id: int, *, kill: bool = False) -> TaskStateView:
    """Cancel a task: at once if no agent has it, else by a request to its agent; with `kill` it gets no grace."""
    await _check(conn, actor, id)
    async with conn.transaction():
        state = (await tasks.cancel(conn, id, kill=kill)).label
        await audit.record(conn, actor, "task.cancel", f"task:{id}", {"state": state, "kill": kill})
    return TaskStateView(id, state)


async def pause(conn: Connection, actor: Actor, id: int) -> TaskStateView:
    """Suspend the processes of a running command."""
    return await _move(conn, actor, "task.pause", id, control.pause, TaskState.RUNNING)


async def resume(conn: Connection, actor: Actor, id: int) -> TaskStateView:
    """Continue a paused task."""
    return await _move(conn, actor, "task.resume", id, control.resume, TaskState.RUNNING)


async def restart(conn: Connection, actor: Actor, id: int) -> TaskStateView:
    """Stop the running attempt and run the task again at once, which costs no attempt."""
    return await _move(conn, actor, "task.restart", id, control.restart, TaskState.RUNNING)


async def retry(conn: Connection, actor: Actor, id: int) -> TaskStateView:
    """Run a task again that ended without success, attempts counted anew."""
    return await _move(conn, actor, "task.retry", id, tasks.run_again, TaskState.PENDING)


async def _move(
    conn: Connection,
    actor: Actor,
    action: str,
    id: int,
    move: Callable[[Connection, int], Awaitable[None]],
    state: TaskState,
) -> TaskStateView:
    await _check(conn, actor, id)
    async with conn.transaction():
        await move(conn, id)
        await audit.record(conn, actor, action, f"task:{id}")
    return TaskStateView(id, state.label)


async def change(
    conn: Connection,
    actor: Actor,
    id: int,
    *,
    priority: int | str | None = None,
    run_at: datetime | None = None,
    now: bool = False,
) -> TaskStateView:
    """Another priority or another time for a task that no agent has; `now` makes it due at once."""
    if priority is None and run_at is None and not now:
        raise ValidationError("priority, run_at, now: give at least one of them", field="priority")
    if run_at is not None and now:
        raise ValidationError("run_at, now: give one of them, not both", field="run_at")
    level = None if priority is None else priority_level(priority)
    at = None if run_at is None else check_instant(run_at, field="run_at")
    await _check(conn, actor, id)
    async with conn.transaction():
        state = (await control.change(conn, id, priority=level, run_at=at, now=now)).label
        given = {"priority": level, "run_at": at, "now": now or None}
        detail = {name: value for name, value in given.items() if value is not None}
        await audit.record(conn, actor, "task.change", f"task:{id}", detail)
    return TaskStateView(id, state)


# ── act on many ─────────────────────────────────────────────────────────────────────────────────

_ACTED_ON = {"cancel": LIVE, "kill": LIVE, "retry": tasks.RETRIED}  # where the filter names no states


async def act(
    conn: Connection,
    actor: Actor,
    action: Action,
    filter: TaskFilter,
    *,
    limit: int = MOST_ACTED_ON,
    cursor: str | None = None,
) -> ActionStep:
    """One step of an action on all tasks that match, the newest first; the caller repeats it with `next`.

    The steps go down from the newest task of the first one, so tasks that are submitted meanwhile are not caught.
    """
    if action not in _ACTED_ON:
        raise ValidationError(f"action: {shown(action)}; use {', '.join(_ACTED_ON)}", field="action")
    if not filter.given:
        raise ValidationError("filter: say which tasks, by at least one filter; state takes all states", field="filter")
    check_limit(limit, most=MOST_ACTED_ON)
    given = {"list": "tasks", "action": action, **filter.given}
    position = pages.position(cursor, given, _Before)
    filters = await resolve(conn, actor, filter)
    if not filters.states:
        filters = msgspec.structs.replace(filters, states=sorted(_ACTED_ON[action]))
    return await _step(conn, actor, action, filters, position, limit, given)


async def _step(
    conn: Connection,
    actor: Actor,
    action: Action,
    filters: Filters,
    before: int | None,
    limit: int,
    given: Mapping[str, object],
) -> ActionStep:
    """Most in one statement, which waits for nobody; then, one by one, those that others held or have changed."""
    found = await search.search(conn, filters, before=before, limit=limit, summary=True)
    ids = [view.id for view in found.tasks]
    done: set[int] = set()
    async with conn.transaction():
        if ids and action == "retry":
            done = await tasks.run_each_again(conn, ids)
        elif ids:
            done = await tasks.cancel_each(conn, ids, kill=action == "kill")
        if done:
            await audit.record(conn, actor, f"task.{action}", f"{len(done)} tasks", {"tasks": sorted(done)})
    skipped = []
    for id in [id for id in ids if id not in done]:
        try:
            await (retry(conn, actor, id) if action == "retry" else cancel(conn, actor, id, kill=action == "kill"))
        except MainspringError as error:
            skipped.append(Skipped(id, error.code))
    following = None if found.next is None else pages.cursor(given, found.next)
    return ActionStep(len(ids) - len(skipped), skipped, following)
