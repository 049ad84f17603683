"""Endings: what an attempt is reported to have come to."""

from __future__ import annotations

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.agent.run import endings
from mainspring.model.messages import Armed
from mainspring.model.secrets.references import SecretReference
from mainspring.model.secrets.values import SecretValues
from mainspring.model.tasks.jobs import Command, Definition, Job


def test_no_error_that_ends_an_attempt_tells_its_secrets() -> None:
    definition = Definition(Command(("true",), env={"TOKEN": SecretReference("token")}))
    attempt = Attempt(Armed(1, 10, 1, 1, 0.0, "{}"), Job(1, "job", 1, 1, definition), reports=None)  # type: ignore[arg-type]
    attempt.secrets = SecretValues({"token": "hunter2-hunter2"}, {})
    for ending in (
        endings.raised(attempt, AttemptFailed("http", "HTTP 403 no hunter2-hunter2 here"), 1.0),
        endings.executor_error(attempt, OSError("cannot run with hunter2-hunter2"), 1.0),
    ):
        assert ending.error is not None
        assert "***" in ending.error
        assert "hunter2" not in ending.error
