"""Failures of commands: why one could not be started, or what it ended with, as people will read it.

Next: agent/run/endings.py
"""

from __future__ import annotations

import errno
import re
import signal

from mainspring.agent.executors.base import AttemptFailed
from mainspring.agent.executors.process import Program
from mainspring.model.limits.process_limits import in_words
from mainspring.model.tasks.jobs import NO_LIMITS, ProcessLimits

LONGEST_MESSAGE = 500
HOPELESS = {errno.ENOENT, errno.EACCES, errno.E2BIG, errno.ENOTDIR, errno.ENOEXEC, 0}  # 0: not even tried
OF_A_SHELL = 128  # more than the number of the signal that killed what it ran

_OUT_OF_MEMORY = re.compile(
    rb"MemoryError|bad_alloc|OutOfMemory|(cannot allocate|out of|exhausted) .{0,20}memory", re.I
)


def not_startable(program: Program, error: OSError) -> AttemptFailed:
    in_directory = program.cwd is not None and error.filename == program.cwd
    what = f"a command in the directory {program.cwd!r}" if in_directory else repr(program.argv[0])
    return AttemptFailed("not_startable", f"cannot start {what}: {error.strerror}", final=error.errno in HOPELESS)


def failure(exit_code: int, last_words: bytes, limits: ProcessLimits) -> AttemptFailed:
    text = last_words.decode(errors="replace").replace("\0", "").strip()[-LONGEST_MESSAGE:]
    last = text.rpartition("\n")[2].strip()  # most programs say at last what went wrong
    said = "" if not text else f": {last}" if last == text else f": {last}\n\n{text}"
    if exit_code > 0:
        code, message, label = "exit_code", f"exit code {exit_code}", str(exit_code)
    else:
        label = _signal_name(-exit_code)
        code, message = "signal", f"killed by {label}"
    if limits.cpu is not None and exit_code in (-signal.SIGXCPU, OF_A_SHELL + signal.SIGXCPU):
        reason = f"used up its CPU time of {limits.cpu:g} s ({message}){said}"
        return AttemptFailed("cpu_limit", reason, labels=(code, label))
    if limits.memory is not None and _OUT_OF_MEMORY.search(last_words):
        reason = f"ran out of memory, of which it may have {in_words(limits)['memory']} ({message}){said}"
        return AttemptFailed("memory_limit", reason, labels=(code, label))
    if exit_code < 0 and limits != NO_LIMITS:
        told = ", ".join(f"{name} {limit}" for name, limit in in_words(limits).items())
        message += f" (its limits: {told})"
    return AttemptFailed(code, f"{message}{said}", labels=(label,))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
