"""Backups beside all that runs, and what becomes of tasks that were running at the time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import psycopg
import pytest

from mainspring import App, TaskFailed
from mainspring.store.maintenance.backup import back_up, programs_of
from mainspring.store.maintenance.restore import restore
from mainspring.store.postgres.database import Database
from tests.conftest import Eventually
from tests.journey.processes import mainspring, running, until


def _nothing(size: int) -> None:
    """Progress that nobody looks at."""


def shop(dsn: str, until_free: asyncio.Event, started: list[str]) -> App:
    app = App("shop", dsn=dsn, lease=1, poll=0.1, stop_patience=0.1)

    @app.job(retries=3)
    async def again() -> str:
        started.append("again")
        await until_free.wait()
        return "done"

    @app.job(delivery="at_most_once")
    async def once() -> str:
        started.append("once")
        await until_free.wait()
        return "done"

    return app


@pytest.mark.usefixtures("no_servers")
async def test_what_ran_at_the_time_of_the_backup_runs_again_or_is_lost(
    dsn: str, empty_dsn: str, tmp_path: Path, eventually: Eventually
) -> None:
    started: list[str] = []
    app = shop(dsn, asyncio.Event(), started)

    async with app.running():
        tasks = [await app[name].enqueue() for name in ("again", "once")]

        async def both_run() -> bool:
            return {(await task.status()).state for task in tasks} == {"running"}

        await eventually(both_run)
        programs = await programs_of(app.database, embedded=False)
        await back_up(app.database, programs, tmp_path / "backup", _nothing)

    copy, free = Database(empty_dsn), asyncio.Event()
    free.set()
    await restore(copy, programs, tmp_path / "backup", _nothing)
    await copy.close()
    started.clear()
    other = shop(empty_dsn, free, started)
    async with other.running():
        assert await other.wait_for(tasks[0].id, 30) == "done"
        with pytest.raises(TaskFailed, match="lost"):
            await other.wait_for(tasks[1].id, 30)
    assert started == ["again"]


def test_a_backup_beside_up_and_a_restore_that_waits_until_it_has_gone(server_directory: Path, tmp_path: Path) -> None:
    here, file = str(server_directory / "here"), str(tmp_path / "backup")
    with running("up", "--json", "--data", here) as up:
        up.ready()
        assert mainspring("job", "create", "hello", "--data", here, "--", "echo", "hello").returncode == 0
        made = mainspring("schedule", "create", "hourly", "hello", "--every", "1h", "--data", here)
        assert made.returncode == 0, made.stderr
        assert mainspring("task", "submit", "hello", "--wait", "--data", here).returncode == 0
        saved = mainspring("backup", file, "--data", here, "--json")
        assert saved.returncode == 0, saved.stderr
        assert json.loads(saved.stdout)["bytes"] == Path(file).stat().st_size
        refused = mainspring("restore", file, "--force", "--data", here)
        assert refused.returncode == 4
        assert "in use by server" in refused.stderr
        assert mainspring("task", "submit", "hello", "--wait", "--data", here).returncode == 0
        up.signal(signal.SIGTERM)
        assert up.end() == 0
    with running("db", "--json", "--data", here) as db:
        told = db.ready()
        restored = mainspring("restore", file, "--force", "--data", here, "--json")
        assert restored.returncode == 0, restored.stderr
        assert json.loads(restored.stdout) == {"file": file, "jobs": 1, "tasks": 0}
        with psycopg.connect(told["dsn"]) as conn:
            assert conn.execute("select id, state from mainspring.task_history").fetchall() == [(1, 10)]
            assert conn.execute("select name from mainspring.schedule").fetchall() == [("hourly",)]


def test_the_embedded_postgresql_runs_alone_until_it_is_stopped(server_directory: Path) -> None:
    with running("db", "--json", "--data", str(server_directory / "alone")) as db:
        told = db.ready()
        assert told["data"] == str(server_directory / "alone")
        with psycopg.connect(told["dsn"]) as conn:
            conn.execute("create table kept (x int)")
        pid_file = server_directory / "alone/data/postmaster.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        until(lambda: _answers(told["dsn"]))  # who uses it starts it again
        with psycopg.connect(told["dsn"]) as conn:
            conn.execute("select * from kept")
        db.signal(signal.SIGTERM)
        assert db.end() == 0
    assert not pid_file.exists()


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def test_db_is_about_the_embedded_one_only(dsn: str) -> None:
    refused = mainspring("db", "--dsn", dsn)
    assert refused.returncode == 2
    assert "db runs the embedded PostgreSQL" in refused.stderr
