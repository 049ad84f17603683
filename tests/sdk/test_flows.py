"""Chains and groups: tasks that run after each other, submitted in one statement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from mainspring import App, Fail, JobNotFound, ValidationError, chain, current_task, group
from mainspring.sdk.flows.flow import DEEPEST, Chain
from mainspring.store.postgres.database import Connection
from tests.sdk.test_over_http import api_of


class Work:
    """Jobs that add up what their parents have returned."""

    def __init__(self, app: App) -> None:
        self.order: list[str] = []

        @app.job(retries=0)
        async def add(name: str, number: int = 0) -> int:
            self.order.append(name)
            if number < 0:
                raise Fail(name)
            return number + sum(parent.result or 0 for parent in current_task().parents)

        self.add = add


@pytest.fixture
def work(app: App) -> Work:
    return Work(app)


async def test_a_chain_runs_in_order_and_hands_on_results(app: App, work: Work) -> None:
    async with app.running():
        tasks = await chain(*(work.add.with_args(name, 10**n) for n, name in enumerate("abc"))).enqueue()
        assert await tasks[-1].result(timeout=20) == 111
    assert work.order == ["a", "b", "c"]
    assert [task.job for task in tasks] == ["add"] * 3


async def test_what_follows_a_group_waits_for_all_of_it(app: App, work: Work) -> None:
    first = work.add.with_args("first", 1)
    middle = group(*(work.add.with_args(f"m{n}", 10) for n in range(5)))
    async with app.running():
        tasks = await chain(first, middle, work.add.with_args("last")).enqueue()
        assert await tasks[-1].result(timeout=20) == 5 * 11
    assert (work.order[0], work.order[-1], len(work.order)) == ("first", "last", 7)


async def test_chains_and_groups_within_each_other(app: App, work: Work, conn: Connection) -> None:
    one = work.add.with_args
    whole = group(chain(one("a"), one("b")), one("c")).then(group(one("d"), one("e").then(one("f"))), one("g"))
    async with app:
        tasks = await whole.enqueue()
    names = dict(zip((task.id for task in tasks), "abcdefg", strict=True))
    edges = await conn.fetch("select parent, child from mainspring.dependent order by parent, child")
    assert [names[parent] + names[child] for parent, child in edges] == [
        *("ab", "bd", "be", "cd", "ce", "dg", "ef", "fg")
    ]


async def test_each_task_has_its_own_policy_or_that_of_its_chain(app: App, work: Work) -> None:
    one = work.add
    whole = chain(
        one.with_args("a", -1),
        one.with_args("b"),
        one.using(on_parent_failure="run", tags=["told"]).with_args("c"),
        on_parent_failure="fail",
    ).then(one.with_args("d", -1), one.with_args("e"), on_parent_failure="run")
    async with app.running():
        tasks = await whole.enqueue()
        await tasks[-1].result(timeout=20)
        views = [await task.status() for task in tasks]
    assert [view.state for view in views] == ["failed", "failed", "succeeded", "failed", "succeeded"]
    assert [view.on_parent_failure for view in views] == ["fail", "fail", "run", "run", "run"]
    assert views[2].tags == ("told",)
    assert work.order == ["a", "c", "d", "e"]


async def test_a_flow_is_part_of_the_callers_transaction(app: App, work: Work, dsn: str) -> None:
    flow = chain(work.add.with_args("a"), work.add.with_args("b"))
    async with app:
        conn = await asyncpg.connect(dsn)
        transaction = conn.transaction()
        await transaction.start()
        tasks = await flow.enqueue(conn=conn)
        await transaction.rollback()
        assert await conn.fetchval("select count(*) from mainspring.task") == 0
        assert await conn.fetchval("select count(*) from mainspring.dependent") == 0
        await conn.close()
        assert len(tasks) == 2


def test_the_same_from_sync_code(app: App, work: Work, dsn: str) -> None:
    flow = work.add.with_args("a").then(work.add.with_args("b"))
    assert len(flow.enqueue_sync()) == 2
    with psycopg.connect(dsn) as conn:
        tasks = flow.enqueue_sync(conn=conn)
        conn.rollback()
        found = conn.execute("select count(*) from mainspring.task where id = any(%s)", [[task.id for task in tasks]])
        assert found.fetchone() == (0,)
    app.call_sync("close", app.close)


async def test_a_flow_over_http(app: App, work: Work, dsn: str) -> None:
    async with app.running(), api_of(dsn) as (url, token), App("test", url=url, token=token) as producer:
        add = Work(producer).add
        last = add.using(on_parent_failure="run", timeout="1m", key="last").with_args("c", 4)
        tasks = await group(add.with_args("a", 1), add.with_args("b", 2)).then(last).enqueue()
        assert await tasks[-1].result(timeout=20) == 7
        assert (await tasks[-1].status()).timeout == 60
        with pytest.raises(JobNotFound, match="nothing"):
            await chain(add.with_args("a"), producer.command("nothing", ["true"]).with_args()).enqueue()
    assert sorted(work.order) == ["a", "b", "c"]


async def test_all_or_none(app: App, work: Work, conn: Connection) -> None:
    missing = 10**6
    async with app:
        with pytest.raises(ValidationError, match=f"after: task {missing} does not exist"):
            await chain(work.add.with_args("a"), work.add.using(after=missing).with_args("b")).enqueue()
    assert await conn.fetchval("select count(*) from mainspring.task") == 0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda add: chain(), "at least one part"),
        (lambda add: group(), "at least one part"),
        (lambda add: chain(add), "give job.with_args"),
        (lambda add: add.with_args("a").then(), "at least one part"),
        (lambda add: chain(add.with_args("a"), on_parent_failure=add), "use skip, run, fail"),
    ],
)
def test_what_is_no_flow_is_refused(work: Work, wrong: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        wrong(work.add)


def test_a_flow_has_bounds(work: Work) -> None:
    deep = chain(work.add.with_args("a"))
    for _ in range(DEEPEST):
        deep = Chain((deep,))
    with pytest.raises(ValidationError, match="within each other"):
        deep._flow()
    other = Work(App("other")).add
    with pytest.raises(ValidationError, match="several applications"):
        chain(work.add.with_args("a"), other.with_args("b"))._flow()
    long = work.add.with_args("a").then(work.add.with_args("b"))
    for _ in range(2 * DEEPEST):
        long = long.then(work.add.with_args("c"))
    assert len(long._flow()[0]) == 2 * DEEPEST + 2


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("{}", "steps: give a list"),
        ("[]", "steps: give a list"),
        ('[{"job": "add", "afer": [1]}]', r"steps\[0\]: no such member: 'afer'"),
        ('[{"job": "add", "args": {"name": ""}, "steps": [0]}]', r"steps\[0\]: steps: give places"),
        ('[{"job": "add", "args": {"name": ""}, "steps": [-1]}]', r"steps\[0\]: steps: give places"),
        ('[{"job": "add", "args": {"name": ""}, "steps": [0.5]}]', r"steps\[0\]: steps: give places"),
        ('[{"job": "add", "args": {"name": ""}, "steps": ["0"]}]', r"steps\[0\]: steps: give places"),
    ],
)
async def test_sql_that_is_no_flow_is_refused(app: App, work: Work, conn: Connection, steps: str, reason: str) -> None:
    async with app:
        with pytest.raises(asyncpg.PostgresError, match=reason):
            await conn.fetchval("select mainspring.enqueue_flow($1)", steps)


async def test_the_page_about_it_says_what_is(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "flows.md"
    [code] = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("MAINSPRING_DSN", dsn)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(code, str(page), "exec"), names)
    await names["main"]()
