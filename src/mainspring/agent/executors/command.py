"""Commands: run a program, keep its output, leave no process of it behind.

A program gets its argv as it is; the task's arguments come in MAINSPRING_ARGS as JSON, never in
between. With `shell`, argv[0] is a script for /bin/sh, and the rest of argv is its $1, $2, ...
Sends   output, through the attempt
Next:   agent/executors/process.py, then agent/outbox.py
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from datetime import UTC, datetime

from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.base import AttemptFailed
from mainspring.agent.executors.capture import HEAD, TAIL, Capture
from mainspring.agent.executors.flow import Flow
from mainspring.agent.executors.process import Child, GuardianLost, GuardianProcess, Program
from mainspring.model.jobs import Command
from mainspring.wire.clock import boottime

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
LONGEST_VARIABLE = 128 << 10  # Linux: the name, the value, "=" and the NUL at the end
OPEN_FILES = 10_240  # two for each running command; macOS grants no more
LONGEST_MESSAGE = 500
HOPELESS = {errno.ENOENT, errno.EACCES, errno.E2BIG, errno.ENOTDIR, errno.ENOEXEC, 0}  # 0: not even tried


class CommandExecutor:
    """Runs commands through a guardian, which starts with the first of them."""

    def __init__(self, *, head: int = HEAD, tail: int = TAIL) -> None:
        self._head = head
        self._tail = tail
        self._open_files = _raise_open_files()
        self._guardian: GuardianProcess | None = None
        self._checks = 0

    async def run(self, attempt: Attempt) -> str | None:
        definition = attempt.job.definition
        assert isinstance(definition.run, Command)
        program = _program(attempt, definition.run)
        try:
            exit_code = await self._run(program, capture := self._capture(attempt), attempt)
        except OSError as error:
            raise _not_startable(program, error) from None
        except GuardianLost as error:
            raise AttemptFailed("guardian_lost", str(error)) from None
        if exit_code:
            raise _failure(exit_code, capture.last_words)
        return '{"exit_code":0}'

    def _capture(self, attempt: Attempt) -> Capture:
        if attempt.armed.daemon:
            return Flow(attempt.output, boottime)
        return Capture(attempt.output, head=self._head, tail=self._tail)

    async def check(self, attempt: Attempt, argv: tuple[str, ...]) -> str | None:
        """Ask whether an attempt is well: with its variables, in its directory, of its output the last words only."""
        run = attempt.job.definition.run
        asked = Command(argv, cwd=run.cwd, env=run.env) if isinstance(run, Command) else Command(argv)
        program = _program(attempt, asked)
        self._checks += 1
        # A mark of its own: when it has ended, only what it left behind is stopped, and not the daemon.
        program.env["MAINSPRING_HEALTH_CHECK"] = str(self._checks)
        program.marks.append(f"MAINSPRING_HEALTH_CHECK={self._checks}")
        capture = Capture(lambda _stream, _data: None, head=0, tail=0)
        guardian = self._living_guardian()
        try:
            child = await guardian.spawn(program, capture)
            try:
                await _end_of(child, guardian, None)
            finally:
                child.pipes.close()
            exit_code = child.exit.result()
        except (OSError, GuardianLost) as error:
            return f"{argv[0]} could not be run: {error}"
        return _failure(exit_code, capture.last_words).message if exit_code else None

    def prepare(self, attempt: Attempt) -> None:
        """Start the guardian ahead of time, so that the first command is not late by it."""
        self._living_guardian()

    async def close(self) -> None:
        if self._guardian is not None:
            await self._guardian.close()

    async def _run(self, program: Program, capture: Capture, attempt: Attempt) -> int:
        guardian = self._living_guardian()
        child = await guardian.spawn(program, capture)
        try:
            await _end_of(child, guardian, attempt)
        finally:
            child.pipes.close()
        return child.exit.result()

    def _living_guardian(self) -> GuardianProcess:
        if self._guardian is None or not self._guardian.alive:
            self._guardian = GuardianProcess(self._open_files)
        return self._guardian


async def _end_of(child: Child, guardian: GuardianProcess, attempt: Attempt | None) -> None:
    """Wait until no process of the child is left. Being cancelled speeds this up, never skips it."""
    cancelled: asyncio.CancelledError | None = None
    while not child.exit.done():
        try:
            await asyncio.wait([child.exit])
        except asyncio.CancelledError as error:
            cancelled = error
            guardian.stop(child, 0.0 if attempt is None else attempt.grace)
    if cancelled is not None:
        child.exit.exception()  # seen: how it ended no longer matters
        raise cancelled


def _program(attempt: Attempt, command: Command) -> Program:
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
    if armed.plan_time is not None:
        ours["MAINSPRING_PLAN_TIME"] = datetime.fromtimestamp(armed.plan_time, UTC).isoformat()
        ours["MAINSPRING_SCOPE"] = armed.scope or ""
    if len(f"MAINSPRING_ARGS={armed.args}\0".encode()) > LONGEST_VARIABLE:
        raise AttemptFailed(
            "bad_arguments",
            f"the arguments are too long for a command: {len(armed.args.encode()):,} bytes of JSON,"
            f" and an environment variable holds {LONGEST_VARIABLE:,}",
            final=True,
        )
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    argv = list(command.argv)
    return Program(
        argv=["/bin/sh", "-c", argv[0], "sh", *argv[1:]] if command.shell else argv,
        env=inherited | command.env | ours,
        cwd=command.cwd,
        stdin=command.stdin,
        marks=[f"{name}={ours[name]}" for name in ("MAINSPRING_TASK_ID", "MAINSPRING_ATTEMPT")],
    )


def _not_startable(program: Program, error: OSError) -> AttemptFailed:
    in_directory = program.cwd is not None and error.filename == program.cwd
    what = f"a command in the directory {program.cwd!r}" if in_directory else repr(program.argv[0])
    return AttemptFailed("not_startable", f"cannot start {what}: {error.strerror}", final=error.errno in HOPELESS)


def _failure(exit_code: int, last_words: bytes) -> AttemptFailed:
    text = last_words.decode(errors="replace").replace("\0", "").strip()[-LONGEST_MESSAGE:]
    said = f": {text}" if text else ""
    if exit_code > 0:
        return AttemptFailed("exit_code", f"exit code {exit_code}{said}", labels=(str(exit_code),))
    name = _signal_name(-exit_code)
    return AttemptFailed("signal", f"killed by {name}{said}", labels=(name,))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _raise_open_files() -> int:
    """Make room for a thousand commands. Returns the limit as it was: commands get that one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft
