"""Privacy: a command reads no secret of the agent, whoever runs it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.commands import Make, Recording

from mainspring.agent.executors.command import CommandExecutor
from mainspring.agent.executors.process import VARIABLES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 19, 21, 38
PR_CAPBSET_DROP = 24

SHOW = """
import ctypes, os, subprocess, sys
from mainspring.agent.guardian.privacy import hide_arguments, hide_environment
hide_arguments([sys.argv[1], sys.argv[2]])
hide_environment()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
inherited = subprocess.check_output(["printenv", "A_SECRET"], text=True)
print(os.environ["A_SECRET"], libc.getenv(b"A_SECRET").decode(), inherited, end="")
print(sys.argv[1], flush=True)
sys.stdin.read()
"""


def test_neither_environment_nor_arguments_are_shown_to_others_and_the_process_keeps_them() -> None:
    env = os.environ | {"A_SECRET": "hunter2", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", SHOW, "token123", "", "plain"]
    with subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().split() == ["hunter2", "hunter2", "hunter2"]
        assert process.stdout.readline() == "token123\n"
        shown = Path(f"/proc/{process.pid}")
        assert (shown / "environ").read_bytes().strip(b"\0") == b""
        assert (shown / "cmdline").read_bytes().split(b"\0")[-4:-1] == [b"********", b"", b"plain"]
        process.stdin.close()
        assert process.wait() == 0


READS = r"""
for process in $PPID $AGENT; do
    for file in environ maps; do
        [ "$(head -c 1 /proc/$process/$file 2>/dev/null | wc -c)" = 0 ] || echo "reads $file"
    done
    readlink /proc/$process/fd/0 /proc/$process/exe && echo "sees descriptors"
done
(exec 3</proc/$AGENT/mem) 2>/dev/null && echo "opens mem"
exit 0
"""


def _without_the_right_to_trace() -> None:
    """As root: what any other user may do to its own processes."""
    for capability in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


AGENT = """
import asyncio, os, sys
from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.command import CommandExecutor
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Command, Definition, Job

class Printing:
    def output(self, attempt, stream, data):
        os.write(1, data)

async def main():
    command = Command((sys.argv[1],), shell=True, env={"AGENT": str(os.getpid())})
    job = Job(1, "night", 1, 1, Definition(command))
    executor = CommandExecutor()
    await executor.run(Attempt(Armed(1, 1, 1, 1, 0.0, "{}"), job, Printing()))
    await executor.close()

asyncio.run(main())
"""


def test_a_command_of_the_same_user_reads_nothing_of_the_agent_and_the_guardian() -> None:
    env = os.environ | {"A_SECRET": "hunter2", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", AGENT, READS]
    limited = _without_the_right_to_trace if os.geteuid() == 0 else None
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True, preexec_fn=limited)
    assert done.stdout == ""


async def test_the_guardian_has_no_variable_of_the_agent_for_root_to_read(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may not read it at all, and sees nothing."""
    monkeypatch.setenv("A_SECRET", "hunter2")
    await executor.run(attempt_of("tr '\\0' '\\n' </proc/$PPID/environ; exit 0", shell=True))
    names = {line.partition(b"=")[0] for line in recording.bytes(1).splitlines()}
    assert b"A_SECRET" not in names
    assert names <= {os.fsencode(name) for name in VARIABLES}
