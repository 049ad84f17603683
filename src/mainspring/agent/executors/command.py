"""Commands: run a program, keep its output, leave no process of it behind.

A program gets its argv unchanged; the task's arguments come as JSON in MAINSPRING_ARGS, never in argv. With `shell`,
argv[0] is a script for /bin/sh, and the rest of argv is its $1, $2, ... With `python`, argv is a script for this
interpreter, which is started ahead of the instant.
Sends   output, through the attempt
Next:   agent/executors/program.py
"""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Callable, Collection
from contextlib import suppress

from mainspring.agent.attempt import EXHAUSTED, Attempt, AttemptFailed, Executor, Exhausted
from mainspring.agent.executors.capture import HEAD, TAIL, Capture, OutputLimit
from mainspring.agent.executors.command_policy import CommandPolicy
from mainspring.agent.executors.prewarm import SOON, Prewarm, prewarmed
from mainspring.agent.executors.process import Child, GuardianLost, GuardianProcess, LeaseExpired
from mainspring.agent.executors.program import Program, failure, not_startable, program_of
from mainspring.model.tasks.jobs import Command, Health
from mainspring.wire.clock import boottime

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
        allow_env: Collection[str] = (),
    ) -> None:
        self._head = head
        self._tail = tail
        self._policy = CommandPolicy(run_as, allow_commands, allow_env)
        self._open_files = _raise_open_files()
        self._guardian: GuardianProcess | None = None
        self._until: float | None = None
        self._running: dict[Attempt, Child] = {}
        self._prewarms: set[Prewarm] = set()

    def prepare(self, attempt: Attempt) -> None:
        """Start the guardian, so that the first command does not wait for it; schedule the start of a prewarmed
        interpreter."""
        with suppress(OSError):  # no descriptors: the run tries again
            self._living_guardian()
        if _command(attempt).python and attempt.lead > SOON:
            attempt.prepared = Prewarm(self._prewarms, lambda: self._start(attempt, prewarm=True), attempt.lead)

    def forget(self, attempt: Attempt) -> None:
        if attempt.prepared is not None:
            attempt.prepared.discard()

    async def run(self, attempt: Attempt) -> str | None:
        prewarm: Prewarm | None = attempt.prepared
        child = await prewarm.take() if prewarm is not None else None
        try:
            if child is None:
                child = await self._start(attempt)
            exit_code = await self._exit_of(child, attempt)
        except OSError as error:
            program = program_of(attempt, _command(attempt)) if child is None else child.program
            by_its_limit = error.errno == errno.ENOMEM and "memory" in program.limits  # then it would never start
            if error.errno in EXHAUSTED and not by_its_limit:
                raise Exhausted(f"cannot start {program.argv[0]!r}: {error.strerror}") from None
            raise not_startable(program, error) from None
        except GuardianLost as error:
            raise AttemptFailed("guardian_lost", str(error)) from None
        except LeaseExpired:
            raise AttemptFailed("lease_over", "killed, as its agent could not renew its lease in time") from None
        if exit_code:
            raise failure(exit_code, child.pipes.capture.stderr_tail, _command(attempt).limits)
        return '{"exit_code":0}'

    def pause(self, attempt: Attempt, *, resume: bool) -> bool:
        if attempt in self._running:  # else `_exit_of` looks
            self._running[attempt].pause(resume=resume)
        return True

    def hold_until(self, at: float) -> None:
        """The agent's lease holds until this boot time: no command outlives it, unless it is renewed."""
        self._until = at
        if self._guardian is not None and self._guardian.alive:
            self._guardian.hold_until(at)

    async def close(self) -> None:
        for prewarm in list(self._prewarms):
            prewarm.discard()
        if self._guardian is not None:
            await self._guardian.close()

    async def _start(self, attempt: Attempt, *, prewarm: bool = False) -> Child:
        command = _command(attempt)
        program = await self._admitted(program_of(attempt, command), command)
        if prewarm:
            # Modules are code as well: an agent that may run only certain scripts imports none ahead of them.
            program = prewarmed(program, command.warm if self._policy.allows_interpreter() else ())
        return await self._living_guardian().spawn(program, self._capture(attempt))

    async def _admitted(self, program: Program, command: Command) -> Program:
        if not self._policy.concerns(command):
            return program
        try:
            return await asyncio.to_thread(self._policy.admit, program, command)
        except RuntimeError as error:  # the system starts no more threads
            raise Exhausted(str(error)) from None

    def _capture(self, attempt: Attempt) -> Capture:
        if attempt.armed.daemon:
            return OutputLimit(attempt.output, boottime, secrets=attempt.secrets, on_output=attempt.heartbeat)
        return Capture(
            attempt.output, head=self._head, tail=self._tail, secrets=attempt.secrets, on_output=attempt.heartbeat
        )

    async def check(self, attempt: Attempt, health: Health) -> str | None:
        """A health check: run a command with the daemon's variables, in its directory; None if it exits with 0."""
        run, argv = attempt.job.definition.run, health.argv
        asked = Command(argv, cwd=run.cwd, env=run.env, user=run.user) if isinstance(run, Command) else Command(argv)
        program = program_of(attempt, asked)
        capture = Capture(lambda _stream, _data: None, head=0, tail=0, secrets=attempt.secrets)
        try:
            child = await self._living_guardian().spawn(await self._admitted(program, asked), capture)
            exit_code = await _wait(child, lambda: 0.0)
        except (OSError, GuardianLost, LeaseExpired, AttemptFailed, Exhausted) as error:
            return f"{argv[0]} could not be run: {error}"
        return failure(exit_code, capture.stderr_tail, asked.limits).message if exit_code else None

    async def _exit_of(self, child: Child, attempt: Attempt) -> int:
        self._running[attempt] = child
        if attempt.paused:
            child.pause(resume=False)
        try:
            return await _wait(child, lambda: attempt.grace)
        finally:
            del self._running[attempt]

    def _living_guardian(self) -> GuardianProcess:
        if self._guardian is None or not self._guardian.alive:
            self._guardian = GuardianProcess(self._open_files, self._until)
        return self._guardian


async def _wait(child: Child, grace: Callable[[], float]) -> int:
    """Wait until no process of the child is left. Cancelling stops the child; it does not skip the wait."""
    cancelled: asyncio.CancelledError | None = None
    try:
        while not child.exit.done():
            try:
                await asyncio.wait([child.exit])
            except asyncio.CancelledError as error:
                cancelled = error
                child.stop(grace())
    finally:
        child.pipes.close()
    if cancelled is not None:
        child.exit.exception()  # retrieved, so that asyncio does not log it
        raise cancelled
    return child.exit.result()


def _command(attempt: Attempt) -> Command:
    run = attempt.job.definition.run
    assert isinstance(run, Command)
    return run


def _raise_open_files() -> int:
    """Make room for a thousand commands. Returns the limit as it was: commands inherit that one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft
