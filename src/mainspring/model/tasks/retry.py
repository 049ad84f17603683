"""Retry: whether another attempt follows a failed one, and after how long. The caller gives the random number.

Next: model/tasks/verdict.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Literal

from msgspec import Struct

Backoff = Literal["fixed", "linear", "exponential", "jitter"]

MAX_RETRIES = 1000
MAX_DELAYS = 100

# Default retries by the kind of job. Handlers are written to run again, and a call carries an idempotency key; a
# command may not be safe to repeat, and cron would not repeat it either.
DEFAULT_RETRIES = {"python": 3, "http": 3, "command": 0}


class Retry(Struct, frozen=True, omit_defaults=True):
    """`retries` further attempts; `delays`, if given, wins over `backoff`.

    `retry_on` and `abort_on` hold labels of a failure: an exception's class name (bare or with its
    module, base classes count), an exit code as text, or an error code such as `timeout` or `lost`.
    """

    retries: int = 3
    backoff: Backoff = "jitter"
    delay: float = 1.0
    max_delay: float = 3600.0
    delays: tuple[float, ...] = ()
    retry_on: tuple[str, ...] = ()
    abort_on: tuple[str, ...] = ()

    def allows(self, attempt: int, labels: Sequence[str], retries: int | None = None) -> bool:
        """Whether another attempt may follow attempt number `attempt` (from 1), which failed with `labels`.

        `retries` are those of the task itself, if it has any.
        """
        if attempt > (self.retries if retries is None else retries):
            return False
        if any(label in self.abort_on for label in labels):
            return False
        return not self.retry_on or any(label in self.retry_on for label in labels)

    def delay_after(self, attempt: int, random: float) -> float:
        """Seconds to wait after failed attempt number `attempt`; `random` is in [0, 1)."""
        attempt = max(1, attempt)  # an agent reported it
        if self.delays:
            return self.delays[min(attempt, len(self.delays)) - 1]
        match self.backoff:
            case "fixed":
                wait = self.delay
            case "linear":
                wait = self.delay * attempt
            case "exponential" | "jitter":
                wait = self.delay * 2.0 ** min(attempt - 1, 60)
        wait = min(wait, self.max_delay)
        # Half of the wait is fixed, so that a retry never comes at once; half is random.
        return wait * (0.5 + random / 2) if self.backoff == "jitter" else wait


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait: a number, or an instant by the server's own clock."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, wait.total_seconds())
