"""Flows: submit tasks that run after each other, all or none; and what runs after what.

Next: store/submission/enqueue.py
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.errors import MainspringError, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.words.numbers import check_id
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.requests.task_filters import check_reach
from mainspring.operations.work import batches
from mainspring.store.postgres.connection import Connection
from mainspring.store.submission import drivers, submissions
from mainspring.store.views import flow_views
from mainspring.store.views.flow_views import FlowView

MOST = 10_000


class NewStep(NewTask, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, and the places, from 0, of those before it in the list that it runs after."""

    steps: Sequence[int] = ()


class SubmittedFlow(msgspec.Struct, frozen=True):
    ids: list[int]  # in the order of the steps


async def submit(conn: Connection, actor: Actor, steps: Sequence[NewStep]) -> SubmittedFlow:
    """Create tasks that run after each other. A step runs after those before it that it names by their places."""
    if not 1 <= len(steps) <= MOST:
        raise ValidationError(f"steps: {len(steps):,}; give 1 to {MOST:,} tasks", field="steps")
    found = []
    for number, step in enumerate(steps):
        try:
            given = await new_tasks.checked_in_turns(actor, step)
            await new_tasks.check_relations(conn, actor, given)
            if step.require_agents:
                await new_tasks.check_agents(conn, given.job)
        except MainspringError as error:
            raise type(error)(f"steps[{number}]: {error.message}", field=error.field, **error.details) from None
        found.append((given, step.steps))
    async with conn.transaction():
        return SubmittedFlow(await drivers.submit(conn, submissions.flow(found)))


async def of_task(conn: Connection, actor: Actor, id: int) -> FlowView:
    """The flow that a task is part of: the tasks it runs after, those that run after it, and so on; the nearest 200."""
    await check_reach(conn, actor, check_id(id, field="task"))
    return _within_reach(actor, await flow_views.of_task(conn, id))


async def of_batch(conn: Connection, actor: Actor, id: int) -> FlowView:
    """The first 200 tasks of a batch, and which of them run after which."""
    await batches.check(conn, actor, id)
    return _within_reach(actor, await flow_views.of_batch(conn, id))


def _within_reach(actor: Actor, flow: FlowView) -> FlowView:
    """Of jobs that the actor reaches: the others are not there for it."""
    if not actor.jobs:
        return flow
    shown = [task for task in flow.tasks if actor.reaches(task.job or "")]
    ids = {task.id for task in shown}
    return FlowView(shown, [edge for edge in flow.edges if {edge.parent, edge.child} <= ids], flow.is_whole)
