"""Skew: the warning about a machine whose clock is wrong. Tasks fire on the database's time all the same.

Next: server/agents/connection.py
"""

from __future__ import annotations

DEFAULT_LIMIT = 1.0  # seconds


def skew_warning(whose: str, skew: float, limit: float) -> str | None:
    """The warning, if a clock is off by more than the limit."""
    if abs(skew) <= limit:
        return None
    way = "ahead of" if skew > 0 else "behind"
    return (
        f"the clock of {whose} is {abs(skew):.1f} s {way} the database's; "
        "tasks fire on the database's time, but set it right"
    )
