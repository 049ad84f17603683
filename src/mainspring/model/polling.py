"""The pace of a polling loop: quicker while there is work, slower when there is none.

Next: loops.py
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """interval × 0.8 when busy, × 1.2 after five empty polls; between a half and four times the base."""

    base: float
    interval: float = field(init=False)
    empty: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.interval = self.base

    def after(self, found: int) -> float:
        """Tell what a poll found; returns the interval until the next."""
        if found:
            self.empty = 0
            self.interval = max(self.interval * 0.8, self.base / 2)
        else:
            self.empty += 1
            if self.empty >= 5:
                self.empty = 0
                self.interval = min(self.interval * 1.2, self.base * 4)
        return self.interval
