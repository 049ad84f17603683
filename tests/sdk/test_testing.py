"""mainspring.testing and the pytest plugin, as a user's own tests have them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest

import mainspring
from mainspring import App, TaskFailed, ValidationError, WaitTimeout, current_task, testing
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.migrate import fingerprint
from mainspring.store.testing import databases as testing_databases
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("server_dsn")  # which the new databases are made on


@pytest.fixture
def app() -> App:
    return App("tested", poll=0.1, stop_patience=0.2)


async def test_an_application_runs_on_a_database_that_is_gone_afterwards(app: App) -> None:
    @app.job
    async def answer() -> int:
        return 42

    async with testing.running(app) as run:
        assert run.app is app
        dsn = app.database.dsn
        task = await answer.enqueue()
        await run.until_idle()
        assert (await task.status()).state == "succeeded"
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


async def test_advancing_the_clock_makes_a_delayed_task_run(app: App) -> None:
    @app.job
    async def later() -> float:
        return current_task().lateness

    async with testing.running(app) as run:
        before = await run.now()
        task = await later.using(delay="1h").enqueue()
        await run.until_idle()
        assert (await task.status()).state == "pending", "it lies in the future, which is no work"
        after = await run.advance("59m")
        assert timedelta(minutes=59) <= after - before < timedelta(minutes=60)
        await run.until_idle()
        assert (await task.status()).state in ("pending", "assigned")
        await run.advance("1m")
        await run.until_idle()
        assert 0 <= await task.result(timeout=20) < 30


async def test_the_agent_outlives_a_jump_of_the_clock(app: App) -> None:
    @app.job
    async def answer() -> int:
        return 42

    async with testing.running(app, lease=1.0) as run:
        await run.advance("30d")
        session = "select lease_until from mainspring.agent"
        async with app.database.acquire() as conn:
            lease = await conn.fetchval(session)

        async def renewed() -> bool:
            async with app.database.acquire() as conn:
                return bool(await conn.fetchval(session) > lease)

        await eventually(renewed)
        assert await (await answer.enqueue()).result(timeout=20) == 42


async def test_a_month_ahead_there_is_still_a_history_to_write_to(app: App) -> None:
    @app.job(delivery="effectively_once")
    async def pay() -> None:
        async with current_task().transaction() as conn:
            await conn.execute("select 1")

    @app.job(retries=0)
    async def fails() -> None:
        raise RuntimeError

    async with testing.running(app) as run:
        await run.advance("30d")
        await (await pay.enqueue()).result(timeout=20)
        cancelled = await pay.using(delay="1h").enqueue()
        await cancelled.cancel()
        failed = await fails.using(delay="1h").enqueue()
        child = await pay.using(after=failed, delay=0).enqueue()
        await run.advance("1h")
        with pytest.raises(TaskFailed) as skipped:
            await child.result(timeout=20)
        assert skipped.value.state == "skipped"


async def test_retries_and_snoozes_follow_the_clock(app: App) -> None:
    @app.job(retries=1, backoff="fixed", retry_delay="10m")
    async def shaky() -> int:
        if current_task().attempt == 1:
            raise RuntimeError("not yet")
        return current_task().attempt

    async with testing.running(app) as run:
        task = await shaky.enqueue()
        await run.until_idle()
        assert (await task.status()).state == "pending"
        await run.advance("10m")
        assert await task.result(timeout=20) == 2


async def test_until_idle_waits_for_all_that_is_due_and_says_when_it_does_not_end(app: App) -> None:
    done = []
    gate = asyncio.Event()

    @app.job
    async def first() -> None:
        done.append("first")
        await second.enqueue()

    @app.job
    async def second() -> None:
        done.append("second")

    @app.job
    async def endless() -> None:
        await gate.wait()

    async with testing.running(app) as run:
        parent = await first.enqueue()
        await second.using(after=parent).enqueue()
        await run.until_idle()
        assert sorted(done) == ["first", "second", "second"]
        await endless.enqueue()
        with pytest.raises(WaitTimeout, match=r"still due or running after 0\.1 s"):
            await run.until_idle(timeout=0.1)
        gate.set()


async def test_an_application_that_is_open_on_its_own_database_is_left_alone(app: App, dsn: str) -> None:
    await app.open(dsn=dsn)
    try:
        with pytest.raises(ValidationError, match="close it first"):
            async with testing.running(app):
                pass
    finally:
        await app.close()


WITHOUT_A_SERVER = """
import asyncio, sys
import mainspring
from mainspring import testing
from mainspring.store.testing import databases as testing_databases

