"""Commands: run a program, keep its output, leave no process of it behind.

A program gets its argv as it is; the task's arguments come in MAINSPRING_ARGS as JSON, never in
between. With `shell`, argv[0] is a script for /bin/sh, and the rest of argv is its $1, $2, ...
With `python`, argv is a script for this interpreter, which is started ahead of the instant.
Sends   output, through the attempt
Next:   agent/executors/access.py, agent/executors/process.py, then agent/outbox.py
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Collection
from datetime import UTC, datetime

import msgspec

from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.access import Access
from mainspring.agent.executors.base import AttemptFailed, Executor
from mainspring.agent.executors.capture import HEAD, TAIL, Capture
from mainspring.agent.executors.failures import failure, not_startable
from mainspring.agent.executors.process import Child, GuardianLost, GuardianProcess, LeaseOver, Program
from mainspring.agent.executors.warming import SOON, NotWarm, Warming, can_wait, gated
from mainspring.model.jobs import Command

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
LONGEST_VARIABLE = 128 << 10  # Linux: the name, the value, "=" and the NUL at the end
OPEN_FILES = 10_240  # two for each running command; macOS grants no more


class CommandExecutor(Executor):
    """Runs commands through a guardian, which starts with the first of them."""

    def __init__(
        self,
        *,
        head: int = HEAD,
        tail: int = TAIL,
        run_as: Collection[str] = (),
        allow_commands: Collection[str] = (),
    ) -> None:
        self._head = head
        self._tail = tail
        self._access = Access(run_as, allow_commands)
        self._open_files = _raise_open_files()
        self._guardian: GuardianProcess | None = None
        self._until: float | None = None
        self._running: dict[Attempt, Child] = {}
        self._paused: set[Attempt] = set()
        self._warming: set[Warming] = set()

    def prepare(self, attempt: Attempt) -> None:
        """Start the guardian ahead of time, so that the first command is not late by it; and plan to start
        an interpreter that waits for the instant."""
        self._living_guardian()
        if _command(attempt).python and attempt.lead > SOON:
            attempt.prepared = Warming(self._warming, lambda: self._start(attempt, warm=True), attempt.lead)

    def forget(self, attempt: Attempt) -> None:
        if attempt.prepared is not None:
            attempt.prepared.discard()

    async def run(self, attempt: Attempt) -> str | None:
        warming = attempt.prepared
        child = await warming.take() if warming is not None else None
        try:
            if child is None:
                child = await self._start(attempt)
            exit_code = await self._end_of(child, attempt)
        except OSError as error:
            program = _program(attempt) if child is None else child.program
            raise not_startable(program, error) from None
        except GuardianLost as error:
            raise AttemptFailed("guardian_lost", str(error)) from None
        except LeaseOver:
            raise AttemptFailed("lease_over", "killed, as its agent could not renew its lease in time") from None
        if exit_code:
            raise failure(exit_code, child.pipes.capture.last_words, _command(attempt).limits)
        return '{"exit_code":0}'

    def pause(self, attempt: Attempt, *, resume: bool) -> bool:
        if resume:
            self._paused.discard(attempt)
        else:
            self._paused.add(attempt)
        if attempt in self._running:
            self._running[attempt].pause(resume=resume)
        return True

    def hold_until(self, at: float) -> None:
        """The agent's lease holds until this boot time: no command lives longer, unless a later one is told."""
        self._until = at
        if self._guardian is not None and self._guardian.alive:
            self._guardian.hold_until(at)

    async def close(self) -> None:
        for warming in list(self._warming):
            warming.discard()
        if self._guardian is not None:
            await self._guardian.close()

    async def _start(self, attempt: Attempt, *, warm: bool = False) -> Child:
        program, command = _program(attempt), _command(attempt)
        if self._access.concerns(command):
            program = await asyncio.to_thread(self._access.admit, program, command)
        if warm:
            if not can_wait(program):
                raise NotWarm
            program = gated(program, command.warm)
        capture = Capture(attempt.output, head=self._head, tail=self._tail)
        return await self._living_guardian().spawn(program, capture)

    async def _end_of(self, child: Child, attempt: Attempt) -> int:
        """Wait until no process of the child is left. Being cancelled speeds this up, never skips it."""
        self._running[attempt] = child
        if attempt in self._paused:
            child.pause(resume=False)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not child.exit.done():
                try:
                    await asyncio.wait([child.exit])
                except asyncio.CancelledError as error:
                    cancelled = error
                    child.stop(attempt.grace)
        finally:
            child.pipes.close()
            del self._running[attempt]
            self._paused.discard(attempt)
        if cancelled is not None:
            child.exit.exception()  # seen: how it ended no longer matters
            raise cancelled
        return child.exit.result()

    def _living_guardian(self) -> GuardianProcess:
        if self._guardian is None or not self._guardian.alive:
            self._guardian = GuardianProcess(self._open_files, self._until)
        return self._guardian


def _command(attempt: Attempt) -> Command:
    run = attempt.job.definition.run
    assert isinstance(run, Command)
    return run


def _program(attempt: Attempt) -> Program:
    command = _command(attempt)
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
    return Program(
        argv=_argv(command),
        env=inherited | command.env | ours,
        cwd=command.cwd,
        stdin=command.stdin,
        marks=[f"{name}={ours[name]}" for name in ("MAINSPRING_TASK_ID", "MAINSPRING_ATTEMPT")],
        limits=msgspec.to_builtins(command.limits),
    )


def _argv(command: Command) -> list[str]:
    if command.python:
        return [sys.executable, *command.argv]
    if command.shell:
        return ["/bin/sh", "-c", command.argv[0], "sh", *command.argv[1:]]
    return list(command.argv)


def _raise_open_files() -> int:
    """Make room for a thousand commands. Returns the limit as it was: commands get that one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft
