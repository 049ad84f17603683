"""Daemons of an application: kept running, asked how they are, restarted one after another, stopped when told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import App, ValidationError, current_task
from mainspring.model.schedules.schedules import Policies
from mainspring.model.tasks.jobs import Command
from mainspring.store.daemons import daemon_views, daemons
from mainspring.store.daemons.daemon_views import Daemon
from mainspring.store.schedules import schedules
from mainspring.store.tasks import jobs, tasks
from tests.conftest import eventually

NAME = "stand"


async def view(app: App, name: str = NAME) -> Daemon:
    async with app.database.acquire() as conn:
        [found] = await daemon_views.listing(conn, name)
        return found


async def until_up(app: App, replicas: int, name: str = NAME) -> Daemon:
    async def up() -> Daemon | None:
        found = await view(app, name)
        return found if (found.up, len(found.replicas)) == (replicas, replicas) else None

    found: Daemon = await eventually(up, timeout=30)
    return found


async def change(app: App, **fields: Any) -> None:
    enabled = fields.pop("enabled", None)
    async with app.database.acquire() as conn:
        await schedules.change(conn, NAME, lambda schedule: replace(schedule, **fields), enabled=enabled)


def test_what_a_daemon_may_say(app: App) -> None:
    app.command("one", ["true"], daemon=True, health={"command": ["true"]}, restart_delay="5s")
    app.command("three", ["true"], replicas=3, stable="10m")
    one, three = app.schedules.all["one"], app.schedules.all["three"]
    assert (one.kind, one.expression, one.policies) == ("daemon", "1", Policies(restart_delay=5.0))
    assert (three.kind, three.expression, three.policies) == ("daemon", "3", Policies(stable=600.0))
    for options, field in [
        ({"daemon": True, "overlap": "skip"}, "overlap"),
        ({"every": "1m", "stable": "1m"}, "stable"),
        ({"daemon": 2, "replicas": 3}, "replicas"),
        ({"replicas": 0}, "replicas"),
        ({"daemon": True, "restart_delay": 0}, "restart_delay"),
        ({"replicas": 2, "every": "1m"}, "every"),
    ]:
        with pytest.raises(ValidationError) as refused:
            app.command("bad", ["true"], **options)  # type: ignore[arg-type]
        assert refused.value.field == field


async def test_handlers_stay_up_know_their_number_and_move_on_when_the_worker_stops(app: App) -> None:
    seen: set[str | None] = set()

    @app.job(replicas=3)
    async def stand() -> None:
        seen.add(current_task().scope)
        await asyncio.Event().wait()

    async with app:
        async with app.running(stop_patience=300.0):
            await until_up(app, 3)
            assert seen == {"1", "2", "3"}
        found = await view(app)
        assert [replica.state for replica in found.replicas] == ["waiting"] * 3, "they were not waited for"
        async with app.database.acquire() as conn:
            [attempt] = await tasks.attempts(conn, found.replicas[0].task)
            assert attempt.error_code == "shutdown"
        async with app.running():
            assert {replica.task for replica in (await until_up(app, 3)).replicas} == {
                replica.task for replica in found.replicas
            }


async def test_scaling_touches_only_what_comes_and_goes(app: App) -> None:
    @app.job(replicas=2)
    async def stand() -> None:
        await asyncio.Event().wait()

    async with app.running():
        before = {replica.number: replica.task for replica in (await until_up(app, 2)).replicas}
        await change(app, expression="4")
        assert {1, 2, 3, 4} == {replica.number for replica in (await until_up(app, 4)).replicas}
        await change(app, expression="1")
        [left] = (await until_up(app, 1)).replicas
        assert (left.number, left.task, left.restarts) == (1, before[1], 0)


async def test_a_stopped_daemon_ends_as_cancelled_within_its_grace_and_begins_anew(app: App) -> None:
    app.command(NAME, "trap '' TERM; while true; do sleep 0.05; done", shell=True, daemon=True, grace="200ms")
    async with app.running():
        [before] = (await until_up(app, 1)).replicas
        await change(app, enabled=False)

        async def gone() -> bool:
            return not (await view(app)).replicas

        await eventually(gone)
        assert (await app.status(before.task)).state == "cancelled"
        await change(app, enabled=True)
        [after] = (await until_up(app, 1)).replicas
        assert after.task != before.task


async def test_one_that_fails_at_once_backs_off(app: App, tmp_path: Path) -> None:
    app.command(NAME, f"echo x >> {tmp_path}/lives; exit 3", shell=True, daemon=True, restart_delay="100ms")
    async with app.running():

        async def backs_off() -> bool:
            async with app.database.acquire() as conn:
                return bool(await conn.fetchval("select run_at - mainspring.now() > '1 second' from mainspring.task"))

        await eventually(backs_off, timeout=30)
        [replica] = (await view(app)).replicas
        assert replica.state == "waiting"
        assert replica.restarts == len((tmp_path / "lives").read_text().split()) >= 4
        async with app.database.acquire() as conn:
            assert {one.error_code for one in await tasks.attempts(conn, replica.task)} == {"exit_code"}


async def test_one_that_is_not_well_is_restarted_and_what_it_says_is_shown(app: App, tmp_path: Path) -> None:
    well = tmp_path / "well"
    well.touch()
    health = {"command": ["test", "-e", str(well)], "every": "100ms", "failures": 2}
    app.command(NAME, ["sleep", "1000"], daemon=True, health=health, restart_delay="100ms")
    async with app.running():

        async def healthy() -> bool:
            return [replica.healthy for replica in (await view(app)).replicas] == [True]

        await eventually(healthy)
        assert (await view(app)).replicas[0].restarts == 0
        well.unlink()

        async def restarted() -> bool:
            return (await view(app)).replicas[0].restarts > 0

        await eventually(restarted)
        [replica] = (await view(app)).replicas
        async with app.database.acquire() as conn:
            [first, *_] = await tasks.attempts(conn, replica.task)
            printed = b"".join(piece.data for piece in await tasks.output(conn, replica.task))
        assert (first.error_code, first.error) == ("unhealthy", "its health check failed 2 times in a row")
        assert b"health check failed (2 of 2): exit code 1" in printed
        well.touch()
        await eventually(healthy)


async def test_a_new_definition_reaches_one_replica_after_another(app: App, tmp_path: Path) -> None:
    script = f"echo $MAINSPRING_SCOPE $1 >> {tmp_path}/lives; exec sleep 1000"
    app.command(NAME, [script, "old"], shell=True, replicas=3, ready="200ms")
    async with app.running():
        await until_up(app, 3)
        async with app.database.acquire() as conn:
            definition = (await jobs.find(conn, NAME)).definition
            assert isinstance(definition.run, Command)
            await jobs.register(conn, {NAME: replace(definition, run=replace(definition.run, argv=(script, "new")))})

        async def renewed() -> bool:
            found = await view(app)
            return found.up == 3 and all(one.restarts == 1 and not one.outdated for one in found.replicas)

        await eventually(renewed, timeout=30)
        assert (tmp_path / "lives").read_text().splitlines()[3:] == ["1 new", "2 new", "3 new"]


async def test_a_restart_that_is_asked_for_costs_nothing(app: App) -> None:
    @app.job(daemon=True)
    async def stand() -> None:
        await asyncio.Event().wait()

    async with app.running():
        [before] = (await until_up(app, 1)).replicas
        async with app.database.acquire() as conn:
            await daemons.renew(conn, (await schedules.find(conn, NAME)).id)

        async def restarted() -> bool:
            [after] = (await view(app)).replicas
            return (after.task, after.state, after.restarts) == (before.task, "running", 1)

        await eventually(restarted)
        async with app.database.acquire() as conn:
            assert [one.error_code for one in await tasks.attempts(conn, before.task)] == ["restarted", None]
            assert await conn.fetchval("select failures from mainspring.task") is None


async def test_a_transaction_that_would_complete_a_daemon_is_refused(app: App) -> None:
    said: list[str] = []

    @app.job(daemon=True)
    async def stand() -> None:
        try:
            current_task().transaction()
        except ValidationError as error:
            said.append(str(error))
        await asyncio.Event().wait()

    async with app.running():
        await until_up(app, 1)
        assert "a daemon's never is" in said[0]
