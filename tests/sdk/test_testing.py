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
from mainspring.store import embedded
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
        assert 0 <= await task.result(timeout=5) < 30


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
        assert await (await answer.enqueue()).result(timeout=5) == 42


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
        await (await pay.enqueue()).result(timeout=5)
        cancelled = await pay.using(delay="1h").enqueue()
        await cancelled.cancel()
        failed = await fails.using(delay="1h").enqueue()
        child = await pay.using(after=failed, delay=0).enqueue()
        await run.advance("1h")
        with pytest.raises(TaskFailed) as skipped:
            await child.result(timeout=5)
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
        assert await task.result(timeout=5) == 2


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


async def test_without_a_server_of_ones_own_the_embedded_one_serves(
    app: App, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    monkeypatch.delenv("MAINSPRING_TEST_DSN")
    monkeypatch.setattr(embedded, "default_directory", lambda: server_directory)

    @app.job
    async def answer() -> int:
        return 42

    async with testing.running(app):
        assert str(server_directory) in unquote(app.database.dsn)
        assert await (await answer.enqueue()).result(timeout=5) == 42
    assert not (server_directory / "data" / "postmaster.pid").exists(), "the last one out stopped it"


async def test_an_application_runs_once_at_a_time(app: App) -> None:
    async with testing.running(app):
        with pytest.raises(ValidationError, match="running already"):
            async with app.running():
                pass


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
        assert await task.result(timeout=5) == "report of 2026-11-15"
        await run.advance("1d")
        await run.until_idle()
        assert await late.result(timeout=5) == "report of 2026-11-16"


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
    plugin = [] if _is_installed() else ["-p", "mainspring.sdk.pytest_plugin"]
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

    return any(entry.value == "mainspring.sdk.pytest_plugin" for entry in entry_points(group="pytest11"))
