"""Attempt: whose ending can wait."""

from __future__ import annotations

import pytest

from mainspring.agent.attempt import AHEAD, Attempt
from mainspring.model.limits.limits import Limits
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Definition, Job, Python

PLAIN = Definition(Python("job"))


@pytest.mark.parametrize(
    ("definition", "lead", "expected"),
    [
        (PLAIN, 5.0, True),
        (PLAIN, AHEAD / 2, False),  # it was due when it came: its submitter may wait for it
        (PLAIN, -1.0, False),
        (Definition(Python("job"), gate=Limits(max_running=1)), 5.0, False),  # the next one waits for its slot
        (Definition(Python("job"), delivery="at_most_once"), 5.0, False),  # until it is recorded a crash is a doubt
        (Definition(Python("job"), delivery="effectively_once"), 5.0, False),
    ],
)
def test_only_a_plain_attempt_that_time_alone_starts_was_armed_ahead(
    definition: Definition, lead: float, expected: bool
) -> None:
    attempt = Attempt(Armed(1, 10, 1, 1, 0.0, "{}"), Job(1, "job", 1, 1, definition), reports=None)  # type: ignore[arg-type]
    attempt.lead = lead
    assert attempt.ending_can_wait is expected
