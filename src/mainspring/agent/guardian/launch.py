"""Launch: how the guardian starts a program: as which user, under which limits, with which descriptors.

A start without limits runs no Python between fork and exec, and is a vfork. Python there is safe, because the guardian
has one thread.
Next: agent/guardian/marks.py
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

CPU_WARNING = 2  # seconds from SIGXCPU, which a program may handle, to SIGKILL
START_PIPE = "MAINSPRING_START_PIPE"  # the descriptor that a prewarmed interpreter waits on


def launch(program: dict[str, Any], stdout: int, stderr: int, start_pipe: int | None) -> subprocess.Popen[bytes]:
    """Start it in a new session. Text for stdin goes through a file, so that a command that does not read it blocks
    nothing. Raises OSError, ValueError or SubprocessError."""
    stdin: str | None = program["stdin"]
    env: dict[str, str] = program["env"]
    options: dict[str, Any] = {}
    if program["limits"]:
        options["preexec_fn"] = _limiter(program["limits"])
    if program["identity"] is not None:
        user, options["group"], options["extra_groups"] = program["identity"]
        options["user"] = user
        for stream in (stdout, stderr):
            os.fchown(stream, user, -1)  # so that it can open /dev/stdout
    if start_pipe is not None:
        env = {**env, START_PIPE: str(start_pipe)}
        options["pass_fds"] = (start_pipe,)
    with tempfile.TemporaryFile() if stdin is not None else open(os.devnull, "rb") as source:
        if stdin is not None:
            source.write(stdin.encode("utf-8", "surrogateescape"))
            source.seek(0)
        return subprocess.Popen(
            program["argv"],
            executable=program["executable"],
            env=env,
            cwd=program["cwd"],
            stdin=source,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            **options,
        )


def _limiter(limits: dict[str, float]) -> Callable[[], None]:
    """A function that sets the limits in the new process. Memory comes last: setting the others may need some."""
    wanted: list[tuple[int, int, int]] = []
    if "files" in limits:
        wanted.append(_capped(resource.RLIMIT_NOFILE, int(limits["files"]), 0))
    if "cpu" in limits:
        wanted.append(_capped(resource.RLIMIT_CPU, math.ceil(limits["cpu"]), CPU_WARNING))
    if "memory" in limits:
        wanted.append(_capped(resource.RLIMIT_AS, int(limits["memory"]), 0))

    def limit() -> None:
        for kind, soft, hard in wanted:
            resource.setrlimit(kind, (soft, hard))

    return limit


def _capped(kind: int, soft: int, more: int) -> tuple[int, int, int]:
    """A limit above the guardian's own is capped to it."""
    own = resource.getrlimit(kind)[1]
    if own == resource.RLIM_INFINITY:
        return kind, soft, soft + more
    return kind, min(soft, own), min(soft + more, own)
