"""Health: runs the health check of a daemon again and again, and has the daemon stopped when it fails too often.

The check is a command that exits with 0, or a URL that answers with 2xx. Reports a result when it changes.
Next: agent/run/endings.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from mainspring.agent.attempt import Attempt, AttemptFailed, Executor
from mainspring.agent.executors.capture import REMARK
from mainspring.model.tasks.jobs import Command, Health, Http, Run
from mainspring.wire.clock import boottime

SOON = 1.0  # seconds between checks until the first one passes


@runtime_checkable
class Checker(Protocol):
    """The executors of commands and of HTTP calls."""

    async def check(self, attempt: Attempt, health: Health) -> str | None:
        """None if the daemon is healthy, else what is wrong. May also raise OSError, AttemptFailed, UnicodeError."""


@contextmanager
def watched(
    attempt: Attempt, executors: Mapping[type[Run], Executor], unhealthy: Callable[[Attempt], None]
) -> Iterator[None]:
    """Check the attempt, if it is a daemon with a health check, as long as this is entered."""
    health = attempt.job.definition.health
    if health is None or not attempt.armed.daemon:
        yield
        return
    checker = executors.get(Command if health.url is None else Http)
    watching = asyncio.create_task(watch(attempt, health, checker, unhealthy))
    try:
        yield
    finally:
        watching.cancel()


async def watch(attempt: Attempt, health: Health, checker: object, unhealthy: Callable[[Attempt], None]) -> None:
    """Check until cancelled; calls `unhealthy` once, after too many failures in a row."""
    failures = 0
    is_healthy = False
    counts_from = boottime() + health.start + health.every
    while True:
        await asyncio.sleep(health.every if is_healthy or failures else min(health.every, SOON))
        if attempt.paused:
            continue  # it cannot answer
        wrong = await ask(attempt, health, checker)
        if attempt.paused:
            continue  # paused during the check
        if wrong is None:
            failures = 0
            if not is_healthy:
                is_healthy = True
                attempt.note(None, None, healthy=True)
        elif is_healthy or boottime() >= counts_from:
            failures += 1
            attempt.output(REMARK, f"health check failed ({failures} of {health.failures}): {wrong}\n".encode())
            if failures >= health.failures:
                attempt.note(None, None, healthy=False)
                unhealthy(attempt)
                return


async def ask(attempt: Attempt, health: Health, checker: object) -> str | None:
    """None if the daemon is healthy, else what is wrong."""
    if not isinstance(checker, Checker):
        return "this agent runs no commands" if health.url is None else "this agent makes no HTTP calls"
    try:
        async with asyncio.timeout(health.timeout):
            return await checker.check(attempt, health)
    except TimeoutError:
        return f"no answer within {health.timeout:g} s"
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    except (AttemptFailed, UnicodeError) as error:  # the check cannot be made: a host such as a..b
        return str(error)