app = mainspring.App("tested", poll=0.1)

@app.job
async def answer() -> int:
    return 42

async def run():
    async with testing.running(app):
        assert await (await answer.enqueue()).result(timeout=30) == 42
        return app.database.dsn

dsns = [asyncio.run(run()), asyncio.run(run())]
assert dsns[0] != dsns[1]
assert len(testing_databases._kept) == 1, "the second found the server of the first"
print(dsns[0])
"""


def test_without_a_server_of_ones_own_an_embedded_one_serves_all_and_stops_at_the_end(server_directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["MAINSPRING_DATA_DIRECTORY"] = str(server_directory)
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_A_SERVER],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert str(server_directory / "tests") in unquote(ended.stdout), "apart from what people keep"
        assert not (server_directory / "tests" / "data" / "postmaster.pid").exists(), "the last one out stopped it"


async def test_databases_at_the_same_time_are_made_from_one_template(server_dsn: str) -> None:
    """As processes of pytest-xdist do, here with all of their connections."""
    conn = await Database(server_dsn).connect()
    try:
        await conn.execute(f'drop database if exists "mainspring_template_{fingerprint()}" with (force)')
        await conn.execute('create database "mainspring_template_old"')

        async def use(number: int) -> None:
            async with testing.database() as dsn:
                inside = await Database(dsn).connect()
                try:
                    assert await inside.fetchval("select count(*) from mainspring.task") == 0
                    await inside.execute("create table public.mine as select 1")
                finally:
                    await inside.close()

        await asyncio.gather(*map(use, range(3)))
        found = await conn.fetch("select datname from pg_database where datname like 'mainspring\\_te%\\_%'")
        assert [row[0] for row in found if row[0] != "mainspring_template"] == [f"mainspring_template_{fingerprint()}"]
    finally:
        await conn.close()


async def test_what_a_killed_run_left_behind_is_dropped_by_the_next_and_nothing_else(
    server_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = await Database(server_dsn).connect()

    async def databases() -> set[str]:
        return {row[0] for row in await conn.fetch("select datname from pg_database")}

    try:
        await conn.execute('create database "mainspring_test_left"')
        async with testing.database() as used:
            monkeypatch.setattr(testing_databases, "_swept", set())  # as another process would
            async with testing.database():
                assert "mainspring_test_left" not in await databases()
                assert used.partition("?")[0].rpartition("/")[2] in await databases()
    finally:
        await conn.close()


async def test_within_a_test_the_applications_own_running_uses_what_runs(app: App) -> None:
    @app.job
    async def answer() -> int:
        return 42

    async with testing.running(app) as run:
        async with app.running():
            task = await answer.enqueue()
        await run.until_idle()
        assert await task.result(timeout=10) == 42


USERS_TEST = """
import mainspring

app = mainspring.App("shop")


@app.job
async def report(day: str) -> str:
    return f"report of {day}"


async def test_report(mainspring_running):
    async with mainspring_running(app) as run:
        task = await report.enqueue("2026-11-15")
        late = await report.using(delay="1d").enqueue("2026-11-16")
        await run.until_idle()
        assert await task.result(timeout=20) == "report of 2026-11-15"
        await run.advance("1d")
        await run.until_idle()
        assert await late.result(timeout=20) == "report of 2026-11-16"


async def test_again(mainspring_running):
    async with mainspring_running(app):
        assert (await report.enqueue("x")).id == 1, "a database of its own"


def test_nothing():
    import sys
    assert "mainspring" in sys.modules
"""


def test_the_fixture_works_in_a_users_project(tmp_path: Path, server_dsn: str) -> None:
    (tmp_path / "test_shop.py").write_text(USERS_TEST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PYTHONPATH"] = str(Path(mainspring.__file__).parents[1])
    environment["MAINSPRING_TEST_DSN"] = server_dsn
    plugin = [] if _is_installed() else ["-p", "mainspring.sdk.testing.pytest_plugin"]
    settings = ["-W", "error", "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *plugin, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(entry.value == "mainspring.sdk.testing.pytest_plugin" for entry in entry_points(group="pytest11"))
