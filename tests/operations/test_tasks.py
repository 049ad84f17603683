"""Tasks: submit, list, count, show; cancel, pause, resume, restart, retry, change; act on all that match."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR, BAD_NAME, add_agent, echo

from mainspring.errors import (
    AgentNotFound,
    BadCursor,
    InvalidTransition,
    JobNotFound,
    ScheduleNotFound,
    TaskNotFound,
    ValidationError,
)
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.states import TaskState
from mainspring.operations.definitions import jobs
from mainspring.operations.pages import Page
from mainspring.operations.parts import task_detail
from mainspring.operations.parts.task_views import Skipped, TaskDetail, TaskRetried, TaskStateView
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.requests.task_filters import TaskFilter
from mainspring.operations.work import output, tasks
from mainspring.store.postgres.database import Connection
from mainspring.store.search.search import Count
from mainspring.store.submission import drivers, submissions
from mainspring.store.views.task_views import TaskSummary

NARROW = Actor("token:ci", jobs=("report-*",))
Operation = Callable[[Connection, Actor, int], Awaitable[Any]]


async def submit(conn: Connection, job: str = "hello", **options: Any) -> int:
    return (await tasks.submit(conn, ACTOR, NewTask(job=job, **options))).id


async def ids(conn: Connection, actor: Actor = ACTOR, **filters: Any) -> list[int]:
    return [view.id for view in (await tasks.listing(conn, actor, **filters)).items]


# ── look ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_listed_and_shown_with_what_it_waits_for(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    id = await submit(conn, args={"day": "mon"})
    [listed] = (await tasks.listing(conn, ACTOR, job=["hello"])).items
    assert (listed.id, listed.waits and listed.waits.code, listed.namespace) == (id, "no_agents", "default")
    found = await tasks.show(conn, ACTOR, id)
    assert (found.args, found.waits, found.attempts, found.children) == ({"day": "mon"}, listed.waits, [], [])
    assert [(phase.name, phase.late) for phase in found.phases] == [("created", None), ("due", None)]


async def test_phases_say_when_a_task_came_how_far_and_how_late(conn: Connection, make_task: MakeTask) -> None:
    due = datetime(2026, 11, 15, 9, tzinfo=UTC)
    id = await make_task(TaskState.RUNNING, run_at=due, started_at=due + timedelta(milliseconds=250))
    found = await tasks.show(conn, ACTOR, id)
    assert [(phase.name, phase.late) for phase in found.phases] == [("created", None), ("due", None), ("started", 0.25)]
    await tasks.cancel(conn, ACTOR, waits := await make_task())
    ended = (await tasks.show(conn, ACTOR, waits)).phases
    assert [phase.name for phase in ended] == ["created", "due", "finished", "recorded"]


async def test_views_survive_json(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task()
    for fields in ("summary", "all"):
        page = await tasks.listing(conn, ACTOR, fields=fields)
        assert msgspec.json.decode(msgspec.json.encode(page), type=Page[TaskSummary]) == page
    detail = await tasks.show(conn, ACTOR, id)
    assert msgspec.json.decode(msgspec.json.encode(detail), type=TaskDetail) == detail


async def test_a_summary_has_no_arguments_unless_all_fields_are_wanted(conn: Connection, make_task: MakeTask) -> None:
    await make_task(args='{"a": 1}')
    [summary] = (await tasks.listing(conn, ACTOR)).items
    [full] = (await tasks.listing(conn, ACTOR, fields="all")).items
    assert (summary.args, full.args, full.result) == (msgspec.UNSET, {"a": 1}, None)
    assert b'"args"' not in msgspec.json.encode(summary)
    with pytest.raises(ValidationError, match="fields"):
        await tasks.listing(conn, ACTOR, fields="some")  # type: ignore[arg-type]


async def test_pages_follow_each_other_by_their_cursors(conn: Connection, make_task: MakeTask) -> None:
    made = [await make_task() for _ in range(5)]
    page = await tasks.listing(conn, ACTOR, limit=2, state=["pending"])
    found = [view.id for view in page.items]
    await make_task()  # a page that follows does not see what came meanwhile
    while page.next is not None:
        page = await tasks.listing(conn, ACTOR, limit=2, state=["pending"], cursor=page.next)
        found += [view.id for view in page.items]
    assert found == made[::-1]
    assert await ids(conn, before=made[2]) == made[1::-1]


async def test_a_cursor_belongs_to_its_filters(conn: Connection, make_task: MakeTask) -> None:
    for _ in range(2):
        await make_task()
    page = await tasks.listing(conn, ACTOR, limit=1, state=["pending"])
    for filters in ({}, {"state": ["failed"]}, {"state": ["pending"], "before": 7}):
        with pytest.raises(BadCursor):
            await tasks.listing(conn, ACTOR, cursor=page.next, **filters)
    with pytest.raises(BadCursor):
        await tasks.listing(conn, ACTOR, cursor="x" * 100)


async def test_names_may_be_patterns(conn: Connection) -> None:
    made = {}
    for name in ("report-eu", "report-us", "a_b", "axb"):
        await jobs.put(conn, ACTOR, name, echo())
        made[name] = await submit(conn, name)
    assert await ids(conn, job=["report-*"]) == [made["report-us"], made["report-eu"]]
    assert await ids(conn, job=["*-eu", "axb"]) == [made["axb"], made["report-eu"]]
    assert await ids(conn, job=["a_b"]) == [made["a_b"]], "only * is special"
    assert await ids(conn, job=["none-*"]) == []
    await add_agent(conn, "eve", 7)
    await conn.execute(
        "update mainspring.task set state = 3, session = 7, token = 1, attempt = 1 where id = $1", made["axb"]
    )
    assert await ids(conn, agent=["e*"]) == [made["axb"]]


async def test_a_filter_that_names_nothing_is_an_error(conn: Connection) -> None:
    for filters, error in (
        ({"job": ["none"]}, JobNotFound),
        ({"schedule": ["none"]}, ScheduleNotFound),
        ({"agent": ["none"]}, AgentNotFound),
        ({"parent": [9]}, TaskNotFound),
    ):
        with pytest.raises(error):
            await tasks.listing(conn, ACTOR, **filters)
        with pytest.raises(error):
            await tasks.count(conn, ACTOR, **filters)


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": [BAD_NAME]},
        {"job": "hello"},
        {"job": ["x"] * 101},
        {"state": ["broken"]},
        {"id": [0]},
        {"parent": [0]},
        {"parent": [2**53]},
        {"priority": ["urgent"]},
        {"key": ["a\x00b"]},
        {"scope": ["\udcff"]},
        {"late_over": "soon"},
        {"created_after": datetime(2026, 11, 15)},
        {"finished_before": datetime(1812, 6, 24, tzinfo=UTC)},
        {"args": {"a": [1]}},
        {"args": {"a\x00": "1"}},
        {"limit": 501},
        {"before": 2**63},
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(conn: Connection, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        await tasks.listing(conn, ACTOR, **wrong)
    assert refused.value.field == next(iter(wrong))


async def test_a_filter_does_not_tell_whether_a_hidden_argument_was_guessed(
    conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task(args='{"db": {"password": "hunter2"}}')
    wanted = {"db.password": "hunter2"}
    found = await tasks.listing(conn, Actor("token:admin", Role.ADMIN), args=wanted)
    assert [one.id for one in found.items] == [id]
    for role in (Role.VIEWER, Role.OPERATOR, Role.SUBMITTER):
        with pytest.raises(ValidationError, match="its value is hidden"):
            await tasks.listing(conn, Actor("token:x", role), args=wanted)


async def test_times_are_given_as_durations_and_instants(conn: Connection, make_task: MakeTask) -> None:
    at = datetime(2026, 11, 15, tzinfo=UTC)
    late = await make_task(TaskState.RUNNING, run_at=at, started_at=at + timedelta(minutes=11))
    await make_task(TaskState.RUNNING, run_at=at, started_at=at)
    assert await ids(conn, late_over="10m") == await ids(conn, late_over=600) == [late]
    assert len(await ids(conn, run_after=at, run_before=at + timedelta(seconds=1))) == 2
    assert await ids(conn, run_before=at) == []


async def test_tasks_are_found_by_their_numbers_among_those_that_match(conn: Connection, make_task: MakeTask) -> None:
    made = [await make_task() for _ in range(4)]
    running = await make_task(TaskState.RUNNING)
    await tasks.cancel(conn, ACTOR, made[1])
    assert await ids(conn, id=[made[1], made[3], running, 2**52]) == [running, made[3], made[1]]
    assert await ids(conn, id=made, state=["pending"]) == [made[3], made[2], made[0]]
    assert await ids(conn, id=[made[0], made[2]], limit=1) == [made[2]]
    assert await tasks.count(conn, ACTOR, id=[made[0], running]) == Count(2, True)
    assert await ids(conn, id=[2**52]) == []


async def test_tasks_are_counted(conn: Connection, make_task: MakeTask) -> None:
    await make_task(), await make_task(TaskState.RUNNING)
    assert await tasks.count(conn, ACTOR) == Count(2, True)
    assert await tasks.count(conn, ACTOR, state=["running"]) == Count(1, True)


def test_every_filter_can_be_given_to_a_list_a_count_and_an_action() -> None:
    filters = set(TaskFilter.__struct_fields__)
    count = set(inspect.signature(tasks.count).parameters) - {"conn", "actor"}
    listing = set(inspect.signature(tasks.listing).parameters) - {"conn", "actor"}
    assert (count, listing) == (filters, filters | {"before", "fields", "cursor", "limit"})


# ── act on one ──────────────────────────────────────────────────────────────────────────────────


async def test_a_pending_task_is_cancelled_at_once_and_can_be_retried(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task()
    assert await tasks.cancel(conn, ACTOR, id) == TaskStateView(id, "cancelled")
    assert await tasks.retry(conn, ACTOR, id) == TaskRetried(id, "pending")
    assert (await tasks.status(conn, ACTOR, id)).state == "pending"


async def test_a_waiting_task_is_skipped_and_says_by_whom_and_why(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task()
    assert await tasks.skip(conn, ACTOR, id, note="release") == TaskStateView(id, "skipped")
    view = await tasks.status(conn, ACTOR, id)
    assert (view.error_code, view.error) == ("skipped", "skipped by test: release")
    assert await tasks.retry(conn, ACTOR, id) == TaskRetried(id, "pending")
    await tasks.skip(conn, ACTOR, id)
    assert (await tasks.status(conn, ACTOR, id)).error == "skipped by test"


async def test_an_armed_task_is_asked_back_and_a_running_one_refused(conn: Connection, make_task: MakeTask) -> None:
    armed, running = await make_task(TaskState.ASSIGNED), await make_task(TaskState.RUNNING)
    assert await tasks.skip(conn, ACTOR, armed) == TaskStateView(armed, "assigned")
    with pytest.raises(InvalidTransition, match="mainspring task cancel") as refused:
        await tasks.skip(conn, ACTOR, running)
    assert refused.value.details == {"state": "running", "allowed": ["blocked", "pending", "assigned"]}
    with pytest.raises(ValidationError, match="note"):
        await tasks.skip(conn, ACTOR, armed, note=BAD_NAME)


async def test_all_that_match_are_skipped(conn: Connection, make_task: MakeTask) -> None:
    waiting = [await make_task() for _ in range(3)]
    running = await make_task(TaskState.RUNNING)
    step = await tasks.act(conn, ACTOR, "skip", TaskFilter(job=["job"]), note="release")
    assert (step.done, step.skipped, step.next) == (3, [], None)
    assert await ids(conn, state=["skipped"]) == waiting[::-1]
    assert (await tasks.status(conn, ACTOR, waiting[0])).error == "skipped by test: release"
    step = await tasks.act(conn, ACTOR, "skip", TaskFilter(state=["running"]))
    assert [(one.id, one.code) for one in step.skipped] == [(running, "invalid_transition")]
    with pytest.raises(ValidationError, match="note: belongs to skip"):
        await tasks.act(conn, ACTOR, "cancel", TaskFilter(job=["job"]), note="release")


@pytest.mark.parametrize("state", [TaskState.ASSIGNED, TaskState.RUNNING])
async def test_a_held_task_is_asked_to_stop(conn: Connection, make_task: MakeTask, state: TaskState) -> None:
    id = await make_task(state)
    assert await tasks.cancel(conn, ACTOR, id, kill=True) == TaskStateView(id, state.label)


async def test_a_running_command_is_paused_and_resumed(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    id = await submit(conn)
    await conn.execute("update mainspring.task set state = 3, token = 1, session = 1, attempt = 1")
    assert await tasks.pause(conn, ACTOR, id) == TaskStateView(id, "running")
    assert (await tasks.status(conn, ACTOR, id)).paused_at is not None
    await tasks.resume(conn, ACTOR, id)
    assert (await tasks.status(conn, ACTOR, id)).paused_at is None
    await tasks.restart(conn, ACTOR, id)


@pytest.mark.parametrize("operation", [tasks.pause, tasks.resume, tasks.restart, tasks.retry])
async def test_a_pending_task_cannot_be(conn: Connection, make_task: MakeTask, operation: Operation) -> None:
    id = await make_task()
    with pytest.raises(InvalidTransition) as refused:
        await operation(conn, ACTOR, id)
    assert refused.value.details["state"] == "pending"
    assert "pending" not in refused.value.details["allowed"]  # type: ignore[operator]
    assert (await tasks.status(conn, ACTOR, id)).state == "pending"


async def test_what_has_ended_cannot_be_cancelled_and_says_what_could(conn: Connection, make_task: MakeTask) -> None:
    await tasks.cancel(conn, ACTOR, id := await make_task())
    with pytest.raises(InvalidTransition) as refused:
        await tasks.cancel(conn, ACTOR, id)
    assert refused.value.details == {
        "state": "cancelled",
        "allowed": ["blocked", "pending", "assigned", "running"],
    }


# ── change ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_waiting_task_gets_another_priority_and_time(conn: Connection, make_task: MakeTask) -> None:
    at = datetime(2199, 1, 1, tzinfo=UTC)
    id = await make_task()
    assert await tasks.change(conn, ACTOR, id, priority="high", run_at=at) == TaskStateView(id, "pending")
    view = await tasks.status(conn, ACTOR, id)
    assert (view.priority, view.run_at) == (7, at)
    await tasks.change(conn, ACTOR, id, now=True)
    assert (await tasks.status(conn, ACTOR, id)).run_at < at


async def test_the_start_deadline_moves_with_the_time_of_a_task(conn: Connection, make_task: MakeTask) -> None:
    at = datetime(2199, 1, 1, tzinfo=UTC)
    id = await make_task()
    await conn.execute("update mainspring.task set expires_at = run_at + interval '1 hour' where id = $1", id)
    await tasks.change(conn, ACTOR, id, run_at=at)
    assert (await tasks.status(conn, ACTOR, id)).expires_at == at + timedelta(hours=1)
    await tasks.change(conn, ACTOR, id, priority="high")
    assert (await tasks.status(conn, ACTOR, id)).expires_at == at + timedelta(hours=1)
    await tasks.change(conn, ACTOR, id, now=True)
    view = await tasks.status(conn, ACTOR, id)
    assert view.expires_at == view.run_at + timedelta(hours=1)


async def test_days_have_24_hours_where_a_session_has_a_time_zone(conn: Connection, make_task: MakeTask) -> None:
    """As the caller's own connection has, and one behind a pooler."""
    await conn.execute("set timezone = 'Europe/Paris'")
    id = await make_task()
    begin, later = datetime(2199, 3, 20, 9, tzinfo=UTC), datetime(2199, 4, 3, 9, tzinfo=UTC)  # clocks change between
    half = timedelta(minutes=30)
    await conn.execute("update mainspring.task set run_at = $2, expires_at = $3 where id = $1", id, begin, begin + half)
    await tasks.change(conn, ACTOR, id, run_at=later)
    assert (await tasks.status(conn, ACTOR, id)).expires_at == later + half
    days = [timedelta(days=100 * number) for number in (1, 2, 3)]  # a change of clocks lies within one of them
    for far in days:
        made = await drivers.submit(conn, submissions.Submission("job", "{}", delay=far, expires=far))
        row = await conn.fetchrow("select created_at, run_at, expires_at from mainspring.task where id = $1", made)
        assert (row["run_at"] - row["created_at"], row["expires_at"] - row["run_at"]) == (far, far)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"priority": 10},
        {"run_at": datetime(2026, 11, 15)},
        {"run_at": datetime(2200, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(2026, 11, 15, tzinfo=UTC), "now": True},
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(
    conn: Connection, make_task: MakeTask, wrong: dict[str, Any]
) -> None:
    id = await make_task()
    with pytest.raises(ValidationError):
        await tasks.change(conn, ACTOR, id, **wrong)


# ── whom it reaches ─────────────────────────────────────────────────────────────────────────────


async def test_an_actor_sees_and_touches_only_its_jobs(conn: Connection) -> None:
    for name in ("report-eu", "secret"):
        await jobs.put(conn, ACTOR, name, echo())
    mine, other = await submit(conn, "report-eu"), await submit(conn, "secret")
    assert await ids(conn, NARROW) == [mine]
    assert await ids(conn, NARROW, job=["*"]) == [mine]
    assert (await tasks.count(conn, NARROW)).count == 1
    with pytest.raises(JobNotFound):
        await tasks.listing(conn, NARROW, job=["secret"])
    with pytest.raises(JobNotFound) as hidden:
        await tasks.submit(conn, NARROW, NewTask(job="secret"))
    with pytest.raises(JobNotFound) as missing:
        await tasks.submit(conn, ACTOR, NewTask(job="sacred"))
    assert hidden.value.message == missing.value.message.replace("sacred", "secret")
    with pytest.raises(ValidationError, match="does not exist"):
        await tasks.submit(conn, NARROW, NewTask(job="report-eu", after=[other]))
    operations: list[Operation] = [tasks.show, tasks.status, tasks.cancel, tasks.pause, tasks.resume, tasks.restart]
    operations += [tasks.retry, lambda *given: tasks.change(*given, now=True), output.read]
    for operation in operations:
        with pytest.raises(TaskNotFound) as denied:
            await operation(conn, NARROW, other)
        with pytest.raises(TaskNotFound) as absent:
            await tasks.status(conn, ACTOR, 999)
        assert denied.value.message == absent.value.message.replace("999", str(other))
    with pytest.raises(TaskNotFound):
        await tasks.listing(conn, NARROW, parent=[other])
    assert (await tasks.act(conn, NARROW, "cancel", TaskFilter(state=["pending"]))).done == 1
    assert (await tasks.status(conn, ACTOR, other)).state == "pending"


# ── act on many ─────────────────────────────────────────────────────────────────────────────────


async def test_all_that_match_are_cancelled_and_retried(conn: Connection, make_task: MakeTask) -> None:
    waiting = [await make_task() for _ in range(3)]
    running = await make_task(TaskState.RUNNING)
    keyed = await make_task(key="stays")
    await conn.execute("update mainspring.task set priority = 9 where key = 'stays'")
    step = await tasks.act(conn, ACTOR, "cancel", TaskFilter(priority=["normal"]))
    assert (step.done, step.skipped, step.next) == (4, [], None)
    assert (await tasks.status(conn, ACTOR, keyed)).state == "pending"
    assert await conn.fetchval("select cancel_at is not null from mainspring.task where id = $1", running)
    assert await ids(conn, state=["cancelled"]) == waiting[::-1]
    step = await tasks.act(conn, ACTOR, "retry", TaskFilter(job=["job"]))
    assert (step.done, step.skipped, step.next) == (3, [], None)
    assert await ids(conn, state=["pending"]) == [keyed, *waiting[::-1]]


async def test_an_action_goes_step_by_step_and_leaves_what_is_new(conn: Connection, make_task: MakeTask) -> None:
    made = [await make_task() for _ in range(5)]
    filter = TaskFilter(state=["pending"])
    step = await tasks.act(conn, ACTOR, "cancel", filter, limit=2)
    new = await make_task()
    done = step.done
    while step.next is not None:
        step = await tasks.act(conn, ACTOR, "cancel", filter, limit=2, cursor=step.next)
        done += step.done
    assert done == 5
    assert await ids(conn, state=["pending"]) == [new]
    assert await ids(conn, state=["cancelled"]) == made[::-1]


async def test_those_that_wait_get_another_priority_or_are_due_at_once(conn: Connection, make_task: MakeTask) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    waiting = [await make_task(run_at=later) for _ in range(3)]
    running = await make_task(TaskState.RUNNING)
    step = await tasks.act(conn, ACTOR, "change", TaskFilter(job=["job"]), priority="high")
    assert (step.done, step.skipped) == (3, [])
    assert await ids(conn, priority=["high"]) == waiting[::-1]
    step = await tasks.act(conn, ACTOR, "change", TaskFilter(id=[waiting[0], running]), now=True)
    assert (step.done, step.skipped) == (1, []), "one that runs does not match"
    assert await ids(conn, run_before=later) == [running, waiting[0]]
    step = await tasks.act(conn, ACTOR, "change", TaskFilter(state=["running"]), now=True)
    assert step.skipped == [Skipped(running, "invalid_transition")]
    for action, given in (("change", {}), ("cancel", {"now": True}), ("retry", {"priority": 3})):
        with pytest.raises(ValidationError, match="priority, now"):
            await tasks.act(conn, ACTOR, action, TaskFilter(job=["job"]), **given)  # type: ignore[arg-type]


async def test_what_an_action_cannot_do_is_named(conn: Connection, make_task: MakeTask) -> None:
    await tasks.cancel(conn, ACTOR, ended := await make_task())
    waits = await make_task()
    step = await tasks.act(conn, ACTOR, "kill", TaskFilter(state=["pending", "cancelled"]))
    assert (step.done, step.skipped) == (1, [Skipped(ended, "invalid_transition")])
    assert (await tasks.status(conn, ACTOR, waits)).state == "cancelled"


async def test_an_action_needs_a_filter_and_its_own_cursor(conn: Connection, make_task: MakeTask) -> None:
    for _ in range(2):
        await make_task()
    with pytest.raises(ValidationError, match="filter"):
        await tasks.act(conn, ACTOR, "cancel", TaskFilter())
    with pytest.raises(ValidationError, match="action"):
        await tasks.act(conn, ACTOR, "pause", TaskFilter(state=["pending"]))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="limit"):
        await tasks.act(conn, ACTOR, "cancel", TaskFilter(state=["pending"]), limit=1001)
    step = await tasks.act(conn, ACTOR, "cancel", TaskFilter(state=["pending"]), limit=1)
    with pytest.raises(BadCursor):
        await tasks.act(conn, ACTOR, "kill", TaskFilter(state=["pending"]), cursor=step.next)
    with pytest.raises(BadCursor):
        await tasks.act(conn, ACTOR, "cancel", TaskFilter(state=["assigned"]), cursor=step.next)


# ── many attempts, many runs ────────────────────────────────────────────────────────────────────


async def test_of_many_attempts_the_last_are_shown_and_pages_have_all(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task(TaskState.RUNNING, token=1000, session=7, attempt=5)
    await conn.execute(
        """insert into mainspring.attempt
               (task_id, token, number, session, state, finished_at, recorded_at, run_at, error)
           select $1, n, 1 + n % 5, 7, 11, mainspring.now(), mainspring.now(), mainspring.now(), 'error ' || n
             from generate_series(1, 250) as n""",
        id,
    )
    shown = await tasks.show(conn, ACTOR, id)
    assert [attempt.token for attempt in shown.attempts] == [*range(152, 251), 1000]
    assert shown.attempt_count == Count(251, True)
    found: list[int] = []
    cursor = None
    while not found or cursor is not None:
        page = await tasks.attempts(conn, ACTOR, id, cursor=cursor, limit=100)
        found += [attempt.token for attempt in page.items]
        cursor = page.next
    assert found == [1000, *range(250, 0, -1)]
    wanted = await output.resolve(conn, ACTOR, id, after=None, attempt=3, tail=None)
    assert wanted.only == 247, "the last of that number"
    for number in (6, 99_999, 2**40):
        with pytest.raises(ValidationError, match="attempt"):
            await output.resolve(conn, ACTOR, id, after=None, attempt=number, tail=None)


async def test_attempts_beyond_what_is_counted_are_told_as_more(
    conn: Connection, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await make_task()
    await conn.execute(
        """insert into mainspring.attempt (task_id, token, number, state, finished_at, recorded_at, run_at)
           select $1, n, 1, 11, now(), now(), now() from generate_series(1, 130) as n""",
        id,
    )
    monkeypatch.setattr(task_detail, "MOST_COUNTED", 120)
    shown = await tasks.show(conn, ACTOR, id)
    assert (len(shown.attempts), shown.attempt_count) == (100, Count(120, False))


async def test_of_many_runs_the_first_are_shown_and_pages_have_all(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "all", echo(broadcast=True))
    id = await submit(conn, "all")
    await conn.execute(
        """insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, parent_id, target)
           select run_at, created_at, job_id, -pool, 1, 5, '{}', id, 'agent ' || n
             from mainspring.task, generate_series(1, 130) as n where id = $1""",
        id,
    )
    shown = await tasks.show(conn, ACTOR, id)
    assert (len(shown.children), shown.child_count) == (100, Count(130, True))
    first = await tasks.children(conn, ACTOR, id, limit=100)
    rest = await tasks.children(conn, ACTOR, id, limit=100, cursor=first.next)
    assert first.items == shown.children
    agents = [child.agent for child in first.items + rest.items]
    assert (len(agents), agents) == (130, sorted(agents))
    assert rest.next is None


async def test_attempts_and_runs_of_a_task_that_is_not_there_are_not_found(
    conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task()
    for pages_of in (tasks.attempts, tasks.children):
        assert (await pages_of(conn, ACTOR, id)).items == []
        with pytest.raises(TaskNotFound):
            await pages_of(conn, ACTOR, id + 1)
        with pytest.raises(TaskNotFound):
            await pages_of(conn, NARROW, id)
