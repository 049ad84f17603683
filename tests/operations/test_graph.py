"""The graph around a task: what it waits for, what waits for it, and a retry with all that ended because of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import BatchNotFound, InvalidTransition, TaskNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.operations.definitions import jobs
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import batches, flows, tasks
from mainspring.operations.work.batches import NewBatch
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import dependencies, transitions
from mainspring.store.tasks import tasks as stored
from mainspring.store.views import flow_views, parents

NARROW = Actor("token:ci", jobs=("hello*",))


@pytest.fixture(autouse=True)
async def registered(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await jobs.put(conn, ACTOR, "other", echo())


async def submit(conn: Connection, *after: int, job: str = "hello", **options: Any) -> int:
    return (await tasks.submit(conn, ACTOR, NewTask(job=job, after=after, **options))).id


async def end(conn: Connection, task: int, state: TaskState = TaskState.SUCCEEDED) -> None:
    await conn.execute("update mainspring.task set state = 3, token = 1 where id = $1", task)
    assert await transitions.finish(conn, [Ending(task, 1, 1, 1, state, 1.0, 2.0)])
    await dependencies.settle(conn, [task])


async def states(conn: Connection, *given: int) -> list[str]:
    return [(await stored.get(conn, task)).state for task in given]


# ── the whole flow ──────────────────────────────────────────────────────────────────────────────


async def test_a_task_shows_the_whole_flow_around_it(conn: Connection) -> None:
    """A diamond with a tail, from any of its tasks, also once some have ended."""
    first = await submit(conn)
    left, right = await submit(conn, first), await submit(conn, first, job="other")
    last = await submit(conn, left, right)
    tail, alone = await submit(conn, last), await submit(conn)
    await end(conn, first)
    edges = [(first, left), (first, right), (left, last), (right, last), (last, tail)]
    for task in (first, right, tail):
        flow = await flows.of_task(conn, ACTOR, task)
        assert [(one.id, one.state) for one in flow.tasks[:2]] == [(first, "succeeded"), (left, "pending")]
        assert [one.id for one in flow.tasks] == [first, left, right, last, tail]
        assert [(edge.parent, edge.child) for edge in flow.edges] == edges
        assert flow.is_whole
    assert [one.id for one in (await flows.of_task(conn, ACTOR, alone)).tasks] == [alone]
    narrow = await flows.of_task(conn, NARROW, last)
    assert right not in [one.id for one in narrow.tasks]
    assert [(edge.parent, edge.child) for edge in narrow.edges] == [(first, left), (left, last), (last, tail)]
    with pytest.raises(TaskNotFound):
        await flows.of_task(conn, NARROW, right)


async def test_a_flow_of_more_than_200_tasks_says_that_there_are_more(conn: Connection) -> None:
    first = await submit(conn)
    for _ in range(flow_views.MOST_TASKS):
        await submit(conn, first)
    flow = await flows.of_task(conn, ACTOR, first)
    assert (len(flow.tasks), len(flow.edges), flow.is_whole) == (200, 199, False)


async def test_the_flow_of_a_batch_has_its_own_tasks_only(conn: Connection) -> None:
    outside = await submit(conn)
    batch = (await batches.create(conn, ACTOR, NewBatch(name="import"))).id
    first = await submit(conn, outside, batch=batch)
    second = await submit(conn, first, batch=batch)
    flow = await flows.of_batch(conn, ACTOR, batch)
    assert [one.id for one in flow.tasks] == [first, second]
    assert [(edge.parent, edge.child) for edge in flow.edges] == [(first, second)]
    with pytest.raises(BatchNotFound):
        await flows.of_batch(conn, NARROW, batch)


# ── look ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_blocked_task_says_what_it_waits_for(conn: Connection) -> None:
    first, second = await submit(conn), await submit(conn)
    child = await submit(conn, first, second)
    await conn.execute("update mainspring.task set state = 3, token = 1 where id = $1", first)
    waits = (await tasks.show(conn, ACTOR, child)).waits
    assert waits is not None
    assert (waits.code, waits.reason) == ("dependencies", f"waits for tasks {first} (running), {second} (pending)")
    [listed] = [view for view in (await tasks.listing(conn, ACTOR)).items if view.id == child]
    assert listed.waits == waits
    await conn.execute("update mainspring.task set state = 1 where id = $1", first)
    await end(conn, first)
    waits = (await tasks.show(conn, ACTOR, child)).waits
    assert waits is not None
    assert waits.reason == f"waits for task {second} (pending)"


async def test_of_many_tasks_that_it_waits_for_the_first_are_named(conn: Connection) -> None:
    many = [await submit(conn) for _ in range(7)]
    waits = (await tasks.show(conn, ACTOR, await submit(conn, *many))).waits
    assert waits is not None
    assert waits.reason.endswith(f"{many[4]} (pending) and 2 more")


async def test_a_task_is_shown_with_its_parents_and_children_also_after_its_end(conn: Connection) -> None:
    parent = await submit(conn)
    middle = await submit(conn, parent, on_parent_failure="run")
    child, other = await submit(conn, middle), await submit(conn, middle, job="other", on_parent_failure="fail")
    assert (await tasks.show(conn, ACTOR, await submit(conn))).graph is None
    await end(conn, parent, TaskState.FAILED)
    await end(conn, middle, TaskState.TIMED_OUT)
    found = await tasks.show(conn, ACTOR, middle)
    assert found.on_parent_failure == "run"
    assert found.graph == parents.Graph(
        [parents.Related(parent, "hello", "failed")],
        [
            parents.Related(child, "hello", "skipped", "dependency"),
            parents.Related(other, "other", "failed", "dependency"),
        ],
        1,
        2,
    )
    narrow = (await tasks.show(conn, NARROW, middle)).graph
    assert narrow is not None
    assert ([one.id for one in narrow.children], narrow.children_count) == ([child], 1)


async def test_of_a_large_graph_the_first_are_shown_and_all_counted(conn: Connection) -> None:
    parent = await submit(conn)
    for _ in range(parents.MOST_SHOWN + 3):
        await submit(conn, parent)
    graph = (await tasks.show(conn, ACTOR, parent)).graph
    assert graph is not None
    assert (len(graph.children), graph.children_count) == (parents.MOST_SHOWN, parents.MOST_SHOWN + 3)


async def test_what_retention_has_dropped_is_unknown(conn: Connection) -> None:
    parent = await submit(conn)
    child = await submit(conn, parent)
    await end(conn, parent)
    await conn.execute("delete from mainspring.task_history")
    graph = (await tasks.show(conn, ACTOR, child)).graph
    assert graph is not None
    assert graph.parents == [parents.Related(parent, None, "unknown")]


# ── retry ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_retry_with_children_revives_what_ended_because_of_it(conn: Connection) -> None:
    first = await submit(conn)
    second = await submit(conn, first)
    third = await submit(conn, second, on_parent_failure="fail")
    elsewhere = await submit(conn)
    await end(conn, first, TaskState.FAILED)
    assert await states(conn, second, third) == ["skipped", "failed"]
    retried = await tasks.retry(conn, ACTOR, first, with_children=True)
    assert (retried.state, retried.children) == ("pending", 2)
    assert await states(conn, first, second, third, elsewhere) == ["pending", "blocked", "blocked", "pending"]
    assert [(await stored.get(conn, task)).waiting_for for task in (second, third)] == [[first], [second]]
    detail = await conn.fetchval("select detail from mainspring.audit where action = 'task.retry'")
    assert f'"tasks": [{second}, {third}]' in detail
    for task, then in ((first, second), (second, third)):
        await end(conn, task)
        assert await states(conn, then) == ["pending"]


async def test_a_retry_alone_leaves_them_as_they_are(conn: Connection) -> None:
    first = await submit(conn)
    second = await submit(conn, first)
    await end(conn, first, TaskState.FAILED)
    assert (await tasks.retry(conn, ACTOR, first)).children == 0
    assert await states(conn, first, second) == ["pending", "skipped"]


async def test_what_a_person_ended_is_not_revived(conn: Connection) -> None:
    first = await submit(conn)
    second, third = await submit(conn, first), await submit(conn, first)
    await tasks.cancel(conn, ACTOR, second)
    await end(conn, first, TaskState.FAILED)
    assert (await tasks.retry(conn, ACTOR, first, with_children=True)).children == 1
    assert await states(conn, second, third) == ["cancelled", "blocked"]


async def test_a_revived_task_does_not_wait_for_what_has_succeeded_and_ends_with_what_has_not(conn: Connection) -> None:
    good, bad, worse = await submit(conn), await submit(conn), await submit(conn)
    child = await submit(conn, good, bad)
    both = await submit(conn, bad, worse)
    for task, state in ((good, TaskState.SUCCEEDED), (bad, TaskState.FAILED), (worse, TaskState.FAILED)):
        await end(conn, task, state)
    await tasks.retry(conn, ACTOR, bad, with_children=True)
    assert (await stored.get(conn, child)).waiting_for == [bad]
    await dependencies.settle(conn, await dependencies.left_over(conn, 10))
    assert await states(conn, child, both) == ["blocked", "skipped"]
    assert (await stored.get(conn, both)).error == f"task {worse}, which it waits for, did not succeed"


async def test_tasks_of_other_jobs_are_not_touched_by_those_who_do_not_reach_them(conn: Connection) -> None:
    first = await submit(conn)
    second, other = await submit(conn, first), await submit(conn, first, job="other")
    behind = await submit(conn, other)
    await end(conn, first, TaskState.FAILED)
    assert (await tasks.retry(conn, NARROW, first, with_children=True)).children == 1
    assert await states(conn, second, other, behind) == ["blocked", "skipped", "skipped"]


async def test_a_retry_that_is_refused_or_too_large_changes_nothing(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await submit(conn)
    children = [await submit(conn, first) for _ in range(3)]
    with pytest.raises(InvalidTransition):
        await tasks.retry(conn, ACTOR, first, with_children=True)
    await end(conn, first, TaskState.FAILED)
    monkeypatch.setattr(dependencies, "MOST_REVIVED", 3)
    with pytest.raises(ValidationError, match="with_children: more than 3 tasks"):
        await tasks.retry(conn, ACTOR, first, with_children=True)
    assert await states(conn, first, *children) == ["failed", *["skipped"] * 3]
