"""Prewarm: start a Python interpreter before the instant; it imports modules and waits on its start pipe.

Starting one takes longer than most scripts may be late; importing what they need takes longer still. Any error before
the instant is ignored: the script is then started at its instant, and meets the error itself.
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

from mainspring.agent.attempt import AttemptFailed, Exhausted
from mainspring.agent.executors.process import Child, GuardianLost
from mainspring.agent.executors.program import Program

AHEAD = 1.0  # seconds before the instant at which the interpreter is started
SOON = 0.3  # seconds: a shorter lead is not worth it
MOST = 32  # interpreters that wait at the same time: more would compete for the machine
ENOUGH_FILES = 32  # open at the same time, to load what leads to the start pipe

DIRECTORY = str(Path(__file__).parent / "warm")


class CannotPrewarm(Exception):
    """The interpreter might not find its start pipe, and would run its script before its time."""


def prewarmed(program: Program, modules: tuple[str, ...]) -> Program:
    """The same program, as one that imports `modules` and waits on its start pipe."""
    is_readable = program.identity is None or _is_readable_by_all(DIRECTORY)
    if not is_readable or program.limits.get("files", ENOUGH_FILES) < ENOUGH_FILES:
        raise CannotPrewarm
    path = program.env.get("PYTHONPATH")
    ours = {
        "PYTHONPATH": os.pathsep.join([DIRECTORY, path]) if path else DIRECTORY,
        "MAINSPRING_WARM": " ".join(modules),
    }
    return replace(program, env=program.env | ours, prewarmed=True)


@cache
def _is_readable_by_all(directory: str) -> bool:
    path = Path(directory)
    return all(place.stat().st_mode & 0o005 == 0o005 for place in (path, *path.parents))


class Prewarm:
    """One interpreter, from before it is started until it is taken or discarded."""

    def __init__(self, waiting: set[Prewarm], start: Callable[[], Coroutine[Any, Any, Child]], lead: float) -> None:
        self._waiting = waiting  # those whose interpreter is started
        self._start = start
        self._task: asyncio.Task[Child] | None = None
        self._timer = asyncio.get_running_loop().call_later(max(0.0, lead - AHEAD), self._begin)

    def _begin(self) -> None:
        if len(self._waiting) < MOST:
            self._waiting.add(self)
            self._task = asyncio.create_task(self._start())

    async def take(self) -> Child | None:
        """Let the interpreter run its script now. None if there is none that waits."""
        self._timer.cancel()
        if self._task is None:
            return None
        try:
            child = await self._task
        except (AttemptFailed, Exhausted, GuardianLost, CannotPrewarm, OSError):
            self.discard()
            return None
        except asyncio.CancelledError:
            self.discard()
            raise
        if child.exit.done() or not child.pipes.start():
            self.discard()
            return None
        self._task = None
        self._waiting.discard(self)
        return child

    def discard(self) -> None:
        """Kill the interpreter, started or not. One that was taken is left alone."""
        self._timer.cancel()
        self._waiting.discard(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            task.add_done_callback(_discard_started)


def _discard_started(started: asyncio.Task[Child]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().discard()
