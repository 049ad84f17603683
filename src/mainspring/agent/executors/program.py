"""Programs: argv, variables and marks of what is started for an attempt.

Next: agent/executors/process.py
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

import msgspec

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.agent.executors.process import Program
from mainspring.model.tasks.jobs import Command

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
LONGEST_VARIABLE = 128 << 10  # Linux: the name, the value, "=" and the NUL at the end


def program_of(attempt: Attempt, command: Command) -> Program:
    """What is started for `command` on behalf of the attempt."""
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
