"""Commands, with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from tests.agent.commands import DEADLINE, Make, Recording, alive, eventually, no_descriptors, python

from mainspring.agent.attempt import AttemptFailed, Exhausted
from mainspring.agent.executors.capture import PIECE
from mainspring.agent.executors.command import CommandExecutor
from mainspring.agent.executors.program import INHERITED
from mainspring.model.tasks.jobs import ProcessLimits
from mainspring.wire.clock import boottime


async def cancel(running: asyncio.Task[str | None]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# ── how it is started ───────────────────────────────────────────────────────────────────────────


async def test_arguments_reach_the_program_exactly_as_given(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    odd = ("a b", "", "$HOME", "`id`", '"', "naïve", "-c", "*", "\n", "\udcff")
    result = await executor.run(
        attempt_of(*python("import os,sys; os.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))"), *odd)
    )
    assert result == '{"exit_code":0}'
    assert recording.bytes(1) == b"|".join(os.fsencode(word) for word in odd)


async def test_a_shell_runs_only_when_asked_for(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    await executor.run(attempt_of("echo", "$((1+1))"))
    await executor.run(attempt_of('echo $((1+1)) "$1" "$2"', "$HOME", "b c", shell=True))
    assert recording.bytes(1) == b"$((1+1))\n2 $HOME b c\n"


async def test_the_environment_is_the_allow_list_and_the_spec_and_ours(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DSN", "postgres://secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    args = '{"day": "$(reboot)"}'
    env = {"GREETING": "hello", "MAINSPRING_JOB": "forged"}
    await executor.run(attempt_of("/usr/bin/env", "-0", args=args, env=env))
    entries = recording.bytes(1).decode().rstrip("\0").split("\0")
    seen = dict(entry.split("=", 1) for entry in entries)
    assert seen == {name: os.environ[name] for name in INHERITED if name in os.environ} | {
        "GREETING": "hello",
        "MAINSPRING_ARGS": args,
        "MAINSPRING_TASK_ID": "42",
        "MAINSPRING_ATTEMPT": "2",
        "MAINSPRING_JOB": recording.job_name,
        "MAINSPRING_IDEMPOTENCY_KEY": "mainspring-d1-42",
        "MAINSPRING_FIRE_AT": "2026-09-21T14:13:20.250000+00:00",
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_no_descriptor_of_ours_reaches_the_command(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    leaky = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaky, True)
    try:
        await executor.run(attempt_of(*python("import os; print(os.listdir('/proc/self/fd'))")))
    finally:
        os.close(leaky)
    listed = set(json.loads(recording.bytes(1).decode().replace("'", '"')))
    assert listed == {"0", "1", "2", "3"}  # 3 is the listing itself


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_signals_umask_and_limits_are_the_defaults_whatever_ours_are(
    attempt_of: Make, recording: Recording
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGUSR1)}
    umask = os.umask(0o077)
    executor = CommandExecutor()
    try:
        script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; umask; ulimit -n"
        await executor.run(attempt_of(script, shell=True))
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)
        os.umask(umask)
        await executor.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    _, blocked, _, ignoring, mask, files = recording.bytes(1).split()
    of_libc = 0b11 << 31  # 32 and 33 are the C library's: a process that inherits them ignored cannot change that
    assert (int(blocked, 16), int(ignoring, 16) & ~of_libc, mask, files) == (0, 0, b"0022", b"512")
    assert raised > 512


async def test_a_command_leads_a_session_of_its_own(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    await executor.run(
        attempt_of(*python("import os; print(os.getpid() == os.getsid(0) == os.getpgid(0) != os.getppid())"))
    )
    assert recording.bytes(1) == b"True\n"


async def test_the_working_directory_is_the_one_of_the_spec(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    await executor.run(attempt_of("pwd", "-P", cwd=str(tmp_path)))
    assert recording.bytes(1).decode().strip() == str(tmp_path)


@pytest.mark.parametrize("text", [None, "", "one\ntwo\n", "ü" * 500_000], ids=["none", "empty", "lines", "long"])
async def test_stdin_is_the_text_of_the_spec_and_else_empty(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, text: str | None
) -> None:
    await executor.run(attempt_of("cat", stdin=text))
    assert recording.bytes(1) == (text or "").encode()


async def test_stdin_with_bytes_that_are_no_text_reaches_the_command_unchanged(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    await executor.run(attempt_of("cat", stdin=b"\xff\n".decode(errors="surrogateescape")))
    assert recording.bytes(1) == b"\xff\n"


@pytest.mark.parametrize("script", ["true", "exec <&-; true", "head -c 1 >/dev/null"])
async def test_a_command_that_does_not_read_its_stdin_ends_all_the_same(
    executor: CommandExecutor, attempt_of: Make, script: str
) -> None:
    async with asyncio.timeout(DEADLINE):
        assert await executor.run(attempt_of(script, shell=True, stdin="x" * 900_000)) == '{"exit_code":0}'


# ── what it prints ──────────────────────────────────────────────────────────────────────────────


async def test_output_comes_while_the_command_runs(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = f"echo out; echo err >&2; until [ -e {shlex.quote(str(seen))} ]; do sleep 0.01; done; echo end"
    running = asyncio.create_task(executor.run(attempt_of(script, shell=True)))
    await eventually(lambda: recording.bytes(1) == b"out\n" and recording.bytes(2) == b"err\n")
    seen.touch()
    await running
    assert recording.bytes(1) == b"out\nend\n"


@pytest.mark.skipif(sys.platform != "linux", reason="enlarges a pipe")
async def test_what_a_command_printed_last_is_kept_however_much_the_pipe_holds(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = (
        "import fcntl, os, sys, time\n"
        "fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)\n"
        "os.write(2, b'up')\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.005)\n"
        "os.write(1, b'x' * (1 << 20))"
    )
    running = asyncio.create_task(executor.run(attempt_of(*python(script), str(gate))))
    await eventually(lambda: recording.bytes(2) == b"up")
    gate.touch()
    while recording.processes():  # our loop is busy until the command is gone
        pass
    await running
    assert len(recording.bytes(1)) == 1 << 20


async def test_binary_output_and_an_endless_line_are_kept_byte_for_byte(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    script = "import os\nfor _ in range(2000): os.write(1, bytes(range(256)))"
    await executor.run(attempt_of(*python(script)))
    assert recording.bytes(1) == bytes(range(256)) * 2000
    assert max(len(data) for _, data in recording.chunks) <= PIECE


async def test_a_chatty_command_does_not_make_a_chunk_of_each_byte(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    await executor.run(attempt_of(*python("import os\nfor _ in range(20000): os.write(1, b'x')")))
    assert recording.bytes(1) == b"x" * 20_000
    assert len(recording.chunks) < 200


async def test_the_middle_of_a_long_output_is_left_out_and_said_so(attempt_of: Make, recording: Recording) -> None:
    executor = CommandExecutor(head=1000, tail=500)
    script = "import os\nos.write(1, b'a' * 1000 + b'b' * 9000 + b'c' * 500)"
    try:
        await executor.run(attempt_of(*python(script)))
    finally:
        await executor.close()
    assert recording.chunks == [
        (1, b"a" * 1000),
        (0, "… 9,000 bytes left out …".encode()),
        (1, b"c" * 500),
    ]


async def test_a_command_that_prints_200_megabytes_costs_no_memory(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    before = resident()
    await executor.run(attempt_of("head -c 200000000 /dev/zero; echo end", shell=True))
    assert resident() - before < 16 << 20
    assert recording.bytes(0) == f"… {200_000_004 - (2 << 20):,} bytes left out …".encode()
    assert len(recording.bytes(1)) == 2 << 20
    assert recording.bytes(1).endswith(b"\0end\n")


def resident() -> int:
    """The most so far, so a peak in between does not go unseen."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# ── how it ends ─────────────────────────────────────────────────────────────────────────────────


async def test_an_exit_code_fails_the_attempt_with_the_last_words_of_stderr(
    executor: CommandExecutor, attempt_of: Make
) -> None:
    script = r"yes padding | head -n 400 >&2; printf 'disk \000full\377\n' >&2; exit 3"
    with pytest.raises(AttemptFailed) as failed:
        await executor.run(attempt_of(script, shell=True))
    error = failed.value
    assert (error.code, error.labels, error.final) == ("exit_code", ("exit_code", "3"), False)
    assert error.message.startswith("exit code 3: ")
    assert error.message.endswith("disk full�")
    assert len(error.message) < 550


async def test_an_exit_code_without_a_word_is_just_that(executor: CommandExecutor, attempt_of: Make) -> None:
    with pytest.raises(AttemptFailed, match=r"^exit code 1$"):
        await executor.run(attempt_of("false"))


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
async def test_death_by_a_signal_names_the_signal(executor: CommandExecutor, attempt_of: Make, name: str) -> None:
    with pytest.raises(AttemptFailed, match=f"killed by {name}") as failed:
        await executor.run(attempt_of(f"kill -{name[3:]} $$", shell=True))
    assert failed.value.labels == ("signal", name)


async def test_what_cannot_be_started_is_named_and_not_tried_again(
    executor: CommandExecutor, attempt_of: Make, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    cases: list[tuple[tuple[str, ...], dict[str, object], str]] = [
        (("no-such-program",), {}, "'no-such-program': No such file"),
        ((str(plain),), {}, "plain': Permission denied"),
        (("true",), {"cwd": "/no/such/place"}, "in the directory '/no/such/place': No such file"),
        (("true", "x" * (3 << 20)), {}, "'true': Argument list too long"),
        (("true", "a\0b"), {}, "embedded null byte"),
        (("true",), {"env": {"A=B": "c"}}, "illegal environment variable name"),
        (("true", "\ud800"), {}, "surrogates not allowed"),
        ((), {}, "the command is empty"),
    ]
    for argv, spec, message in cases:
        with pytest.raises(AttemptFailed) as failed:
            await executor.run(attempt_of(*argv, **spec))
        assert (failed.value.code, failed.value.final) == ("not_startable", True)
        assert message in failed.value.message


async def test_arguments_too_long_for_the_environment_fail_for_good(
    executor: CommandExecutor, attempt_of: Make
) -> None:
    longest = 131_072 - len("MAINSPRING_ARGS=\0")
    assert await executor.run(attempt_of("true", args="x" * longest))
    with pytest.raises(AttemptFailed, match="too long") as failed:
        await executor.run(attempt_of("true", args="x" * (longest + 1)))
    assert (failed.value.code, failed.value.final) == ("bad_arguments", True)


@pytest.mark.parametrize(
    "background",
    [
        "sleep 60",
        "trap '' TERM; while :; do sleep 60; done",
        "setsid sh -c \"trap '' TERM; sleep 60; sleep 60\"",
    ],
    ids=["plain", "ignores-term", "daemon"],
)
async def test_what_a_command_leaves_behind_dies_with_it(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, background: str
) -> None:
    if sys.platform != "linux" and "setsid" in background:
        pytest.skip("a process that leaves its group is seen on Linux only")
    async with asyncio.timeout(DEADLINE):
        await executor.run(attempt_of(f"({background}) & echo $!; sleep 0.05", shell=True))
    assert not alive(int(recording.bytes(1)))
    assert recording.processes() == []


# ── how it is stopped ───────────────────────────────────────────────────────────────────────────

TREE_THAT_IGNORES_TERM = (
    "trap '' TERM; (while :; do sleep 60; done) & (while :; do sleep 60; done) & echo up; wait; wait"
)


async def test_cancelling_lets_a_command_end_in_its_own_way(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    running = asyncio.create_task(executor.run(attempt_of(script, shell=True, grace=60)))
    await eventually(lambda: recording.bytes(1) == b"up\n")
    async with asyncio.timeout(DEADLINE):
        await cancel(running)
    assert recording.bytes(1) == b"up\nbye\n"


async def test_cancelling_kills_a_whole_tree_that_ignores_term(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    running = asyncio.create_task(executor.run(attempt_of(TREE_THAT_IGNORES_TERM, shell=True, grace=0.3)))
    await eventually(lambda: recording.bytes(1) == b"up\n")
    began = time.monotonic()
    await cancel(running)
    assert time.monotonic() - began >= 0.3
    assert recording.processes() == []


async def test_a_second_cancel_leaves_nothing_behind(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    running = asyncio.create_task(executor.run(attempt_of(TREE_THAT_IGNORES_TERM, shell=True, grace=0.3)))
    await eventually(lambda: recording.bytes(1) == b"up\n")
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=0.05)
    await cancel(running)
    assert recording.processes() == []


@pytest.mark.parametrize("turns", range(6))
async def test_cancelling_during_the_start_leaves_nothing_behind(
    executor: CommandExecutor, attempt_of: Make, recording: Recording, turns: int
) -> None:
    running = asyncio.create_task(executor.run(attempt_of("sleep", "60")))
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE):
        await cancel(running)
    assert recording.processes() == []


async def test_cancelling_what_cannot_be_started_is_a_cancel(executor: CommandExecutor, attempt_of: Make) -> None:
    running = asyncio.create_task(executor.run(attempt_of("no-such-program")))
    await asyncio.sleep(0)
    await cancel(running)


# ── many, and when the guardian fails ───────────────────────────────────────────────────────────


async def test_a_thousand_commands_run_at_once(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    attempts = [attempt_of("echo x; exec sleep 60", shell=True, task=task) for task in range(1000)]
    running = [asyncio.create_task(executor.run(attempt)) for attempt in attempts]
    await eventually(lambda: recording.bytes(1) == b"x\n" * 1000)
    for each in running:
        each.cancel()
    async with asyncio.timeout(DEADLINE):
        results = await asyncio.gather(*running, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}
    assert recording.processes() == []


async def test_no_descriptor_is_left_open(executor: CommandExecutor, attempt_of: Make) -> None:
    await executor.run(attempt_of("true"))
    before = len(os.listdir("/dev/fd"))
    await asyncio.gather(*(executor.run(attempt_of("true", task=task)) for task in range(20)))
    with pytest.raises(AttemptFailed):
        await executor.run(attempt_of("no-such-program"))
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("guardian", ["a guardian", "none yet"])
async def test_an_attempt_that_finds_no_descriptors_has_not_run_and_is_no_failure(
    executor: CommandExecutor, attempt_of: Make, guardian: str
) -> None:
    if guardian == "a guardian":
        await executor.run(attempt_of("true"))
    with no_descriptors():
        for spec in ({}, {"limits": ProcessLimits(memory=1 << 30)}):
            attempt = attempt_of("true", **spec)
            executor.prepare(attempt)  # which raises nothing either
            with pytest.raises(Exhausted, match="Too many open files"):
                await executor.run(attempt)
    assert await executor.run(attempt_of("true"))


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="counts the descriptors of the guardian")
async def test_a_guardian_without_descriptors_gives_the_start_back_and_lives(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    running = asyncio.create_task(executor.run(attempt_of("echo $PPID; exec sleep 60", shell=True, grace=0.0)))
    await eventually(lambda: recording.bytes(1).endswith(b"\n"))
    guardian = int(recording.bytes(1))
    soft, hard = resource.prlimit(guardian, resource.RLIMIT_NOFILE)
    for room in range(6):  # for some of the descriptors of a start, then for those that starting it takes
        lowest = len(os.listdir(f"/proc/{guardian}/fd")) + room
        resource.prlimit(guardian, resource.RLIMIT_NOFILE, (lowest, hard))
        with suppress(Exhausted):
            await executor.run(attempt_of("true"))
            assert room > 1, "two descriptors are its output"
        assert not running.done()
    resource.prlimit(guardian, resource.RLIMIT_NOFILE, (soft, hard))
    assert await executor.run(attempt_of("true"))
    await cancel(running)


async def test_when_the_guardian_is_killed_its_commands_die_and_the_next_get_another(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    running = asyncio.create_task(executor.run(attempt_of("echo $PPID; exec sleep 60", shell=True)))
    await eventually(lambda: recording.bytes(1).endswith(b"\n"))
    os.kill(int(recording.bytes(1)), signal.SIGKILL)
    with pytest.raises(AttemptFailed, match="guardian") as failed:
        await running
    assert (failed.value.code, failed.value.final) == ("guardian_lost", False)
    await eventually(lambda: not recording.processes())
    assert await executor.run(attempt_of("true")) == '{"exit_code":0}'


async def test_past_the_lease_commands_are_killed_and_none_starts_until_it_is_renewed(
    executor: CommandExecutor, attempt_of: Make, recording: Recording
) -> None:
    running = asyncio.create_task(executor.run(attempt_of("echo up; exec sleep 60", shell=True)))
    await eventually(lambda: recording.bytes(1) == b"up\n")
    executor.hold_until(boottime())
    for late in (running, executor.run(attempt_of("no-such-program"))):  # the program is not even looked up
        with pytest.raises(AttemptFailed) as failed:
            await late
        assert (failed.value.code, failed.value.final) == ("lease_over", False)
    executor.hold_until(boottime() + 60)
    assert await executor.run(attempt_of("true"))


async def test_a_lease_that_is_renewed_in_time_kills_nothing(executor: CommandExecutor, attempt_of: Make) -> None:
    executor.hold_until(boottime() + 0.3)
    running = asyncio.create_task(executor.run(attempt_of("sleep", "0.5")))
    await asyncio.sleep(0)
    executor.hold_until(boottime() + 60)
    assert await running


async def test_a_guardian_that_starts_later_knows_the_lease(executor: CommandExecutor, attempt_of: Make) -> None:
    executor.hold_until(boottime() - 1)
    with pytest.raises(AttemptFailed) as failed:
        await executor.run(attempt_of("true"))
    assert failed.value.code == "lease_over"


@pytest.mark.parametrize(
    "story",
    [
        test_a_chatty_command_does_not_make_a_chunk_of_each_byte,
        test_cancelling_lets_a_command_end_in_its_own_way,
        test_cancelling_kills_a_whole_tree_that_ignores_term,
        test_a_second_cancel_leaves_nothing_behind,
        test_a_thousand_commands_run_at_once,
        test_when_the_guardian_is_killed_its_commands_die_and_the_next_get_another,
    ],
)
def test_on_uvloop_too(story: Callable[..., Awaitable[None]], attempt_of: Make, recording: Recording) -> None:
    async def run() -> None:
        executor = CommandExecutor()
        try:
            await story(executor, attempt_of, recording)
        finally:
            await executor.close()

    uvloop.run(run())
