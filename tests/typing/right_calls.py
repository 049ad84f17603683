"""Calls that a type checker must accept. Checked, never run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_type

import mainspring
from mainspring import App, Job, Task

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


backup = app.command("backup", ["pg_dump", "shop"], timeout="1h", env={"LANG": "C"})


async def calls() -> None:
    assert_type(await plain.enqueue("x"), Task[int])
    assert_type(await plain.enqueue("x", force=True), Task[int])
    assert_type(await (await plain.enqueue(day="x")).result(timeout=5), int)
    assert_type(await (await with_options.enqueue("x")).result(), list[str])
    assert_type(await (await sync.enqueue()).result(), dict[str, int])
    assert_type(sync.enqueue_sync(3), Task[dict[str, int]])
    later = plain.using(delay="5m", priority=7, key="k", after=[await sync.enqueue()])
    assert_type(await later.enqueue("x", force=False), Task[int])
    assert_type(await plain.using(run_at=datetime.now(UTC)).enqueue_many(["a", ("b",)]), list[Task[int]])
    await backup.enqueue(anything=1)
    async with app.running(slots=5) as running:
        assert_type(running, App)


def takes(job: Job[[int], dict[str, int]], task: Task[object]) -> None: ...
