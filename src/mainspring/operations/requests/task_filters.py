"""Task filters: what a caller asks for → what the store searches.

Several values of one filter are alternatives, different filters must all match. Names take `*`; one without it that
does not exist is an error, because an empty list would hide the mistake. An actor that reaches only some jobs finds
only their tasks, whatever the filter.
Next: store/search/search.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.errors import (
    AgentNotFound,
    JobNotFound,
    MainspringError,
    ScheduleNotFound,
    TaskNotFound,
    ValidationError,
    shown,
)
from mainspring.model.access.actors import Actor, Role
from mainspring.model.access.masking import hides_argument
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.durations import seconds
from mainspring.model.words.globs import as_like
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name, check_text
from mainspring.model.words.numbers import check_id
from mainspring.store.batches import batches
from mainspring.store.postgres.connection import Connection
from mainspring.store.search import lookup
from mainspring.store.search.filters import Filters
from mainspring.store.tasks.tasks import no_task

MOST_VALUES = 100  # of one filter


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: Sequence[int] = ()
    job: Sequence[str] = ()
    schedule: Sequence[str] = ()
    state: Sequence[str] = ()
    agent: Sequence[str] = ()  # holds or ended it, or is the only one that may run it
    parent: Sequence[int] = ()  # the runs of these broadcasts, which are left out else
    batch: Sequence[int] = ()
    priority: Sequence[int | str] = ()
    key: Sequence[str] = ()
    concurrency_key: Sequence[str] = ()
    scope: Sequence[str] = ()
    tag: Sequence[str] = ()
    error_code: Sequence[str] = ()
    late_over: float | str | None = None  # a duration: it started so much after it was due
    created_after: datetime | None = None  # or at that instant, as with all of these
    created_before: datetime | None = None
    run_after: datetime | None = None
    run_before: datetime | None = None
    due_before: datetime | None = None  # those that wait, and are due by then
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    args: Mapping[str, str | int | float | bool] = {}  # path with dots → value

    @property
    def given(self) -> dict[str, Any]:
        """The filters that were given, by name."""
        given: dict[str, Any] = msgspec.to_builtins(self)
        return given


async def resolve(conn: Connection, actor: Actor, filter: TaskFilter) -> Filters:
    """The filter for the store. Names that do not exist, or that the actor does not reach, are not found."""
    checked = Filters(
        ids=[check_id(id, field="id") for id in _values(filter.id, "id")],
        states=_states(filter),
        parents=[check_id(id, field="parent") for id in _values(filter.parent, "parent")],
        batches=[check_id(id, field="batch", of="a batch") for id in _values(filter.batch, "batch")],
        priorities=[priority_level(given) for given in _values(filter.priority, "priority")],
        keys=_texts(filter.key, "key"),
        concurrency_keys=_texts(filter.concurrency_key, "concurrency_key"),
        scopes=_texts(filter.scope, "scope"),
        tags=_texts(filter.tag, "tag"),
        error_codes=_texts(filter.error_code, "error_code"),
        late_over=None if filter.late_over is None else timedelta(seconds=seconds(filter.late_over, field="late_over")),
        args=_args(actor, filter.args),
        created_after=_instant(filter.created_after, "created_after"),
        created_before=_instant(filter.created_before, "created_before"),
        run_after=_instant(filter.run_after, "run_after"),
        run_before=_earlier(_instant(filter.run_before, "run_before"), _instant(filter.due_before, "due_before")),
        finished_after=_instant(filter.finished_after, "finished_after"),
        finished_before=_instant(filter.finished_before, "finished_before"),
    )
    for id in checked.parents:
        try:
            await check_reach(conn, actor, id, must_exist=True)
        except TaskNotFound as error:
            raise TaskNotFound(error.message, field="parent") from None
    for id in checked.batches:
        if not await batches.exists(conn, id):
            raise batches.not_found(id)
    return msgspec.structs.replace(
        checked,
        jobs=await _jobs(conn, actor, filter.job),
        schedules=await _named(conn, actor, filter.schedule, "schedule"),
        sessions=await _named(conn, actor, filter.agent, "agent"),
        agents=[as_like(name) for name in filter.agent],
    )


def _states(filter: TaskFilter) -> list[TaskState]:
    if filter.due_before is not None and not filter.state:
        return [TaskState.BLOCKED, TaskState.PENDING]
    return [state_named(label) for label in _values(filter.state, "state")]


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((each for each in (one, other) if each is not None), default=None)


def state_named(label: object) -> TaskState:
    labels = [state.label for state in TaskState]
    if not isinstance(label, str) or label not in labels:
        raise ValidationError(f"state: {shown(label)} is not a state; give {', '.join(labels)}", field="state")
    return TaskState.from_label(label)


async def check_reach(conn: Connection, actor: Actor, task: int, *, must_exist: bool = False) -> None:
    """TaskNotFound if the task is of a job that the actor does not reach. Most reach all, and nothing is asked."""
    if not actor.jobs and not must_exist:
        return
    job = await lookup.job_of(conn, task)
    if job is None or not actor.reaches(job):
        raise no_task(task)


def _values(given: Sequence[Any], field: str) -> list[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise ValidationError(f"{field}: {shown(given)} is not a list of values", field=field)
    if len(given) > MOST_VALUES:
        raise ValidationError(f"{field}: {len(given)} values; at most {MOST_VALUES}", field=field)
    return list(given)


def _texts(given: Sequence[str], field: str) -> list[str]:
    return [check_text(text, field=field, limit=1000) for text in _values(given, field)]


def _instant(given: datetime | None, field: str) -> datetime | None:
    return None if given is None else check_instant(given, field=field)


def _args(actor: Actor, given: Mapping[str, Any]) -> dict[str, str]:
    """A filter would tell those who see `***` whether they have guessed the value."""
    if len(given) > MOST_VALUES:
        raise ValidationError(f"args: {len(given)} paths; at most {MOST_VALUES}", field="args")
    found = {}
    for path, value in given.items():
        if actor.role is not Role.ADMIN and hides_argument(path):
            raise ValidationError(
                f"args.{shown(path)}: its value is hidden, so only an admin searches by it", field="args"
            )
        if not isinstance(value, (str, int, float)):
            raise ValidationError(f"args: {shown(value)}; give text, a number, true or false", field="args")
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        found[check_text(path, field="args", limit=1000)] = check_text(text, field="args")
    return found


async def _jobs(conn: Connection, actor: Actor, given: Sequence[str]) -> list[int] | None:
    """The ids of the jobs; None: all, those that were deleted among them."""
    names = [check_name(name, field="job") for name in _values(given, "job")]
    if not names and not actor.jobs:
        return None
    found = await lookup.jobs(conn, [as_like(name) for name in names] if names else ["%"])
    reached = {job: id for id, job in found if actor.reaches(job)}
    for name in names:
        if "*" not in name and name not in reached:
            raise JobNotFound(f"no job named {name!r}; `mainspring job list` shows what there is", field="job")
    return list(reached.values())


_MISSING: dict[str, tuple[type[MainspringError], str]] = {
    "schedule": (ScheduleNotFound, "`mainspring schedule list` shows what there is"),
    "agent": (AgentNotFound, "`mainspring agents list` shows those that are or were connected"),
}


async def _named(conn: Connection, actor: Actor, given: Sequence[str], field: str) -> list[int] | None:
    """The ids of these schedules, of those that the actor reaches, or the sessions of these agents; None: all."""
    names = [check_name(name, field=field) for name in _values(given, field)]
    if not names:
        return None
    patterns = [as_like(name) for name in names]
    if field == "agent":
        found = await lookup.sessions(conn, patterns)
    elif actor.jobs:
        of_jobs = await lookup.schedules_with_jobs(conn, patterns)
        found = [(id, name) for id, name, job in of_jobs if actor.reaches(job)]
    else:
        found = await lookup.schedules(conn, patterns)
    there = {name for _, name in found}
    for name in names:
        if "*" not in name and name not in there:
            kind, advice = _MISSING[field]
            raise kind(f"no {field} named {name!r}; {advice}", field=field)
    return [id for id, _ in found]
