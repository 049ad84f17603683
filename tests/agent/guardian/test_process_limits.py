"""Limits of commands: what one may use at most, and what is said when it was too much."""

from __future__ import annotations

import resource
import sys

import pytest
from tests.agent.commands import Make, Recording, python

from mainspring.agent.attempt import AttemptFailed
from mainspring.agent.executors.command import CommandExecutor
from mainspring.model.tasks.jobs import ProcessLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce RLIMIT_AS")

SHOW = "ulimit -v; ulimit -St; ulimit -Ht; ulimit -Sn; ulimit -Hn"


async def test_limits_are_those_of_the_job(executor: CommandExecutor, attempt_of: Make, recording: Recording) -> None:
    limits = ProcessLimits(memory=256 << 20, cpu=1.5, files=64)
    await executor.run(attempt_of(SHOW, shell=True, limits=limits))
    assert recording.bytes(1).split() == [b"262144", b"2", b"4", b"64", b"64"]


async def test_a_command_without_limits_has_none_even_beside_one_with(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    await executor.run(attempt_of("true", limits=ProcessLimits(memory=64 << 20, cpu=1, files=32)))
    await executor.run(attempt_of("ulimit -v; ulimit -t", shell=True))
    assert recording.bytes(1) == b"unlimited\nunlimited\n"


async def test_a_limit_above_the_agent_s_own_leaves_that_one(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    await executor.run(attempt_of("ulimit -n", shell=True, limits=ProcessLimits(files=hard + 1)))
    assert int(recording.bytes(1)) == hard


@pytest.mark.parametrize("shell", [False, True])
async def test_using_up_the_cpu_time_is_said(executor: CommandExecutor, attempt_of: Make, shell: bool) -> None:
    argv = (f"{sys.executable} -S -c 'while True: pass'; exit $?",) if shell else python("while True: pass")
    with pytest.raises(AttemptFailed, match=r"^used up its CPU time of 0\.5 s") as failed:
        await executor.run(attempt_of(*argv, shell=shell, limits=ProcessLimits(cpu=0.5)))
    assert failed.value.code == "cpu_limit"
    assert failed.value.labels[1:] == (("exit_code", "152") if shell else ("signal", "SIGXCPU"))
    assert not failed.value.final


async def test_a_command_that_ignores_the_warning_is_killed(executor: CommandExecutor, attempt_of: Make) -> None:
    script = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    with pytest.raises(AttemptFailed, match=r"killed by SIGKILL \(its limits: cpu 1 s\)"):
        await executor.run(attempt_of(*python(script), limits=ProcessLimits(cpu=1)))


async def test_running_out_of_memory_is_said_with_the_limit(executor: CommandExecutor, attempt_of: Make) -> None:
    with pytest.raises(
        AttemptFailed, match=r"^ran out of memory, of which it may have 128 MB \(exit code 1\)"
    ) as failed:
        await executor.run(attempt_of(*python("x = bytearray(1 << 30)"), limits=ProcessLimits(memory=128 << 20)))
    assert failed.value.labels == ("memory_limit", "exit_code", "1")


async def test_without_a_limit_the_same_words_are_just_a_failure(executor: CommandExecutor, attempt_of: Make) -> None:
    with pytest.raises(AttemptFailed, match=r"^exit code 1: .*MemoryError") as failed:
        await executor.run(attempt_of(*python("import sys; sys.exit('MemoryError')")))
    assert failed.value.code == "exit_code"


async def test_too_little_memory_to_start_at_all_ends_the_attempt_and_nothing_else(
    executor: CommandExecutor, attempt_of: Make
) -> None:
    with pytest.raises(AttemptFailed):
        await executor.run(attempt_of("true", limits=ProcessLimits(memory=1 << 20)))
    assert await executor.run(attempt_of("true"))
