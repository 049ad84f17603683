"""What a handler can say about its own attempt, by raising it or by returning it.

    raise mainspring.RetryAfter("30s")     this attempt failed; try again then
    raise mainspring.Snooze("5m")          not now: run again then, this attempt does not count
    raise mainspring.CancelTask("gone")    end the task as cancelled
    raise mainspring.Fail("bad input")     end the task as failed, whatever attempts remain

Next: agent/run/attempt.py
"""

from __future__ import annotations

from mainspring.model.words.durations import Duration, seconds


class Control(Exception):
    """Base of the four; not an error of the handler."""


class RetryAfter(Control):
    def __init__(self, delay: Duration, message: str = "the handler asked to be tried again") -> None:
        super().__init__(message)
        self.delay = seconds(delay, field="delay")


class Snooze(Control):
    def __init__(self, delay: Duration) -> None:
        super().__init__("snoozed")
        self.delay = seconds(delay, field="delay")


class CancelTask(Control):
    def __init__(self, message: str = "the handler cancelled its task") -> None:
        super().__init__(message)


class Fail(Control):
    def __init__(self, message: str = "the handler failed for good") -> None:
        super().__init__(message)
