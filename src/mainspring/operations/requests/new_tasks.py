"""New tasks: what a caller submits, checked as the SDK checks it → what the store inserts.

Next: store/submission/enqueue.py
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.errors import (
    MOST_FAULTS,
    BatchEnded,
    BatchNotFound,
    JobNotFound,
    MainspringError,
    NoAgents,
    QueueFull,
    TaskExists,
    ValidationError,
    shown,
    together,
)
from mainspring.model.access.actors import Actor
from mainspring.model.flows.options import (
    OnParentFailure,
    check_on_parent_failure,
    check_tags,
    check_task_retries,
)
from mainspring.model.limits.limits import check_concurrency_key
from mainspring.model.placement.placement import requirements_of
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.payload import checked_text, encode
from mainspring.model.tasks.states import PENDING
from mainspring.model.tasks.waits import able_names, why
from mainspring.model.words.durations import seconds
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name
from mainspring.model.words.numbers import check_id
from mainspring.operations.parts.slices import Slices, in_slices
from mainspring.operations.requests.large_json import Steps, is_plain_in_steps
from mainspring.operations.requests.large_values import encode_in_steps
from mainspring.store.batches import batches
from mainspring.store.cluster import registry
from mainspring.store.postgres.connection import Connection
from mainspring.store.search import lookup
from mainspring.store.submission import enqueue
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import jobs
from mainspring.store.views.task_views import TaskView

MOST = 10_000  # tasks that are submitted at once
MOST_PARENTS = 1000
MAX_SUBMITTER = 200  # characters of an actor's name
DAY = timedelta(days=1)  # the text need not be read for each task
_OF_ONE = (JobNotFound, BatchNotFound, BatchEnded, ValidationError, TaskExists, NoAgents, QueueFull)  # not of the rest
LARGE = 16 * 1024  # bytes of arguments from which they are checked in slices
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
    on_parent_failure: OnParentFailure | None = None  # if one of them does not; None: skip
    concurrency_key: str | None = None
    batch: int | None = None  # that it is counted in
    tags: Sequence[str] = ()  # up to 10 words
    expires: float | str | None = None  # a duration: it is skipped if it has not started so long after its time
    timeout: float | str | None = None  # a duration, in place of its job's
    retries: int | None = None  # in place of its job's
    stalls_after: float | str | None = None  # a duration, in place of its job's
    require_agents: bool = False  # refuse it if no agent could run it


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(NewTask)}
_WITHOUT: dict[str, Any] = _DEFAULTS | {"job": "any", "args": {}}  # what takes the place of a member that is wrong
_MEMBER = re.compile(r"[.\[]")  # ends the name of a member


class Submitted(msgspec.Struct, frozen=True):
    id: int
    state: str | None  # None: retention has dropped the task, and its key is still taken
    created: bool  # False: the task that has the key
    task: TaskView | UnsetType = UNSET  # as it stands, after a wait


def submission(task: NewTask) -> Submission:
    """The task for the store; ValidationError tells all that is wrong with it."""
    try:
        return _submission(task)
    except ValidationError:
        raise together(_faults(task)) from None


def faults_of_values(members: Mapping[str, Any]) -> list[ValidationError]:
    """What is wrong with members of a NewTask whose types are right."""
    try:
        return _faults(msgspec.convert({"job": "any", **members}, NewTask))
    except msgspec.ValidationError:
        return []


def _faults(task: NewTask) -> list[ValidationError]:
    """Each fault is found without the members that are wrong so far."""
    found: list[ValidationError] = []
    while len(found) < MOST_FAULTS:
        try:
            _submission(task)
        except ValidationError as error:
            wrong = _MEMBER.split(error.field or "")[0]
            if wrong not in _WITHOUT or getattr(task, wrong) == _WITHOUT[wrong]:
                return [*found, error]
            found.append(error)
            task = msgspec.structs.replace(task, **{wrong: _WITHOUT[wrong]})
        else:
            break
    return found


def _submission(task: NewTask) -> Submission:
    if not isinstance(task.args, Mapping):
        raise ValidationError('args: give a JSON object of named arguments, such as {"day": "mon"}', field="args")
    if task.delay is not None and task.run_at is not None:
        raise ValidationError("run_at, delay: give one of them, not both", field="run_at")
    if task.if_exists not in ("return", "reject"):
        raise ValidationError(f"if_exists: {shown(task.if_exists)}; use return or reject", field="if_exists")
    if len(task.after) > MOST_PARENTS:
        raise ValidationError(f"after: {len(task.after)} tasks; at most {MOST_PARENTS}", field="after")
    concurrency_key, policy = task.concurrency_key, task.on_parent_failure
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
        on_parent_failure=None if policy is None else check_on_parent_failure(policy),
        batch=None if task.batch is None else check_id(task.batch, field="batch", of="a batch"),
        if_exists="reject" if task.if_exists == "reject" and task.key is not None else None,
        expires=_duration(task.expires, "expires"),
        tags=check_tags(task.tags) or None,
        timeout=_duration(task.timeout, "timeout"),
        retries=None if task.retries is None else check_task_retries(task.retries),
        stalls_after=_duration(task.stalls_after, "stalls_after"),
    )


def _duration(given: float | str | None, field: str) -> timedelta | None:
    return None if given is None else timedelta(seconds=seconds(given, field=field, at_least=0.001))


def checked(actor: Actor, task: NewTask) -> Submission:
    """The same, of a job that the actor reaches."""
    found = submission(task)
    _check_job(actor, found.job)
    return found._replace(submitter=submitter(actor))


def submitter(actor: Actor) -> str:
    """Who is kept with a task."""
    return actor.name[:MAX_SUBMITTER]


async def checked_in_turns(actor: Actor, task: NewTask) -> Submission:
    """The same; large arguments in slices, because they would hold the event loop for up to a tenth of a second."""
    data = await in_slices(_large(task))
    if data is None:
        return checked(actor, task)
    if await in_slices(is_plain_in_steps(task.args)):
        with suppress(ValidationError):  # told below, together with all else that is wrong
            text = checked_text(data, "args")
            return checked(actor, msgspec.structs.replace(task, args={}))._replace(args=text)
    return await asyncio.to_thread(checked, actor, task)


def _large(task: NewTask) -> Steps[bytes | None]:
    """The arguments as JSON, if they are large."""
    try:
        data = yield from encode_in_steps(task.args)
    except (TypeError, ValueError, RecursionError):  # the check says what is wrong
        return None
    return data if len(data) > LARGE else None


def can_share(actor: Actor, task: NewTask, checked: Submission) -> bool:
    """Whether it may go into one statement with others: nothing has to be looked up for it."""
    return checked.can_share and not task.require_agents and not (actor.jobs and checked.batch is not None)


async def submit(conn: Connection, actor: Actor, task: NewTask) -> Submitted:
    given = await checked_in_turns(actor, task)
    await check_relations(conn, actor, given)
    if task.require_agents:
        await check_agents(conn, given.job)
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
    slices = Slices()
    for number, task in enumerate(tasks):
        await slices.rest()  # a thousand of them take longer than an event loop may be held
        try:
            given = await checked_in_turns(actor, task)
        except MainspringError as error:
            answers[number] = error
            continue
        if can_share(actor, task, given):
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
            except _OF_ONE as error:
                answers[number] = error
    return [answers[number] for number in range(len(tasks))]


def _check_job(actor: Actor, job: str) -> None:
    if not actor.reaches(job):
        quoted = job.replace("'", "''")  # in the words of enqueue(), which do not reveal that there is such a job
        raise JobNotFound(
            f"no job named '{quoted}'; jobs are registered when their application starts, or by "
            "`mainspring job create`",
            field="job",
        )


async def check_relations(conn: Connection, actor: Actor, checked: Submission) -> None:
    """That the actor reaches the tasks that it runs after, and the batch that it is counted in."""
    await _check_parents(conn, actor, checked)
    await _check_batch(conn, actor, checked)


async def _check_parents(conn: Connection, actor: Actor, checked: Submission) -> None:
    """A task that the actor does not reach is one that does not exist."""
    for id in checked.after or () if actor.jobs else ():
        job = await lookup.job_of(conn, id)
        if job is None or not actor.reaches(job):
            raise ValidationError(
                f"after: task {id} does not exist, or is not kept any longer; `mainspring task list` has those that "
                "are",
                field="after",
            )  # in the words of depend(), which do not reveal that there is such a task


async def _check_batch(conn: Connection, actor: Actor, checked: Submission) -> None:
    """An actor that reaches some jobs only adds to its own batches."""
    if actor.jobs and checked.batch is not None and await batches.created_by(conn, checked.batch) != actor.name:
        raise batches.not_found(checked.batch)


async def check_agents(conn: Connection, name: str) -> None:
    """NoAgents if no agent that is there could run a task of this job."""
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
    """The answer for a task that has this id now."""
    if created and not task.after:
        return Submitted(id, PENDING.label, True)
    state = await lookup.state_of(conn, id)
    return Submitted(id, None if state is None else state.label, created)
