"""Program: what the guardian starts for an attempt, and why it could not be started or how it failed.

Next: agent/executors/process.py
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.model.limits.process_limits import in_words
from mainspring.model.tasks.jobs import NO_LIMITS, Command, ProcessLimits

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
LONGEST_VARIABLE = 128 << 10  # Linux: the name, the value, "=" and the NUL at the end
LONGEST_MESSAGE = 500
HOPELESS = {errno.ENOENT, errno.EACCES, errno.E2BIG, errno.ENOTDIR, errno.ENOEXEC, 0}  # 0: Popen refused its arguments
SHELL_SIGNAL = 128  # a shell exits with this plus the number of the signal that killed its command

_OUT_OF_MEMORY = re.compile(
    rb"MemoryError|bad_alloc|OutOfMemory|(cannot allocate|out of|exhausted) .{0,20}memory", re.I
)


@dataclass(frozen=True)
class Program:
    """The fields of the guardian's `spawn` message."""

    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    stdin: str | None
    limits: dict[str, float] = field(default_factory=dict)  # memory, cpu, files: only those that are set
    identity: tuple[int, int, list[int]] | None = None  # user, group and further groups, if not the agent's
    executable: str | None = None  # the file to start, if it is not to be looked up by argv[0]
    prewarmed: bool = False  # an interpreter that waits for its start pipe before it runs its script


def program_of(attempt: Attempt, command: Command) -> Program:
    """The program that runs `command` for the attempt."""
    if not command.argv:
        raise AttemptFailed("not_startable", "the command is empty", final=True)
    armed = attempt.armed
    ours = {
        "MAINSPRING_ARGS": armed.args,
        "MAINSPRING_TASK_ID": str(armed.task),
        "MAINSPRING_ATTEMPT": str(armed.attempt),
        "MAINSPRING_JOB": attempt.job.name,
        "MAINSPRING_IDEMPOTENCY_KEY": attempt.idempotency_key,
        "MAINSPRING_FIRE_AT": datetime.fromtimestamp(armed.fire_at, UTC).isoformat(),
    }
    if armed.schedule is not None:
        ours["MAINSPRING_SCHEDULE"] = armed.schedule
    if armed.plan_time is not None:
        ours["MAINSPRING_PLAN_TIME"] = datetime.fromtimestamp(armed.plan_time, UTC).isoformat()
        ours["MAINSPRING_SCOPE"] = armed.scope or ""
    if armed.parents is not None:
        ours["MAINSPRING_PARENTS"] = armed.parents
    if len(f"MAINSPRING_ARGS={armed.args}\0".encode()) > LONGEST_VARIABLE:
        raise AttemptFailed(
            "bad_arguments",
            f"the arguments are too long for a command: {len(armed.args.encode()):,} bytes of JSON,"
            f" and an environment variable holds {LONGEST_VARIABLE:,}",
            final=True,
        )
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return Program(
        argv=_argv(command),
        env=inherited | {name: attempt.resolved(value) for name, value in command.env.items()} | ours,
        cwd=command.cwd,
        stdin=command.stdin,
        limits=msgspec.to_builtins(command.limits),
    )


def _argv(command: Command) -> list[str]:
    if command.python:
        return [sys.executable, *command.argv]
    if command.shell:
        return ["/bin/sh", "-c", command.argv[0], "sh", *command.argv[1:]]
    return list(command.argv)


def not_startable(program: Program, error: OSError) -> AttemptFailed:
    in_directory = program.cwd is not None and error.filename == program.cwd
    what = f"a command in the directory {program.cwd!r}" if in_directory else repr(program.argv[0])
    return AttemptFailed("not_startable", f"cannot start {what}: {error.strerror}", final=error.errno in HOPELESS)


def failure(exit_code: int, stderr: bytes, limits: ProcessLimits) -> AttemptFailed:
    """The failure of a command, by its exit code (negative: a signal) and the end of its stderr."""
    text = stderr.decode(errors="replace").replace("\0", "").strip()[-LONGEST_MESSAGE:]
    last = text.rpartition("\n")[2].strip()  # most programs print the cause in their last line
    said = "" if not text else f": {last}" if last == text else f": {last}\n\n{text}"
    if exit_code > 0:
        code, message, label = "exit_code", f"exit code {exit_code}", str(exit_code)
    else:
        label = _signal_name(-exit_code)
        code, message = "signal", f"killed by {label}"
    if limits.cpu is not None and exit_code in (-signal.SIGXCPU, SHELL_SIGNAL + signal.SIGXCPU):
        reason = f"used up its CPU time of {limits.cpu:g} s ({message}){said}"
        return AttemptFailed("cpu_limit", reason, labels=(code, label), exit_code=exit_code)
    if limits.memory is not None and _OUT_OF_MEMORY.search(stderr):
        reason = f"ran out of memory, of which it may have {in_words(limits)['memory']} ({message}){said}"
        return AttemptFailed("memory_limit", reason, labels=(code, label), exit_code=exit_code)
    if exit_code < 0 and limits != NO_LIMITS:
        listed = ", ".join(f"{name} {limit}" for name, limit in in_words(limits).items())
        message += f" (its limits: {listed})"
    return AttemptFailed(code, f"{message}{said}", labels=(label,), exit_code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
