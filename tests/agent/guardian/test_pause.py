"""Pause: commands are stopped and resumed, with all their processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.agent.commands import DEADLINE, Make, Recording, eventually

from mainspring.agent.executors.command import CommandExecutor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

TREE = """
trap 'echo bye; exit 0' TERM
(while :; do sleep 0.01; done) &
setsid sh -c 'while :; do sleep 0.01; done' &
(setsid sh -c 'echo adrift; while :; do sleep 0.01; done' &)
echo up
while :; do sleep 0.01; done
"""


def states(recording: Recording) -> set[str]:
    found = set()
    for pid in recording.processes():
        try:
            found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found - {"Z"}


def is_paused(recording: Recording) -> bool:
    """Whether all its processes are stopped; one may wait in vfork() (D) for a child that was stopped before exec."""
    return "T" in (found := states(recording)) and found <= {"T", "D"}


async def started(executor: CommandExecutor, attempt: object, recording: Recording) -> asyncio.Task[str | None]:
    running = asyncio.create_task(executor.run(attempt))  # type: ignore[arg-type]
    await eventually(lambda: set(recording.bytes(1).split()) == {b"up", b"adrift"})
    return running


async def over(running: asyncio.Task[str | None]) -> None:
    running.cancel()
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_all_processes_of_a_paused_command_stop_and_then_go_on(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    attempt = attempt_of(TREE, shell=True)
    running = await started(executor, attempt, recording)
    assert executor.pause(attempt, resume=False)
    await eventually(lambda: is_paused(recording))
    assert len(recording.processes()) >= 4  # also those that left the group, and orphans
    assert executor.pause(attempt, resume=True)
    await eventually(lambda: not is_paused(recording))
    await over(running)
    assert recording.processes() == []


async def test_a_paused_command_can_still_end_in_its_own_way(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    attempt = attempt_of(TREE, shell=True, grace=60)
    running = await started(executor, attempt, recording)
    executor.pause(attempt, resume=False)
    await eventually(lambda: is_paused(recording))
    await over(running)
    assert recording.bytes(1).endswith(b"bye\n")
    assert recording.processes() == []


async def test_a_paused_command_can_be_killed(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    attempt = attempt_of(TREE.replace("'echo bye; exit 0'", "''"), shell=True, grace=0)
    running = await started(executor, attempt, recording)
    executor.pause(attempt, resume=False)
    await eventually(lambda: is_paused(recording))
    await over(running)
    assert recording.processes() == []


async def test_a_pause_that_comes_before_the_start_holds(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    attempt = attempt_of("sleep", "60")
    assert executor.pause(attempt, resume=False)
    attempt.paused = True  # the runner sets it
    running = asyncio.create_task(executor.run(attempt))
    await eventually(lambda: is_paused(recording))
    await over(running)
