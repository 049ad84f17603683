"""`mainspring task kill | pause | resume | restart`, and broadcasts and schedules in `task list` and `show`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import Cli

from mainspring.store.postgres.database import Database
from mainspring.store.tasks import dependencies

Sql = Callable[[str], None]


@pytest.fixture
def sql(dsn: str) -> Sql:
    async def execute(statement: str) -> None:
        conn = await Database(dsn).connect()
        await conn.execute(statement)
        await conn.close()

    return lambda statement: asyncio.run(execute(statement))


@pytest.fixture
def running(cli: Cli, sql: Sql) -> str:
    """A task of a command that an agent runs."""
    cli("job", "create", "long", "--", "sleep", "600")
    cli("task", "submit", "long")
    sql("update mainspring.task set state = 3, token = 1, session = 1, attempt = 1, started_at = mainspring.now()")
    return "1"


def test_a_running_command_is_paused_and_resumed(cli: Cli, running: str) -> None:
    assert cli("task", "pause", running) == (0, "1\tpause requested\n", "")
    shown = cli("task", "show", running).out
    assert "state\trunning\n" in shown
    assert "\npaused\tsince " in shown
    assert cli("task", "show", running, "--json").json["paused_at"] is not None
    assert cli("task", "resume", running).out == "1\tresume requested\n"
    assert "paused" not in cli("task", "show", running).out
    outcome = cli("task", "resume", running)
    assert outcome.code == 4
    assert "is running and not paused" in outcome.err


def test_a_running_task_is_killed_and_restarted(cli: Cli, running: str) -> None:
    assert cli("task", "restart", running).out == "1\trestart requested\n"
    assert cli("task", "kill", running, "--json").json == [{"id": 1, "outcome": "kill requested"}]
    assert cli("task", "restart", running).code == 4


@pytest.mark.parametrize("verb", ["kill", "pause", "resume", "restart"])
def test_what_does_not_exist_or_is_no_number_is_told(cli: Cli, verb: str) -> None:
    assert cli("task", verb, "7").code == 3
    assert cli("task", verb, "seven").code == 2
    assert cli("task", verb).code == 2


def test_a_retry_with_children_revives_what_was_skipped_because_of_it(cli: Cli, dsn: str) -> None:
    cli("job", "create", "hello", "--", "echo", "hello")
    first, child = [cli("task", "submit", "hello", *more).out.strip() for more in ((), ("--after", "1"))]
    assert cli("task", "skip", first, "--note", "not tonight").code == 0
    asyncio.run(_settle(dsn, int(first)))
    assert [cli("task", "show", task, "--json").json["state"] for task in (first, child)] == ["skipped", "skipped"]
    outcome = cli("task", "retry", first, "--with-children")
    assert (outcome.code, outcome.err) == (0, "")
    assert [cli("task", "show", task, "--json").json["state"] for task in (first, child)] == ["pending", "blocked"]
    refused = cli("task", "retry", "--job", "hello", "--with-children", "--yes")
    assert refused.code == 2
    assert "--with-children goes with numbers" in refused.err


async def _settle(dsn: str, parent: int) -> None:
    """As a server does when it has ended."""
    conn = await Database(dsn).connect()
    await dependencies.settle(conn, [parent])
    await conn.close()


def test_tasks_are_listed_by_schedule(cli: Cli) -> None:
    cli("job", "create", "hello", "--", "echo", "hello")
    cli("schedule", "create", "nightly", "hello", "--cron", "@daily", "--enable")
    cli("task", "submit", "hello")
    assert cli("schedule", "run-now", "nightly").code == 0

    def ids(*arguments: str) -> list[int]:
        return [view["id"] for view in cli("task", "list", "--json", *arguments).json]

    assert ids() == [2, 1]
    assert ids("--schedule", "nightly") == [2]
    outcome = cli("task", "list", "--schedule", "nihgtly")
    assert (outcome.code, outcome.out) == (3, "")


@pytest.fixture
def broadcast(cli: Cli, sql: Sql) -> str:
    """A broadcast with two runs, as a server would have made it."""
    assert cli("job", "create", "sweep", "--broadcast", "--", "true").code == 0
    cli("task", "submit", "sweep")
    sql("update mainspring.task set state = 3, token = 1024")
    sql("""
        insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, parent_id, target)
        select run_at, created_at, job_id, -pool, 2, priority, args, id, name
          from mainspring.task, unnest(array['a', 'b']) name
    """)
    return "1"


def test_a_broadcast_is_shown_with_its_runs_and_listed_without_them(cli: Cli, broadcast: str) -> None:
    shown: Any = cli("task", "show", broadcast, "--json").json
    assert [(run["agent"], run["state"]) for run in shown["children"]] == [("a", "assigned"), ("b", "assigned")]
    lines = cli("task", "show", broadcast).out.splitlines()
    assert lines[-3].split("\t")[:3] == ["agent", "task", "state"]
    assert [line.split("\t")[0] for line in lines[-2:]] == ["a", "b"]
    assert [view["id"] for view in cli("task", "list", "--json").json] == [1]
    runs = cli("task", "list", "--json", "--parent", broadcast).json
    assert [(run["parent"], run["agent"]) for run in runs] == [(1, "b"), (1, "a")]
    assert "only on\tb\n" in cli("task", "show", str(runs[0]["id"])).out
    assert "every agent that matches" in cli("job", "show", "sweep").out
    assert cli("task", "list", "--parent", "99").code == 3


def test_a_broadcast_is_not_paused_as_a_whole(cli: Cli, broadcast: str) -> None:
    outcome = cli("task", "pause", broadcast)
    assert outcome.code == 4
    assert "`mainspring task show 1` names its runs" in outcome.err
