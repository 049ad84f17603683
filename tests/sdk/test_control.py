"""Killing and restarting tasks, and running one on every agent, as an application asks for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from mainspring import App, InvalidTransition, Task, TaskFailed, ValidationError, current_task
from tests.conftest import eventually


async def in_state(task: Task[Any], state: str) -> None:
    async def there() -> bool:
        return (await task.status()).state == state

    await eventually(there)


async def test_a_handler_knows_its_schedule_its_priority_and_its_agent(app: App, tmp_path: Path) -> None:
    seen: list[tuple[str | None, int, str]] = []

    @app.job(priority="low")
    async def look() -> None:
        task = current_task()
        seen.append((task.schedule, task.priority, task.agent))

    command = app.command(
        "print", f"echo $MAINSPRING_SCHEDULE > {tmp_path}/seen; mv {tmp_path}/seen {tmp_path}/told", shell=True
    )

    async def all_ran() -> bool:
        return len(seen) == 4 and (tmp_path / "told").exists()

    look.schedule("often", every="200ms", max_runs=1)
    command.schedule("print often", every="200ms", max_runs=1)
    async with app.running():
        for submitter in (look, look.using(priority="critical"), look.using(delay="10ms")):
            await (await submitter.enqueue()).result(timeout=10)
        await eventually(all_ran)
    assert sorted(seen, key=str) == [
        ("often", 2, "tester"),
        (None, 2, "tester"),
        (None, 2, "tester"),
        (None, 9, "tester"),
    ]
    assert (tmp_path / "told").read_text() == "print often\n"


def stubborn(app: App, ready: Path) -> Any:
    """A command that notes each TERM and goes on, with a grace that no test waits for."""
    script = f"trap 'echo TERM >> {ready}' TERM; echo ready >> {ready}; while :; do sleep 600; done"
    return app.command("stubborn", script, shell=True, grace="10m")


async def ready(path: Path, lines: int = 1) -> None:
    async def there() -> bool:
        return path.exists() and len(path.read_text().split()) >= lines

    await eventually(there)


@pytest.mark.parametrize("cancel_first", [False, True])
async def test_a_killed_command_gets_no_grace_even_if_it_was_cancelled_before(
    app: App, tmp_path: Path, cancel_first: bool
) -> None:
    job = stubborn(app, tmp_path / "ready")
    async with app.running():
        task = await job.enqueue()
        await ready(tmp_path / "ready")
        await in_state(task, "running")
        if cancel_first:
            await task.cancel()
            await ready(tmp_path / "ready", lines=2)  # it has its TERM, and ten minutes
        await task.cancel(kill=True)
        with pytest.raises(TaskFailed, match="cancelled while it ran"):
            await task.result(timeout=20)


async def test_a_restarted_handler_runs_again_at_once_as_the_same_attempt(app: App) -> None:
    began: list[int] = []
    gate = asyncio.Event()

    @app.job(retries=0)
    async def waits() -> int:
        began.append(current_task().attempt)
        await gate.wait()
        return current_task().attempt

    async with app.running():
        task = await waits.enqueue()
        await in_state(task, "running")
        await task.restart()

        async def twice() -> bool:
            return len(began) == 2

        await eventually(twice)
        gate.set()
        assert await task.result(timeout=10) == 1
    assert began == [1, 1]


async def test_a_handler_cannot_be_paused(app: App) -> None:
    @app.job
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app.running():
        task = await endless.enqueue()
        await in_state(task, "running")
        with pytest.raises(InvalidTransition, match="only commands can be paused"):
            await task.pause()
        with pytest.raises(InvalidTransition, match="not paused"):
            await task.resume()
        await task.cancel()
        with pytest.raises(TaskFailed):
            await task.result(timeout=10)


async def test_a_broadcast_runs_once_on_every_agent_and_tells_the_spread(app: App, dsn: str) -> None:
    ran: list[str] = []

    def define(app: App, where: str) -> Any:
        @app.job(broadcast=True, name="sweep")
        async def sweep(day: str) -> None:
            ran.append(f"{where} {day}")

        return sweep

    other = App("test", dsn=dsn, poll=0.1, stop_patience=0.2, agent_name="other")
    job = define(app, "here")
    define(other, "there")
    async with app.running(), other.running():
        task = await job.enqueue("mon")
        result = cast(dict[str, Any], await task.result(timeout=20))
    assert sorted(ran) == ["here mon", "there mon"]
    assert (result["agents"], result["succeeded"], result["failed"]) == (2, 2, [])
    assert result["spread_ms"] >= 0


def test_broadcast_is_yes_or_no(app: App) -> None:
    with pytest.raises(ValidationError, match="give True or False"):
        app.command("sweep", ["true"], broadcast=cast(bool, "everywhere"))
