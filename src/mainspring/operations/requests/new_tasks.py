"""New tasks: what a caller submits, checked as the SDK checks it → what the store inserts.

Next: store/tasks/enqueue.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.errors import JobNotFound, MainspringError, NoAgents, TaskExists, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.limits.limits import check_concurrency_key
from mainspring.model.placement.placement import requirements_of
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.payload import encode
from mainspring.model.tasks.states import PENDING
from mainspring.model.tasks.waits import able_names, why
from mainspring.model.words.durations import seconds
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name
from mainspring.model.words.numbers import check_id
from mainspring.store.cluster import registry
from mainspring.store.postgres.connection import Connection
from mainspring.store.search import lookup
from mainspring.store.search.task_views import TaskView
from mainspring.store.tasks import enqueue, jobs
from mainspring.store.tasks.enqueue import Submission

MOST = 10_000  # tasks that are submitted at once
MOST_PARENTS = 1000
DAY = timedelta(days=1)  # the text need not be read for each task
IN_A_THREAD = 32 * 1024  # bytes of arguments from which they are checked beside the event loop
RETRY_AFTER = 5  # seconds, where no agent is there


class NewTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: str
    args: Mapping[str, Any] = {}
    priority: str | int | None = None  # low, normal, high, critical, or 0 to 9; None: its job's
    run_at: datetime | None = None
    delay: float | str | None = None  # a duration
    key: str | None = None  # a second submission with the same key finds the first task, for `key_ttl`
    key_ttl: float | str = "1d"
    if_exists: Literal["return", "reject"] = "return"  # where the key is taken
    after: Sequence[int] = ()  # it waits until these tasks have succeeded
    concurrency_key: str | None = None
    require_agents: bool = False  # refuse it if no agent could run it


class Submitted(msgspec.Struct, frozen=True):
    id: int
    state: str | None  # None: retention has dropped the task, and its key is still taken
    created: bool  # False: the task that has the key
    task: TaskView | UnsetType = UNSET  # as it stands, after a wait


def submission(task: NewTask) -> Submission:
    """The task for the store; ValidationError names what is wrong with it."""
    if not isinstance(task.args, Mapping):
        raise ValidationError('args: give a JSON object of named arguments, such as {"day": "mon"}', field="args")
    if task.delay is not None and task.run_at is not None:
        raise ValidationError("run_at, delay: give one of them, not both", field="run_at")
    if task.if_exists not in ("return", "reject"):
        raise ValidationError(f"if_exists: {shown(task.if_exists)}; use return or reject", field="if_exists")
    if len(task.after) > MOST_PARENTS:
        raise ValidationError(f"after: {len(task.after)} tasks; at most {MOST_PARENTS}", field="after")
    concurrency_key = task.concurrency_key
    return Submission(
        job=check_name(task.job, field="job"),
        args=encode(task.args, "args"),
        priority=None if task.priority is None else str(priority_level(task.priority)),
        run_at=None if task.run_at is None else check_instant(task.run_at, field="run_at"),
        delay=None if task.delay is None else timedelta(seconds=seconds(task.delay, field="delay")),
        key=None if task.key is None else check_name(task.key, field="key"),
        key_ttl=DAY
        if task.key_ttl == "1d"
        else timedelta(seconds=seconds(task.key_ttl, field="key_ttl", at_least=0.001)),
        after=[check_id(id, field="after") for id in task.after] or None,
        concurrency_key=None if concurrency_key is None else check_concurrency_key(concurrency_key),
    )


def checked(actor: Actor, task: NewTask) -> Submission:
    """The same, of a job that the actor reaches."""
    found = submission(task)
    _check_job(actor, found.job)
    return found


async def checked_beside(actor: Actor, task: NewTask) -> Submission:
    """The same; large arguments beside the event loop, which they would hold for up to a tenth of a second."""
    return await asyncio.to_thread(checked, actor, task) if _is_large(task) else checked(actor, task)


def _is_large(task: NewTask) -> bool:
    try:
        return len(msgspec.json.encode(task.args)) > IN_A_THREAD
    except (TypeError, ValueError, RecursionError):  # the check says what is wrong
        return False


def can_share(task: NewTask, checked: Submission) -> bool:
    """Whether it may go into one statement with others: nothing has to be looked up for it."""
    return checked.can_share and not task.require_agents and task.if_exists == "return"


async def submit(conn: Connection, actor: Actor, task: NewTask) -> Submitted:
    given = await checked_beside(actor, task)
    await _check_parents(conn, actor, given)
    if task.require_agents:
        await _check_agents(conn, given.job)
    if task.key is None or task.if_exists == "return":
        return await answer(conn, task, *await enqueue.submit_new(conn, given))
    async with conn.transaction():  # a key is not taken by a submission that is refused for it
        return await answer(conn, task, *await enqueue.submit_new(conn, given))


async def submit_each(conn: Connection, actor: Actor, tasks: Sequence[NewTask]) -> list[Submitted | MainspringError]:
    """Each for itself: one that is refused does not keep the others from being submitted.

    Those that can share a statement do. One that PostgreSQL refuses makes it refuse that statement as a whole; then
    each is submitted alone, and gets its own error.
    """
    if len(tasks) > MOST:
        raise ValidationError(f"tasks: {len(tasks):,}; at most {MOST:,} at once", field="tasks")
    answers: dict[int, Submitted | MainspringError] = {}
    shared: dict[int, Submission] = {}
    for number, task in enumerate(tasks):
        try:
            given = checked(actor, task)
        except MainspringError as error:
            answers[number] = error
            continue
        if can_share(task, given):
            shared[number] = given
    if len(shared) > 1:
        found = await enqueue.submit_each_new(conn, list(shared.values()))
        for number, (id, created) in zip(shared, found, strict=True):
            if id is not None and created:
                answers[number] = Submitted(id, PENDING.label, True)
            elif id is not None:
                answers[number] = await answer(conn, tasks[number], id, created)
    for number, task in enumerate(tasks):
        if number not in answers:
            try:
                async with conn.transaction():  # inside one of the caller's: a refusal must not end that
                    answers[number] = await submit(conn, actor, task)
            except (JobNotFound, ValidationError, TaskExists, NoAgents) as error:  # of this one alone
                answers[number] = error
    return [answers[number] for number in range(len(tasks))]


def _check_job(actor: Actor, job: str) -> None:
    if not actor.reaches(job):
        quoted = job.replace("'", "''")  # in the words of enqueue(): nobody learns that there is such a job
        raise JobNotFound(
            f"no job named '{quoted}'; jobs are registered when their application starts, or by "
            "`mainspring job create`",
            field="job",
        )


async def _check_parents(conn: Connection, actor: Actor, checked: Submission) -> None:
    """A task that the actor does not reach is one that does not exist."""
    for id in checked.after or () if actor.jobs else ():
        job = await lookup.job_of(conn, id)
        if job is None or not actor.reaches(job):
            raise ValidationError(f"after: task {id} does not exist or did not succeed", field="after")


async def _check_agents(conn: Connection, name: str) -> None:
    requirements = requirements_of((await jobs.find(conn, name)).definition)
    agents = await registry.loaded(conn)
    wait = why(requirements, agents)
    if not able_names(requirements, agents) and wait is not None:
        raise NoAgents(
            f"no agent could run a task of {name!r} now: {wait.reason}",
            field="job",
            waits={"code": wait.code, "reason": wait.reason},
            retry_after=RETRY_AFTER,
        )


async def answer(conn: Connection, task: NewTask, id: int, created: bool) -> Submitted:
    """What is told of a task that has this id now."""
    if not created and task.if_exists == "reject":
        raise TaskExists(f"key: task {id} of {task.job!r} has the key {task.key!r} already", field="key", id=id)
    if created and not task.after:
        return Submitted(id, PENDING.label, True)
    state = await lookup.state_of(conn, id)
    return Submitted(id, None if state is None else state.label, created)
