"""Prewarm: an interpreter started before its instant behaves in every way like one started at it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.commands import Make, Recording, eventually

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.agent.executors import prewarm
from mainspring.agent.executors.command import CommandExecutor
from mainspring.model.tasks.jobs import ProcessLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

LEAD = 0.4  # more than is too soon, less than the interpreter needs to be started ahead: it starts at once

TELL = """
import __main__, json, os, sys
told = {
    "argv": sys.argv, "path": sys.path, "orig_argv": sys.orig_argv, "name": __name__, "file": globals().get("__file__"),
    "spec": __spec__ and __spec__.name, "globals": sorted(globals()), "main": __main__.__dict__ is globals(),
    "cwd": os.getcwd(), "flags": str(sys.flags), "env": dict(os.environ),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "command": open("/proc/self/cmdline").read(), "stdin": sys.stdin.read(),
    "modules": sorted(sys.modules),
}
print(json.dumps(told, indent=1))
"""


async def waiting(executor: CommandExecutor, attempt: Attempt, recording: Recording) -> None:
    """Prepare the attempt, and wait until its interpreter waits on its start pipe."""
    attempt.lead = LEAD
    executor.prepare(attempt)
    await eventually(lambda: any(waits_to_start(pid) for pid in recording.processes()))


def waits_to_start(pid: int) -> bool:
    try:
        return "pipe" in Path(f"/proc/{pid}/wchan").read_text() or syscall(pid) == 0
    except OSError:
        return False


def syscall(pid: int) -> int | None:
    first = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    return int(first) if first.isdigit() else None


async def outcome(executor: CommandExecutor, attempt: Attempt) -> str | None:
    try:
        return await executor.run(attempt)
    except AttemptFailed as error:
        return f"{error.code}: {error.message}"


async def cold_and_warm(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, *argv: str, **spec: Any
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for warm in (False, True):
        attempt = attempt_of(*argv, python=True, **spec)
        if warm:
            await waiting(executor, attempt, recording)
        end = await outcome(executor, attempt)
        found.append((end, recording.bytes(1).splitlines(), recording.bytes(2)))
        recording.chunks.clear()
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "place" / "script.py"
    path.parent.mkdir()
    path.write_text(TELL)
    return path


# ── a script cannot tell ────────────────────────────────────────────────────────────────────────


async def test_a_warm_script_sees_just_what_a_cold_one_does(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path
) -> None:
    spec = {"stdin": "words", "env": {"GREETING": "hello"}, "args": '{"day": 1}'}
    cold, warm = await cold_and_warm(executor, attempt_of, recording, str(script), "a b", "-c", **spec)
    assert cold[0] == '{"exit_code":0}'
    assert warm == cold


@pytest.mark.parametrize("env", [{"PYTHONPATH": "/some/where:/else"}, {"PYTHONSAFEPATH": "1"}, {"PYTHONUTF8": "1"}])
async def test_python_s_own_variables_work_as_ever(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, env: dict[str, str]
) -> None:
    cold, warm = await cold_and_warm(executor, attempt_of, recording, str(script), env=env)
    assert cold[0] == '{"exit_code":0}'
    assert warm == cold


@pytest.mark.parametrize("argv", [("script.py",), ("-m", "script", "x"), ("place",), ("link.py",)])
async def test_relative_paths_modules_directories_and_links_run_as_ever(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, argv: tuple[str, ...]
) -> None:
    (script.parent / "place").mkdir()
    (script.parent / "place" / "__main__.py").write_text(TELL)
    (script.parent / "elsewhere").mkdir()
    (script.parent / "elsewhere" / "link.py").write_text(TELL)
    (script.parent / "link.py").symlink_to("elsewhere/link.py")
    cold, warm = await cold_and_warm(executor, attempt_of, recording, *argv, cwd=str(script.parent))
    assert cold[0] == '{"exit_code":0}'
    assert warm == cold


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('why')",
        "this is no Python",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "import sys; sys.excepthook = lambda *error: print('hook', error[0])\n1 / 0",
        "import atexit; atexit.register(print, 'at exit')",
        "import multiprocessing as m\ndef f(): print('child')\n"
        "if __name__ == '__main__':\n p = m.get_context('spawn').Process(target=f); p.start(); p.join()",
    ],
)
async def test_a_warm_script_ends_as_a_cold_one_does(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, text: str
) -> None:
    script.write_text(text)
    cold, warm = await cold_and_warm(executor, attempt_of, recording, str(script))
    assert warm == cold


async def test_a_script_that_is_not_there_fails_as_ever(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    cold, warm = await cold_and_warm(executor, attempt_of, recording, "/no/such/script.py")
    assert "No such file" in str(cold[0])
    assert warm == cold


async def test_a_sitecustomize_of_the_job_s_own_still_runs(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customised')")
    cold, warm = await cold_and_warm(executor, attempt_of, recording, str(script), env={"PYTHONPATH": str(tmp_path)})
    assert cold[1][0] == b"customised"
    assert warm == cold


# ── before the instant ──────────────────────────────────────────────────────────────────────────


async def test_nothing_of_the_script_runs_before_the_instant(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, tmp_path: Path
) -> None:
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    attempt = attempt_of(str(script), python=True)
    await waiting(executor, attempt, recording)
    (pid,) = recording.processes()
    assert not (tmp_path / "ran").exists()
    script.write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'w').write(str(os.getpid()))")
    await executor.run(attempt)
    assert (tmp_path / "ran").read_text() == str(pid)  # the one that waited, with the script as it is now


async def test_modules_are_imported_ahead_also_those_beside_the_script(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path
) -> None:
    (script.parent / "beside.py").write_text("import os; os.write(1, b'x' * 65536)")  # what a pipe holds
    script.write_text("import sys; print('beside' in sys.modules, 'no_such_module' in sys.modules)")
    attempt = attempt_of(str(script), python=True, warm=("no_such_module", "beside"))
    await waiting(executor, attempt, recording)
    assert await executor.run(attempt_of("true"))  # whatever can be read by now is read
    assert recording.chunks == []  # a run that has not begun reports nothing
    await executor.run(attempt)
    assert recording.bytes(1) == b"x" * 65536 + b"True False\n"


@pytest.mark.parametrize("text", ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
async def test_a_module_that_ends_the_interpreter_costs_only_the_head_start(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, text: str
) -> None:
    (script.parent / "deadly.py").write_text(text)
    script.write_text("print('ran')")
    attempt = attempt_of(str(script), python=True, warm=("deadly",))
    attempt.lead = LEAD
    executor.prepare(attempt)
    await eventually(lambda: attempt.prepared._task is not None)  # not until it is seen: it may be gone by then
    child = await attempt.prepared._task
    await eventually(child.exit.done)
    assert await executor.run(attempt)
    assert recording.bytes(1) == b"ran\n"


async def test_one_that_is_called_off_ends_without_a_trace(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, tmp_path: Path
) -> None:
    (script.parent / "beside.py").write_text("print('imported', flush=True)")
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    attempt = attempt_of(str(script), python=True, warm=("beside",))
    before = len(os.listdir("/dev/fd"))
    await waiting(executor, attempt, recording)
    executor.forget(attempt)
    executor.forget(attempt)
    await eventually(lambda: not recording.processes())
    await eventually(lambda: len(os.listdir("/dev/fd")) <= before + 1)  # the guardian's
    assert recording.chunks == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("turns", range(6))
async def test_one_that_is_called_off_while_it_starts_leaves_nothing(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, turns: int
) -> None:
    attempt = attempt_of(str(script), python=True)
    attempt.lead = LEAD
    executor.prepare(attempt)
    for _ in range(turns):
        await asyncio.sleep(0)
    executor.forget(attempt)
    assert await executor.run(attempt_of("true"))  # what was said before is done by now
    await eventually(lambda: not recording.processes())


async def test_cancelling_at_the_instant_leaves_nothing(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path
) -> None:
    script.write_text("import time; time.sleep(60)")
    for turns in range(4):
        attempt = attempt_of(str(script), python=True)
        await waiting(executor, attempt, recording)
        running = asyncio.create_task(executor.run(attempt))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        executor.forget(attempt)  # as the runner does
        await eventually(lambda: not recording.processes())


async def test_no_more_wait_than_the_machine_can_bear_and_the_others_run_all_the_same(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prewarm, "MOST", 2)
    script.write_text("print('ran')")
    attempts = [attempt_of(str(script), python=True, task=task) for task in range(4)]
    for attempt in attempts:
        attempt.lead = LEAD
        executor.prepare(attempt)
    await eventually(lambda: sum(waits_to_start(pid) for pid in recording.processes()) == 2)
    await asyncio.gather(*(executor.run(attempt) for attempt in attempts))
    assert recording.bytes(1) == b"ran\n" * 4


async def test_one_that_might_not_find_its_gate_is_not_started_ahead(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, script: Path
) -> None:
    script.write_text("print('ran')")
    attempt = attempt_of(str(script), python=True, limits=ProcessLimits(files=16))
    attempt.lead = LEAD
    executor.prepare(attempt)
    assert await executor.run(attempt_of("true"))
    assert recording.processes() == []
    assert await executor.run(attempt)
    assert recording.bytes(1) == b"ran\n"


AGENT = """
import asyncio, sys
from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.command import CommandExecutor
from mainspring.model.tasks.jobs import Command, Definition, Job
from mainspring.model.messages import Armed

async def main():
    executor = CommandExecutor()
    job = Job(1, sys.argv[1], 1, 1, Definition(Command((sys.argv[2],), python=True)))
    attempt = Attempt(Armed(1, 1, 1, 1, 0.0, "{}"), job, None)
    attempt.lead = 0.4
    executor.prepare(attempt)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_one_that_waits_dies_with_its_agent(recording: Recording, script: Path, tmp_path: Path) -> None:
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    agent = subprocess.Popen([sys.executable, "-c", AGENT, recording.job_name, str(script)], env=environment)
    try:
        await eventually(lambda: any(waits_to_start(pid) for pid in recording.processes()))
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    await eventually(lambda: not recording.processes())
    assert not (tmp_path / "ran").exists()
