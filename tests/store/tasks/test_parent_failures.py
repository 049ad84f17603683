"""on_parent_failure: what becomes of a child whose parent did not succeed, whenever that parent has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.errors import ValidationError
from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.drivers import submit
from mainspring.store.submission.enqueue import submit_each
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import dependencies, jobs, tasks, transitions

POLICIES = {"skip": "skipped", "fail": "failed", "run": "pending"}
UNSUCCESSFUL = sorted(TERMINAL - {TaskState.SUCCEEDED})


@pytest.fixture(autouse=True)
async def job(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})


async def enqueue(conn: Connection, *after: int, policy: str | None = None) -> int:
    return int(await submit(conn, Submission("job", "{}", after=list(after) or None, on_parent_failure=policy)))


async def end(conn: Connection, task: int, state: TaskState = TaskState.SUCCEEDED) -> None:
    await conn.execute("update mainspring.task set state = 3, token = 1 where id = $1", task)
    assert len(await transitions.finish(conn, [Ending(task, 1, 1, 1, state, 1.0, 2.0)])) == 1


async def settle_left_over(conn: Connection) -> list[int]:
    """What the loop does; returns those that became pending."""
    released = await dependencies.settle(conn, await dependencies.left_over(conn, 100))
    return [each.position[1] for each in released]


async def states(conn: Connection, *given: int) -> list[str]:
    return [(await tasks.get(conn, task)).state for task in given]


async def edges(conn: Connection) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.dependency"))


@pytest.mark.parametrize("state", UNSUCCESSFUL)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_parent_that_fails_does_to_its_child_what_the_policy_says(
    conn: Connection, policy: str, state: TaskState
) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent, policy=policy)
    await end(conn, parent, state)
    await dependencies.settle(conn, [parent])
    view = await tasks.get(conn, child)
    assert view.state == POLICIES[policy]
    assert view.error_code == (None if policy == "run" else "dependency")
    assert await edges(conn) == 0


@pytest.mark.parametrize("state", UNSUCCESSFUL)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_parent_that_had_failed_before_does_the_same(conn: Connection, policy: str, state: TaskState) -> None:
    parent = await enqueue(conn)
    await end(conn, parent, state)
    child = await enqueue(conn, parent, policy=policy)
    assert await states(conn, child) == ["pending" if policy == "run" else "blocked"]
    await settle_left_over(conn)
    assert await states(conn, child) == [POLICIES[policy]]
    assert await edges(conn) == 0


async def test_without_a_policy_such_a_parent_is_refused_as_ever(conn: Connection) -> None:
    parent = await enqueue(conn)
    await end(conn, parent, TaskState.FAILED)
    with pytest.raises(ValidationError, match=f"after: task {parent} did not succeed; retry it .*: run, skip or fail$"):
        await enqueue(conn, parent)


@pytest.mark.parametrize("policy", [*POLICIES, None])
async def test_a_parent_that_never_existed_is_refused_whatever_the_policy(conn: Connection, policy: str | None) -> None:
    with pytest.raises(ValidationError, match="after: task 999 does not exist, or is not kept any longer"):
        await enqueue(conn, 999, policy=policy)


async def test_a_child_that_runs_anyway_waits_for_the_last_parent(conn: Connection) -> None:
    parents = [await enqueue(conn) for _ in range(3)]
    child = await enqueue(conn, *parents, policy="run")
    await end(conn, parents[0], TaskState.FAILED)
    await end(conn, parents[1])
    assert await dependencies.settle(conn, parents) == []
    assert (await tasks.get(conn, child)).waiting_for == [parents[2]]
    await end(conn, parents[2], TaskState.CANCELLED)
    assert len(await dependencies.settle(conn, parents)) == 1


async def test_a_child_that_fails_does_not_wait_for_the_others(conn: Connection) -> None:
    bad, other = await enqueue(conn), await enqueue(conn)
    child = await enqueue(conn, bad, other, policy="fail")
    await end(conn, bad, TaskState.FAILED)
    await dependencies.settle(conn, [bad])
    view = await tasks.get(conn, child)
    assert (view.state, view.error) == ("failed", f"task {bad}, which it waits for, did not succeed")
    assert await edges(conn) == 0


async def test_each_task_of_a_chain_follows_its_own_policy(conn: Connection) -> None:
    """failed → fail → skip → run → default: the one that runs anyway ends the chain of failures."""
    first = await enqueue(conn)
    chain = [first]
    for policy in ("fail", "skip", "run", None):
        chain.append(await enqueue(conn, chain[-1], policy=policy))
    await end(conn, first, TaskState.TIMED_OUT)
    released = await dependencies.settle(conn, [first])
    assert [each.position[1] for each in released] == [chain[3]]
    assert await states(conn, *chain[1:]) == ["failed", "skipped", "pending", "blocked"]


async def test_a_child_that_runs_anyway_runs_after_a_parent_that_retention_dropped(conn: Connection) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent, policy="run")
    await end(conn, parent)
    await conn.execute("delete from mainspring.task_history")
    assert await settle_left_over(conn) == [child]


async def test_a_server_that_dies_between_the_statements_leaves_what_the_next_one_finds(conn: Connection) -> None:
    parent = await enqueue(conn)
    skipped = await enqueue(conn, parent)
    last = await enqueue(conn, skipped, policy="run")
    await end(conn, parent, TaskState.FAILED)
    await conn.fetch(dependencies._FAIL, [parent])  # and then it dies
    assert await states(conn, skipped, last) == ["skipped", "blocked"]
    assert await settle_left_over(conn) == [last]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_parent_that_ends_before_the_childs_transaction_commits(
    dsn: str, conn: Connection, policy: str
) -> None:
    """The parent's server settles while it cannot see the child yet; the search afterwards finds the edge."""
    database = Database(dsn)
    submitter, server = await database.connect(), await database.connect()
    await jobs.register(server, {"job": Definition(Python("job"))})
    parent = await enqueue(server)
    transaction: Any = submitter.transaction()
    await transaction.start()
    child = await enqueue(submitter, parent, policy=policy)
    await end(server, parent, TaskState.FAILED)
    assert await dependencies.settle(server, [parent]) == []
    await transaction.commit()
    assert await states(server, child) == ["blocked"]
    await settle_left_over(server)
    assert await states(server, child) == [POLICIES[policy]]
    await submitter.close()
    await server.close()


async def test_a_parent_that_ends_and_is_settled_at_the_same_moment_by_many(dsn: str, conn: Connection) -> None:
    database = Database(dsn)
    connections = [await database.connect() for _ in range(4)]
    await jobs.register(connections[0], {"job": Definition(Python("job"))})
    parents = [await enqueue(connections[0]) for _ in range(8)]
    child = await enqueue(connections[0], *parents, policy="run")
    for number, parent in enumerate(parents):
        await end(connections[0], parent, TaskState.FAILED if number % 2 else TaskState.SUCCEEDED)
    found = await asyncio.gather(*(dependencies.settle(each, parents) for each in connections))
    assert sum(map(len, found)) == 1
    assert await states(connections[0], child) == ["pending"]
    for each in connections:
        await each.close()


async def test_a_parent_whose_result_is_still_due_is_waited_for(conn: Connection) -> None:
    """Its handler has committed by transaction(), and its agent is there: the result comes."""
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    await conn.execute("""
        insert into mainspring.agent (session, name, instance, slots, labels, lease_until, server)
        values (7, 'one', 'i', 1, '{}', mainspring.now() + interval '1 hour', null)
    """)
    await conn.execute("update mainspring.task set state = 3, token = 1, session = 7 where id = $1", parent)
    ending = Ending(parent, 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)
    assert await transitions.complete(conn, [ending])
    assert (await settle_left_over(conn), await dependencies.settle(conn, [parent])) == ([], [])
    assert await transitions.add_results(conn, [ending])
    assert len(await dependencies.settle(conn, [parent])) == 1
    assert await states(conn, child) == ["pending"]


async def test_a_fan_in_of_a_thousand_is_exact(conn: Connection) -> None:
    parents = await conn.fetchval(
        "select mainspring.enqueue_many('job', array(select '{}'::jsonb from generate_series(1, 1000)))"
    )
    child = await enqueue(conn, *parents, policy="run")
    await conn.execute("update mainspring.task set state = 3, token = 1 where id = any($1::bigint[])", parents)
    kinds = [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.LOST]
    for first in range(0, 1000, 100):
        some = parents[first : first + 100]
        await transitions.finish_many(conn, [Ending(id, 1, 1, 1, kinds[id % 3], 1.0, 2.0) for id in some])
        released = await dependencies.settle(conn, some)
        assert len(released) == (first == 900)
    assert await states(conn, child) == ["pending"]
    assert await edges(conn) == 0


async def test_the_parents_are_kept_with_the_child_and_nothing_with_others(conn: Connection) -> None:
    parents = [await enqueue(conn), await enqueue(conn)]
    child = await enqueue(conn, *parents, parents[0])
    options = dict(await conn.fetch("select id, options from mainspring.task order by id"))
    assert [options[id] for id in parents] == [None, None]
    assert options[child] == f'{{"parents": [{parents[0]}, {parents[1]}]}}'
    assert await conn.fetchval("select count(*) from mainspring.dependent where child = $1", child) == 2


async def test_nobody_names_parents_past_the_check_of_after(conn: Connection) -> None:
    """A role that reads only its own tasks would get the results of others by it."""
    with pytest.raises(Exception, match="options: .*parents"):
        await conn.fetchval(
            "select mainspring.enqueue_each(array['job'], array['{}'::jsonb], options => $1)", ['{"parents":[1]}']
        )
    assert await submit_each(conn, [Submission("job", "{}", tags=["one"]), Submission("job", "{}")])
