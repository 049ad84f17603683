"""Commands from end to end: what a job asks for reaches its process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mainspring import App, TaskFailed, WaitTimeout
from mainspring.store.tasks import tasks


async def test_a_warm_script_runs_at_its_instant_with_its_arguments(dsn: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    told = tmp_path / "told"
    script.write_text(
        "import os, sys, time\n"
        f"with open({str(told)!r}, 'w') as file:\n"
        "    print(sys.argv[1:], os.environ['MAINSPRING_ARGS'], 'json' in sys.modules, time.time(), sep='|',\n"
        "        file=file)\n"
    )
    app = App(dsn=dsn)
    job = app.command("quotes", [str(script), "--all"], python=True, warm=["json"])
    async with app.running():
        task = await job.using(delay=1.5).enqueue(day="mon")
        assert await task.result(timeout=30) == {"exit_code": 0}
        view = await app.status(task.id)
    argv, args, warm, at = told.read_text().split("|")
    assert (argv, args, warm) == ("['--all']", '{"day": "mon"}', "True")
    assert float(at) >= view.run_at.timestamp()


async def test_a_warm_script_that_is_cancelled_before_its_instant_never_runs(dsn: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    app = App(dsn=dsn)
    job = app.command("quotes", [str(script)], python=True)
    async with app.running():
        task = await job.using(delay=1.0).enqueue()
        with pytest.raises(WaitTimeout):
            await task.result(timeout=0.3)  # by now it is armed, and its interpreter started
        await task.cancel()
        with pytest.raises(TaskFailed, match="cancelled"):
            await task.result(timeout=30)
    assert not (tmp_path / "ran").exists()


async def test_a_failed_command_has_its_exit_code_as_a_number(dsn: str) -> None:
    app = App(dsn=dsn)
    jobs = {
        app.command("three", "exit 3", shell=True, retries=1, retry_delay="10ms"): 3,
        app.command("killed", "kill -9 $$", shell=True): -9,
    }
    async with app.running():
        for job, exit_code in jobs.items():
            task = await job.enqueue()
            with pytest.raises(TaskFailed):
                await task.result(timeout=30)
            assert (await task.status()).exit_code == exit_code
            async with app.database.acquire() as conn:
                assert {attempt.exit_code for attempt in await tasks.attempts(conn, task.id)} == {exit_code}


async def test_limits_and_lists_of_the_settings_hold(dsn: str) -> None:
    app = App(dsn=dsn, run_as="alice", allow_commands=f"{sys.executable},true")
    hungry = app.command(
        "hungry", [sys.executable, "-c", "x = bytearray(1 << 30)"], retries=0, limits={"memory": "128MB"}
    )
    other = app.command("other", ["ls"])
    stranger = app.command("stranger", ["true"], user="bob")
    async with app.running():
        for job, code in ((hungry, "memory_limit"), (other, "command_refused"), (stranger, "user_refused")):
            task = await job.enqueue()
            with pytest.raises(TaskFailed) as failed:
                await task.result(timeout=30)
            assert failed.value.error_code == code
