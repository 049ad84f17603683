"""Warming: a Python interpreter that is started before the instant, and waits at a gate until then.

Starting one takes longer than most scripts may be late; importing what they need takes longer still. Whatever
goes wrong before the instant is forgotten: the script is then started afresh, and meets it itself.
Next: agent/executors/warm/sitecustomize.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mainspring.agent.attempt import AttemptFailed
from mainspring.agent.executors.process import Child, GuardianLost, Program

AHEAD = 1.0  # seconds before the instant at which the interpreter is started
SOON = 0.3  # seconds: for less it is not worth it
MOST = 32  # interpreters that wait at the same time: beyond that they would take the machine from each other

ENOUGH_FILES = 32  # open at the same time, to load what leads to the gate

DIRECTORY = str(Path(__file__).parent / "warm")

Start = Callable[[], Coroutine[Any, Any, Child]]


def can_wait(program: Program) -> bool:
    """Whether the interpreter is sure to find its gate. One that does not would run its script before its time."""
    if program.identity is not None and not _is_readable_by_all(DIRECTORY):
        return False
    return program.limits.get("files", ENOUGH_FILES) >= ENOUGH_FILES


@cache
def _is_readable_by_all(directory: str) -> bool:
    path = Path(directory)
    return all(place.stat().st_mode & 0o005 == 0o005 for place in (path, *path.parents))


def gated(program: Program, modules: tuple[str, ...]) -> Program:
    """The same program, as one that imports `modules` and waits at its gate."""
    path = program.env.get("PYTHONPATH")
    ours = {
        "PYTHONPATH": os.pathsep.join([DIRECTORY, path]) if path else DIRECTORY,
        "MAINSPRING_WARM": " ".join(modules),
    }
    return replace(program, env=program.env | ours, gated=True)


class NotWarm(Exception):
    """The script has to be started at its instant."""


class Warming:
    """One interpreter, from before it is started until it is taken or discarded."""

    def __init__(self, waiting: set[Warming], start: Start, lead: float) -> None:
        self._waiting = waiting  # those whose interpreter is started
        self._start = start
        self._task: asyncio.Task[Child] | None = None
        self._timer = asyncio.get_running_loop().call_later(max(0.0, lead - AHEAD), self._begin)

    def _begin(self) -> None:
        if len(self._waiting) < MOST:
            self._waiting.add(self)
            self._task = asyncio.create_task(self._start())

    async def take(self) -> Child | None:
        """Let it run now. None if there is none that waits."""
        self._timer.cancel()
        if self._task is None:
            return None
        try:
            child = await self._task
        except (AttemptFailed, GuardianLost, NotWarm, OSError):
            self.discard()
            return None
        except asyncio.CancelledError:
            self.discard()
            raise
        if child.exit.done() or not child.pipes.open_gate():
            self.discard()
            return None
        self._task = None
        self._waiting.discard(self)
        return child

    def discard(self) -> None:
        """End it without a trace, at whatever point it is. One that was taken stays."""
        self._timer.cancel()
        self._waiting.discard(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            task.add_done_callback(_end)


def _end(started: asyncio.Task[Child]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().discard()
