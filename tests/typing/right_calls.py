"""Calls that a type checker must accept. Checked, never run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypedDict, assert_type

import mainspring
from mainspring import App, Call, Failure, Job, Task

app = App("shop", dsn="postgresql://somewhere/shop", slots=10)


@app.job
async def plain(day: str, *, force: bool = False) -> int:
    return len(day) + force


@app.job(retries=3, timeout="10m", backoff=["1s", 5], retry_on=[OSError, "Busy"], priority="high")
async def with_options(day: str) -> list[str]:
    return [day]


@app.job()
def sync(n: int = 1) -> dict[str, int]:
    mainspring.current_task().progress({"done": n})
    return {"n": n}


class Row(TypedDict):
    id: int


@app.job(chunk=100, chunk_wait="200ms", retries=3)
async def load(rows: list[Row]) -> list[int | Exception]:
    return [row["id"] for row in rows]


@app.job(chunk=100)
def load_sync(numbers: list[int]) -> None:
    mainspring.current_tasks()[0].progress(len(numbers))


common: dict[str, Any] = {"retries": 1}


@app.job(timeout="1m", **common)
async def with_unknown_options(day: str) -> int:
    return len(day)


backup = app.command("backup", ["pg_dump", "shop"], timeout="1h", env={"LANG": "C"})


async def calls() -> None:
    assert_type(await plain.enqueue("x"), Task[int])
    assert_type(await plain.enqueue("x", force=True), Task[int])
    assert_type(await (await plain.enqueue(day="x")).result(timeout=5), int)
    assert_type(await (await with_options.enqueue("x")).result(), list[str])
    assert_type(await (await sync.enqueue()).result(), dict[str, int])
    assert_type(sync.enqueue_sync(3), Task[dict[str, int]])
    later = plain.using(delay="5m", priority=7, key="k", stalls_after="1m", after=[await sync.enqueue()])
    assert_type(await later.enqueue("x", force=False), Task[int])
    assert_type(await plain.using(run_at=datetime.now(UTC)).enqueue_many(["a", ("b",)]), list[Task[int]])
    calls = [plain.call("a"), plain.call("b", force=True)]
    assert_type(await plain.enqueue_many(calls), list[Task[int]])
    assert_type(await plain.enqueue_many([("a",), {"day": "b", "force": True}, "c"]), list[Task[int]])
    assert_type(await with_options.enqueue_many(str(day) for day in range(3)), list[Task[list[str]]])
    assert_type(await sync.enqueue_many([(), (1,), {"n": 2}, 3]), list[Task[dict[str, int]]])
    assert_type(sync.enqueue_many_sync([sync.call(), sync.call(n=3)]), list[Task[dict[str, int]]])
    assert_type((await plain.enqueue("x")).result_sync(timeout=5), int)
    assert_type(plain.task(5), Task[int])
    assert_type(await app.task(5).result(), Any)
    assert_type(await load.enqueue({"id": 1}), Task[int])
    assert_type(await load.using(delay=5).enqueue_many([{"id": 1}]), list[Task[int]])
    assert_type(await load_sync.enqueue(5), Task[None])
    await load([{"id": 1}])
    load_sync.function([1, 2])
    assert_type(await with_unknown_options.enqueue("x"), Task[int])
    for level in ("low", "critical", 3):
        await plain.using(priority=level).enqueue("x")
    await backup.enqueue(anything=1)
    await backup.enqueue_many([{"shop": 1}, backup.call(shop=2)])
    async with app.running(slots=5) as running:
        assert_type(running, App)


@app.on_failure
def to_sentry(failure: Failure) -> None:
    print(failure.job, failure.task_id, failure.exception)


@app.on_failure
async def to_pager(failure: Failure) -> None: ...


assert_type(to_sentry(Failure("job", 1, 1, 1, "timeout", "", None, {}, True)), None)
one: Call[[str, int]] = Call("x", 5)


def takes(job: Job[[int], dict[str, int]], task: Task[object]) -> None: ...
