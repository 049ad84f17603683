"""The guardian: what becomes of commands when their agent is gone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from mainspring.agent.guardian.groups import descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

DEADLINE = 20.0

AGENT = """
import asyncio, os, signal, sys
from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.command import CommandExecutor
from mainspring.model.tasks.jobs import Command, Definition, Job
from mainspring.model.messages import Armed
from mainspring.wire.clock import boottime

script, count, fork, lease = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fork", float(sys.argv[4])

class Printing:
    def output(self, attempt, stream, data):
        os.write(1, data)

async def main():
    executor = CommandExecutor()
    if lease:
        executor.hold_until(boottime() + lease)
    executor._living_guardian()
    if fork and os.fork() == 0:
        signal.pause()
    job = Job(1, "night", 1, 1, Definition(Command((script,), shell=True)))
    attempts = [Attempt(Armed(task, 1, 1, 1, 0.0, "{}"), job, Printing()) for task in range(count)]
    ends = await asyncio.gather(*(executor.run(attempt) for attempt in attempts), return_exceptions=True)
    print(*{getattr(end, "code", end) for end in ends}, flush=True)

asyncio.run(main())
"""


class Agent:
    """A process that runs commands as an agent does, and that can be killed."""

    def __init__(self, script: str, count: int, *, fork: bool, lease: float) -> None:
        self.mark = f"LOGNAME=agent-{uuid4()}"  # commands inherit it
        name, _, value = self.mark.partition("=")
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENT, script, str(count), "fork" if fork else "alone", str(lease)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), name: value},
            text=True,
        )

    def printed_pids(self, count: int) -> list[int]:
        assert self._process.stdout is not None
        return [int(self._process.stdout.readline()) for _ in range(count)]

    def printed_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        return stat(self._process.pid)[0] == "T"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, *, of_commands: bool = False) -> list[int]:
        """Alive, and started by this agent, whatever their parent is now."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                is_command = b"MAINSPRING_JOB=night" in variables
                if self.mark.encode() in variables and (is_command or not of_commands):
                    found.append(int(entry.name))
        return found


Start = Callable[..., Agent]


@pytest.fixture
def agent_running() -> Iterator[Start]:
    started: list[Agent] = []

    def start(script: str, count: int = 1, *, fork: bool = False, lease: float = 0.0) -> Agent:
        started.append(Agent(script, count, fork=fork, lease=lease))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    """A zombie is dead."""
    try:
        return stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    return int(stat(pid)[1])


def session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and alive(int(entry.name)) and os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


def test_kill_9_of_the_agent_kills_the_whole_groups_of_its_commands(agent_running: Start) -> None:
    script = "trap '' TERM HUP; sh -c 'echo $$; sleep 60; sleep 60' & echo $$; wait; wait"
    agent = agent_running(script, count=3)
    processes = agent.printed_pids(6)
    guardian = parent(os.getpgid(processes[0]))
    assert all(alive(pid) for pid in (*processes, guardian))
    agent.kill()
    assert eventually(lambda: not any(alive(pid) for pid in (*processes, guardian)))
    assert agent.processes() == []


def test_kill_9_of_the_agent_kills_a_daemon_that_left_its_group_and_its_variables(
    agent_running: Start,
) -> None:
    daemon = "trap '' TERM HUP; echo $$; sleep 60; sleep 60"
    agent = agent_running(f'env -i setsid -f sh -c "{daemon}"; sleep 60'.replace("$$", r"\$\$"))
    pid = agent.printed_pids(1)[0]
    guardian = parent(pid)
    assert session(pid)
    agent.kill()
    assert eventually(lambda: not alive(guardian))
    assert session(pid) == []


def test_kill_9_of_the_agent_kills_what_hops_from_process_to_process(agent_running: Start, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    hop = "import os\nos.write(9, b'x')\nwhile True:\n os.fork() and os._exit(0)\n os.setsid()"
    agent = agent_running(f'exec 9>{held}; setsid env -i {sys.executable} -I -S -c "{hop}" & echo $$; sleep 60')
    guardian = parent(agent.printed_pids(1)[0])  # the FIFO has a writer by now
    assert select.select([reader], [], [], DEADLINE)[0]
    assert os.read(reader, 9) == b"x"
    agent.kill()
    assert eventually(lambda: not alive(guardian))
    assert os.read(reader, 9) == b""  # no process holds the writing end; else it would block
    os.close(reader)


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.03, 0.07])
def test_at_whatever_moment_the_agent_is_killed_no_command_is_left(agent_running: Start, moment: float) -> None:
    """It dies in the midst of 200 starts: a command that is just starting has a parent too."""
    agent = agent_running("echo $$; exec sleep 60", count=200)
    guardian = parent(agent.printed_pids(1)[0])
    time.sleep(moment)
    agent.kill()
    assert eventually(lambda: not alive(guardian))
    assert agent.processes() == []


def test_a_fork_of_the_agent_does_not_hide_that_the_agent_died(agent_running: Start) -> None:
    agent = agent_running("echo $$; exec sleep 60", fork=True)
    command = agent.printed_pids(1)[0]
    agent.kill()
    assert agent.processes()  # at least the fork, which holds the guardian's channel open
    assert eventually(lambda: agent.processes(of_commands=True) == [])
    assert not alive(command)


def test_the_guardian_outlives_the_signals_that_stop_an_agent(agent_running: Start) -> None:
    agent = agent_running("echo $$; exec sleep 60")
    command = agent.printed_pids(1)[0]
    guardian = parent(command)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guardian, number)
    assert os.getsid(guardian) == guardian  # so that Ctrl-C does not even reach it
    assert alive(guardian)
    agent.kill()
    assert eventually(lambda: not alive(command))


# ── the agent's lease ───────────────────────────────────────────────────────────────────────────


def test_commands_of_an_agent_that_is_stopped_past_its_lease_are_killed_while_it_is(agent_running: Start) -> None:
    agent = agent_running("trap '' TERM; env -i setsid -f sleep 60; echo $$; sleep 60; sleep 60", count=3, lease=3.0)
    commands = agent.printed_pids(3)
    guardian = parent(commands[0])
    below = [pid for pid in descendants(guardian) if pid != guardian]
    agent.signal(signal.SIGSTOP)
    assert len(below) >= 6
    assert eventually(lambda: not any(alive(pid) for pid in below))
    assert agent.is_stopped
    assert alive(guardian)
    agent.signal(signal.SIGCONT)
    assert agent.printed_line() == "lease_over"


def test_a_stopped_agent_that_hears_nothing_does_not_hold_up_its_guardian(agent_running: Start) -> None:
    """More reports than its socket holds: the guardian must not wait until they are read."""
    script = "echo $$; [ $MAINSPRING_TASK_ID = 0 ] && exec sleep 60; exec sleep 2"
    agent = agent_running(script, count=600, lease=9.0)
    commands = agent.printed_pids(600)
    agent.signal(signal.SIGSTOP)
    assert eventually(lambda: not any(alive(pid) for pid in commands))
    assert agent.is_stopped
    agent.signal(signal.SIGCONT)
    assert set(agent.printed_line().split()) == {"lease_over", '{"exit_code":0}'}
