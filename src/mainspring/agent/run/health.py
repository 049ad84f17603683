"""Health: asks a running daemon again and again whether it is well, and has it stopped when it is not.

A command that exits with 0, or a URL that answers with 2xx. What it finds is told when it changes.
Next: agent/run/runner.py
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.agent.executors.capture import REMARK
from mainspring.model.tasks.jobs import Health
from mainspring.wire.clock import boottime

SOON = 1.0  # seconds between questions until it is well for the first time
LONGEST_STATUS = 8192  # bytes of the first line of an answer


@runtime_checkable
class Checker(Protocol):
    """Runs the commands that ask (the executor of commands)."""

    async def check(self, attempt: Attempt, argv: tuple[str, ...]) -> str | None:
        """None if the command exits with 0, else what is wrong."""


@contextmanager
def watched(attempt: Attempt, checker: object, unwell: Callable[[Attempt], None]) -> Iterator[None]:
    """While a daemon with a health check runs, it is asked whether it is well."""
    health = attempt.job.definition.health
    if health is None or not attempt.armed.daemon:
        yield
        return
    watching = asyncio.create_task(watch(attempt, health, checker, unwell))
    try:
        yield
    finally:
        watching.cancel()


async def watch(attempt: Attempt, health: Health, checker: object, unwell: Callable[[Attempt], None]) -> None:
    """Ask until cancelled; `unwell` is called once, after too many failures in a row."""
    failures = 0
    is_well = False
    counts_from = boottime() + health.start + health.every
    while True:
        await asyncio.sleep(health.every if is_well or failures else min(health.every, SOON))
        if attempt.paused:
            continue  # it cannot answer, and whoever paused it knows
        wrong = await ask(attempt, health, checker)
        if attempt.paused:
            continue  # meanwhile
        if wrong is None:
            failures = 0
            if not is_well:
                is_well = True
                attempt.report_health(True)
        elif is_well or boottime() >= counts_from:
            failures += 1
            attempt.output(REMARK, f"health check failed ({failures} of {health.failures}): {wrong}\n".encode())
            if failures >= health.failures:
                attempt.report_health(False)
                unwell(attempt)
                return


async def ask(attempt: Attempt, health: Health, checker: object) -> str | None:
    """None if the attempt is well, else what is wrong."""
    try:
        async with asyncio.timeout(health.timeout):
            if health.url is not None:
                return await _get(health.url)
            if not isinstance(checker, Checker):
                return "this agent runs no commands"
            return await checker.check(attempt, health.argv)
    except TimeoutError:
        return f"no answer within {health.timeout:g} s"
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    except (AttemptFailed, UnicodeError) as error:  # the question cannot be put: a host such as a..b
        return str(error)


async def _get(url: str) -> str | None:
    """A plain GET; only the status of the answer counts."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if secure else 80),
        ssl=ssl.create_default_context() if secure else None,
        limit=LONGEST_STATUS,
    )
    try:
        host = parts.netloc.rpartition("@")[2]
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: mainspring\r\nConnection: close\r\n\r\n".encode()
        )
        status = await reader.readline()
    except ValueError:  # a line without an end
        return "no HTTP answer"
    finally:
        writer.transport.abort()
    words = status.decode("latin-1").split(None, 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        return "no HTTP answer"
    return None if words[1].startswith("2") and len(words[1]) == 3 else f"status {words[1]}"
