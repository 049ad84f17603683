"""What every executor is: it prepares an attempt when it is armed, and runs it at its instant.

`run` returns the result as JSON. It raises AttemptFailed, or a `Control` of the handler's.
Being cancelled means: stop what runs, wait until it is gone, then let CancelledError out.
Next: agent/executors/python.py, agent/executors/command.py, agent/executors/http.py
"""

from __future__ import annotations

from typing import Protocol

from mainspring.agent.run.attempt import Attempt


class AttemptFailed(Exception):
    """The attempt came to nothing; `code` names the cause, `labels` are for retry_on and abort_on."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        labels: tuple[str, ...] = (),
        final: bool = False,
        retry_after: float | None = None,  # seconds, in place of those of the job's policy
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.labels = (code, *labels)
        self.final = final
        self.retry_after = retry_after


class Executor(Protocol):
    def prepare(self, attempt: Attempt) -> None:
        """Do now what need not wait for the instant, which is `attempt.lead` seconds away."""

    async def run(self, attempt: Attempt) -> str | None:
        """Run the attempt to its end."""

    def forget(self, attempt: Attempt) -> None:
        """Undo what was prepared for an attempt that will not run, or that is over."""
        return

    def pause(self, attempt: Attempt, *, resume: bool) -> bool:
        """Stop a running attempt where it is, or let it go on; False if that cannot be done."""
        return False
