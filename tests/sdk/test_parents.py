"""What a task knows of the tasks that it ran after: in a handler, in a command, in an HTTP call."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from mainspring import App, Fail, ValidationError, current_task
from mainspring.model.flows.parents import MOST_TOLD, Parent
from mainspring.store.postgres.database import Connection


@dataclass
class Loaded:
    rows: int


class Work:
    def __init__(self, app: App) -> None:
        self.seen: list[Parent] = []

        @app.job(retries=0)
        async def load(rows: int) -> Loaded:
            if rows < 0:
                raise Fail("no rows")
            return Loaded(rows)

        @app.job(retries=0)
        async def text(length: int) -> str:
            return "x" * length

        @app.job(retries=0)
        async def add_up() -> int:
            self.seen = current_task().parents
            return sum(parent.result.rows for parent in self.seen if parent.succeeded)

        @app.job(retries=0)
        async def look() -> None:
            self.seen = current_task().parents

        self.load, self.text, self.add_up, self.look = load, text, add_up, look


@pytest.fixture
def work(app: App) -> Work:
    return Work(app)


async def test_a_child_gets_the_results_of_its_parents_as_their_handlers_are_annotated(app: App, work: Work) -> None:
    async with app.running():
        parents = [await work.load.enqueue(rows) for rows in (1, 20, 300)]
        assert await (await work.add_up.using(after=parents).enqueue()).result(timeout=20) == 321
    assert [(p.id, p.job, p.state, p.error_code) for p in work.seen] == [
        (task.id, "load", "succeeded", None) for task in parents
    ]
    assert work.seen[0].result == Loaded(1)
    assert work.seen[0].result_as(dict[str, int]) == {"rows": 1}
    with pytest.raises(msgspec.ValidationError):
        work.seen[0].result_as(str)


async def test_a_child_that_runs_anyway_sees_which_parent_failed(app: App, work: Work) -> None:
    async with app.running():
        parents = [await work.load.enqueue(5), await work.load.enqueue(-1)]
        child = await work.add_up.using(after=parents, on_parent_failure="run").enqueue()
        assert await child.result(timeout=20) == 5
    assert [(p.state, p.error_code, p.result) for p in work.seen] == [
        ("succeeded", None, Loaded(5)),
        ("failed", "failed_for_good", None),
    ]


async def test_parents_that_ended_before_the_child_was_submitted_are_told_too(app: App, work: Work) -> None:
    async with app.running():
        parent = await work.load.enqueue(7)
        await parent.result(timeout=20)
        assert await (await work.add_up.using(after=parent).enqueue()).result(timeout=20) == 7


async def test_a_task_without_parents_has_none(app: App, work: Work) -> None:
    async with app.running():
        await (await work.look.enqueue()).result(timeout=20)
    assert work.seen == []


async def test_results_that_are_too_large_together_are_to_be_asked_for(app: App, work: Work) -> None:
    async with app.running():
        parents = [await work.text.enqueue(MOST_TOLD // 2) for _ in range(3)]
        await (await work.look.using(after=parents).enqueue()).result(timeout=20)
        assert [p.state for p in work.seen] == ["succeeded"] * 3
        with pytest.raises(ValidationError, match=rf"app\.task\({parents[0].id}\)\.result\(\)"):
            _ = work.seen[0].result
        assert len(await app.task(work.seen[0].id).result()) == MOST_TOLD // 2


async def test_a_parent_that_retention_has_dropped_is_unknown(app: App, work: Work, conn: Connection) -> None:
    async with app.running():
        parent = await work.load.enqueue(7)
        await parent.result(timeout=20)
        child = await work.look.using(after=parent, delay="300ms").enqueue()
        await conn.execute("delete from mainspring.task_history where id = $1", parent.id)
        await child.result(timeout=20)
    assert [(p.id, p.job, p.state, p.result) for p in work.seen] in (
        [(parent.id, None, "unknown", None)],
        [(parent.id, "load", "succeeded", Loaded(7))],  # it was armed ahead of its time, before that
    )


async def test_a_command_finds_them_in_its_environment(app: App, work: Work) -> None:
    script = "import os; print(os.environ['MAINSPRING_PARENTS'])"
    command = app.command("show", [sys.executable, "-c", script])
    async with app.running():
        parents = [await work.load.enqueue(3), await work.load.enqueue(-3)]
        child = await command.using(after=parents, on_parent_failure="run").enqueue()
        await child.result(timeout=20)
        output = await child_output(app, child.id)
    assert json.loads(output) == [
        {"id": parents[0].id, "job": "load", "state": "succeeded", "error_code": None, "result": {"rows": 3}},
        {"id": parents[1].id, "job": "load", "state": "failed", "error_code": "failed_for_good", "result": None},
    ]


async def child_output(app: App, task: int) -> str:
    async with app.database.acquire() as conn:
        rows: Any = await conn.fetch(
            "select data from mainspring.output where task_id = $1 and stream = 1 order by token, number", task
        )
    return b"".join(row["data"] for row in rows).decode()
