"""Tasks: submit, list, count, show; cancel, skip, pause, resume, restart, retry, change; act on all that match.

A task of a job that the actor does not reach is not found, whatever is asked of it.
Next: operations/requests/new_tasks.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from mainspring.errors import MainspringError, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.states import PENDING, TaskState
from mainspring.model.words.durations import Duration
from mainspring.model.words.instants import check_instant
from mainspring.model.words.numbers import check_id
from mainspring.operations import pages
from mainspring.operations.pages import LIMIT, Page, check_limit
from mainspring.operations.parts import revealing, task_detail
from mainspring.operations.parts.masked_json import each_masked, masked_task
from mainspring.operations.parts.task_actions import ACTED_ON, Action, Wanted, wanted, why_skipped
from mainspring.operations.parts.task_views import ActionStep, Skipped, TaskDetail, TaskRetried, TaskStateView
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.new_tasks import NewTask, Submitted
from mainspring.operations.requests.task_filters import TaskFilter, check_reach, resolve
from mainspring.store.access import audit
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection
from mainspring.store.search import search
from mainspring.store.search.filters import Filters
from mainspring.store.search.search import Count, Found
from mainspring.store.tasks import broadcasts, control, tasks
from mainspring.store.tasks.broadcasts import ChildView
from mainspring.store.views.task_views import AttemptView, TaskSummary, TaskView

MOST_ACTED_ON = 1000  # tasks, in one step
WHOLE_AT_ONCE = 50  # tasks of a page with all that they hold
WHOLE_SIZE = 4_000_000  # characters of such a page, from which it ends early
FIRST_WHOLE = 5

Fields = Literal["summary", "all"]
Shown = TypeVar("Shown", bound=TaskView)


# ── submit ──────────────────────────────────────────────────────────────────────────────────────


async def submit(conn: Connection, actor: Actor, task: NewTask) -> Submitted:
    """Create a task, or find the one that has its key."""
    return await new_tasks.submit(conn, actor, task)


# ── look ────────────────────────────────────────────────────────────────────────────────────────


async def listing(
    conn: Connection,
    actor: Actor,
    *,
    id: Sequence[int] = (),
    job: Sequence[str] = (),
    schedule: Sequence[str] = (),
    state: Sequence[str] = (),
    agent: Sequence[str] = (),
    parent: Sequence[int] = (),
    batch: Sequence[int] = (),
    priority: Sequence[int | str] = (),
    key: Sequence[str] = (),
    concurrency_key: Sequence[str] = (),
    scope: Sequence[str] = (),
    tag: Sequence[str] = (),
    error_code: Sequence[str] = (),
    late_over: Duration | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    run_after: datetime | None = None,
    run_before: datetime | None = None,
    due_before: datetime | None = None,
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
    upto = None if before is None else check_id(before, field="before")
    given = {"list": "tasks", "before": upto, **filter.given}
    position = pages.position(cursor, given, pages.Number)
    filters = await resolve(conn, actor, filter)
    starts = upto if position is None else position
    if fields == "all":
        found = await _whole(conn, filters, starts, limit)
    else:
        found = await search.search(conn, filters, before=starts, limit=limit)
    return Page(
        await _with_waits(conn, found.tasks),
        None if found.next is None else pages.cursor(given, found.next),
        found.searched_to,
    )


async def _whole(conn: Connection, filters: Filters, before: int | None, limit: int) -> Found:
    """Tasks with all that they hold, which may be megabytes each: a few first, then as many as they suggest."""
    found: list[TaskSummary] = []
    size, some, limit = 0, FIRST_WHOLE, min(limit, WHOLE_AT_ONCE)
    while True:
        part = await search.search(conn, filters, before=before, limit=min(some, limit - len(found)), whole=True)
        found += await each_masked(masked_task, part.tasks)
        size += part.size
        if part.next is None or part.searched_to is not None or len(found) >= limit or size >= WHOLE_SIZE:
            return part._replace(tasks=found)
        before = part.next
        some = max(1, min(4 * some, (WHOLE_SIZE - size) * len(found) // max(size, 1)))


async def count(
    conn: Connection,
    actor: Actor,
    *,
    id: Sequence[int] = (),
    job: Sequence[str] = (),
    schedule: Sequence[str] = (),
    state: Sequence[str] = (),
    agent: Sequence[str] = (),
    parent: Sequence[int] = (),
    batch: Sequence[int] = (),
    priority: Sequence[int | str] = (),
    key: Sequence[str] = (),
    concurrency_key: Sequence[str] = (),
    scope: Sequence[str] = (),
    tag: Sequence[str] = (),
    error_code: Sequence[str] = (),
    late_over: Duration | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    run_after: datetime | None = None,
    run_before: datetime | None = None,
    due_before: datetime | None = None,
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


async def _with_waits(conn: Connection, views: list[TaskSummary]) -> list[TaskSummary]:
    waiting = {view.id: view for view in views if view.state in task_detail.WAITING}
    waits = await find_waits(conn, list(waiting)) if waiting else {}
    for id, wait in waits.items():
        msgspec.structs.force_setattr(waiting[id], "waits", task_detail.wait_view(wait))  # not shared yet
    return views


async def show(conn: Connection, actor: Actor, id: int, *, reveal: bool = False) -> TaskDetail:
    """One task with its last attempts, the runs of a broadcast, what it waits for, and when it came how far.

    Secrets in its arguments, its progress and its checkpoint are masked, unless an admin wants to see them: that is
    audited. Its result is as its job returned it.
    """
    await _check(conn, actor, id)
    return await _shown(conn, actor, await task_detail.detail(conn, actor, id), reveal=reveal)


async def attempts(
    conn: Connection, actor: Actor, id: int, *, cursor: str | None = None, limit: int = LIMIT
) -> Page[AttemptView]:
    """All attempts of a task, the newest first."""
    await _check(conn, actor, id)
    given = {"list": "attempts", "task": id}
    before = pages.position(cursor, given, pages.Number) or tasks.LAST_TOKEN
    found = await tasks.attempts(conn, id, before=before, limit=check_limit(limit) + 1)
    if not found:
        await tasks.get(conn, id)
    return pages.page(found[::-1], limit, given, lambda attempt: attempt.token)


async def children(
    conn: Connection, actor: Actor, id: int, *, cursor: str | None = None, limit: int = LIMIT
) -> Page[ChildView]:
    """All runs of a broadcast, by agent; none of any other task."""
    await _check(conn, actor, id)
    given = {"list": "children", "task": id}
    after = pages.position(cursor, given, tuple[str, pages.Number]) or ("", 0)
    found = await broadcasts.children(conn, id, after=after, limit=check_limit(limit) + 1)
    if not found:
        await tasks.get(conn, id)
    return pages.page(found, limit, given, lambda child: (child.agent, child.id))


async def status(conn: Connection, actor: Actor, id: int, *, reveal: bool = False) -> TaskView:
    """The task alone, as it stands: cheaper than the whole. Secrets are masked as in the whole."""
    await _check(conn, actor, id)
    return await _shown(conn, actor, await tasks.get(conn, id), reveal=reveal)


async def _shown(conn: Connection, actor: Actor, view: Shown, *, reveal: bool) -> Shown:
    if not reveal:
        return await masked_task(view)
    await revealing.reveal(conn, actor, "task", f"task:{view.id}")
    return view


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


async def skip(conn: Connection, actor: Actor, id: int, *, note: str | None = None) -> TaskStateView:
    """End a task as skipped that has not started. One that an agent has is asked back first: it is skipped then, unless
    it starts before. One that runs is refused: cancel it."""
    why = why_skipped(actor, note)
    await _check(conn, actor, id)
    async with conn.transaction():
        state = (await control.skip(conn, id, why)).label
        detail = {"state": state} | ({} if note is None else {"note": note})
        await audit.record(conn, actor, "task.skip", f"task:{id}", detail)
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


async def retry(conn: Connection, actor: Actor, id: int, *, with_children: bool = False) -> TaskRetried:
    """Run a task again that ended without success, attempts counted anew.

    `with_children`: also what was skipped or failed because of it, at most 10,000 tasks; they wait for it again.
    """
    await _check(conn, actor, id)
    async with conn.transaction():
        if with_children:
            children = await tasks.run_again_with_children(conn, id, actor.reaches)
            detail = {"with_children": len(children), "tasks": children[:MOST_ACTED_ON]}
        else:
            await tasks.run_again(conn, id)
            children, detail = [], {}
        await audit.record(conn, actor, "task.retry", f"task:{id}", detail)
    return TaskRetried(id, PENDING.label, len(children))


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
        done = await control.change(conn, id, priority=level, run_at=at, now=now)
        await audit.changed(conn, actor, "task.change", f"task:{id}", done.before._asdict(), done.after._asdict())
    return TaskStateView(id, done.state.label)


# ── act on many ─────────────────────────────────────────────────────────────────────────────────


async def act(
    conn: Connection,
    actor: Actor,
    action: Action,
    filter: TaskFilter,
    *,
    note: str | None = None,
    priority: int | str | None = None,
    now: bool = False,
    limit: int = MOST_ACTED_ON,
    cursor: str | None = None,
) -> ActionStep:
    """One step of an action on all tasks that match, the newest first; the caller repeats it with `next`.

    The steps go down from the newest task of the first one, so tasks that are submitted meanwhile are not caught.
    `note` says why they are skipped; `change` takes another `priority`, or `now`: they are due at once.
    """
    if action not in ACTED_ON:
        raise ValidationError(f"action: {shown(action)}; use {', '.join(ACTED_ON)}", field="action")
    if not filter.given:
        raise ValidationError("filter: say which tasks, by at least one filter; state takes all states", field="filter")
    check_limit(limit, most=MOST_ACTED_ON)
    asked = wanted(actor, action, note, priority, now)  # refuse what cannot be before anything is done
    given = {"list": "tasks", "action": action, "priority": asked.priority, "now": now, **filter.given}
    position = pages.position(cursor, given, pages.Number)
    filters = await resolve(conn, actor, filter)
    if not filters.states:
        filters = msgspec.structs.replace(filters, states=sorted(ACTED_ON[action]))
    return await _step(conn, actor, asked, filters, position, limit, given)


async def _step(
    conn: Connection,
    actor: Actor,
    wanted: Wanted,
    filters: Filters,
    before: int | None,
    limit: int,
    given: Mapping[str, object],
) -> ActionStep:
    """Most in one statement, which waits for no lock; then, one by one, those that others held or have changed."""
    found = await search.ids(conn, filters, before=before, limit=limit)
    ids = found.ids
    async with conn.transaction():
        done = await wanted.each(conn, actor, ids) if ids else set()
    skipped = []
    for id in [id for id in ids if id not in done]:
        try:
            await _one(conn, actor, wanted, id)
        except MainspringError as error:
            skipped.append(Skipped(id, error.code))
    following = None if found.next is None else pages.cursor(given, found.next)
    return ActionStep(len(ids) - len(skipped), skipped, following)


async def _one(conn: Connection, actor: Actor, wanted: Wanted, id: int) -> None:
    match wanted.action:
        case "retry":
            await retry(conn, actor, id)
        case "skip":
            await skip(conn, actor, id, note=wanted.note)
        case "change":
            await change(conn, actor, id, priority=wanted.priority, now=wanted.now)
        case _:
            await cancel(conn, actor, id, kill=wanted.action == "kill")
