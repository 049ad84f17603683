"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring.agent.attempt import Attempt
from mainspring.agent.executors.command import CommandExecutor
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Command, Definition, Job
from tests.agent.commands import Make, Recording


@pytest.fixture
async def executor() -> AsyncIterator[CommandExecutor]:
    executor = CommandExecutor()
    yield executor
    await executor.close()


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.fixture
def attempt_of(recording: Recording) -> Make:
    def make(*argv: str, grace: float = 5.0, args: str = "{}", task: int = 42, **spec: object) -> Attempt:
        command = Command(argv, **spec)  # type: ignore[arg-type]
        job = Job(id=1, name=recording.job_name, version=1, pool=1, definition=Definition(command, grace=grace))
        armed = Armed(task=task, token=7, job=1, attempt=2, fire_at=1_790_000_000.25, args=args)
        return Attempt(armed, job, recording, "d1")

    return make
