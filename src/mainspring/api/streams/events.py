"""The streams of events: of the whole cluster by topic, and of one task.

Next: api/streams/hub.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.api import parameters
from mainspring.api.answers import Answer
from mainspring.api.call import Call
from mainspring.api.streams.hub import TOPICS
from mainspring.api.streams.sse import stream
from mainspring.api.streams.topics import Wants
from mainspring.errors import Forbidden, JobNotFound, ValidationError, shown
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import unknown
from mainspring.model.words.numbers import check_id
from mainspring.operations.requests.task_filters import check_reach
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import jobs

MOST_VALUES = 100  # of one filter


async def listen(
    conn: Connection, actor: Actor, *, topics: Sequence[str] = (), job: Sequence[str] = (), state: Sequence[str] = ()
) -> str:
    """What changes, as server-sent events.

    `topics` are stats, tasks, schedules, agents, servers and alerts, with commas or repeated; `job` and `state` narrow
    what is sent of tasks.
    """
    raise NotImplementedError  # its handler streams


async def follow(conn: Connection, actor: Actor, id: int) -> str:
    """One task, as server-sent events: its state, progress, attempt and what it waits for, until it has ended."""
    raise NotImplementedError  # its handler streams


async def handle_listen(call: Call) -> Answer | None:
    given: dict[str, Any] = parameters.from_query(call.row.shape, call.query, also=("namespace",))
    topics = _topics(call.actor, given.get("topics", ()))
    patterns = given.get("job", [])
    if len(patterns) > MOST_VALUES:
        raise ValidationError(f"job: {len(patterns)} values; at most {MOST_VALUES}", field="job")
    await _check_jobs(call, patterns)
    wants = Wants(tuple(patterns), _states(given.get("state", ())), call.actor.jobs)
    hub, cursor = call.api.hub, call.headers.get("last-event-id")
    await stream(call, lambda: hub.listen(topics, wants, cursor))
    return None


def _topics(actor: Actor, given: Sequence[str]) -> list[str]:
    wanted = list(dict.fromkeys(name.strip() for part in given for name in part.split(",") if name.strip()))
    for name in wanted:
        if name not in TOPICS:
            raise ValidationError(unknown(name, TOPICS, "topic").message, field="topics")
    if actor.role is not Role.SUBMITTER:
        return wanted or list(TOPICS)
    others = [name for name in wanted if name != "tasks"]
    if others:
        raise Forbidden(f"topics: {', '.join(others)} need the role viewer; a submitter hears of tasks", role="viewer")
    return ["tasks"]


def _states(given: Sequence[str]) -> frozenset[TaskState]:
    labels = {state.label: state for state in TaskState}
    for label in given:
        if label not in labels:
            raise ValidationError(f"state: {shown(label)}; use {', '.join(labels)}", field="state")
    return frozenset(labels[label] for label in given)


async def _check_jobs(call: Call, patterns: Sequence[str]) -> None:
    """A name that does not exist is an error: silence would hide the mistake."""
    names = [name for name in patterns if "*" not in name]
    if not names:
        return
    async with call.api.connections.acquire() as conn:
        for name in names:
            if not call.actor.reaches(name):
                raise JobNotFound(f"no job named {shown(name)}; `mainspring job list` shows what there is", field="job")
            await jobs.find(conn, name)


async def handle_follow(call: Call) -> Answer | None:
    parameters.from_query(call.row.shape, call.query, also=("namespace",))
    id: int = parameters.from_text(call.names["id"], int, "id")
    async with call.api.connections.acquire() as conn:
        await check_reach(conn, call.actor, check_id(id, field="task"), must_exist=True)
    followed, cursor = call.api.followed, call.headers.get("last-event-id")
    await stream(call, lambda: followed.follow(id, cursor, call.request_id))
    return None
