"""Window: how many bytes of output and results may be under way at a time, by how long they take.

A heartbeat waits behind all that was sent before it. On a slow line that must be little, or the agent is taken for dead
while it talks; on a quick one it should not be felt. So it begins small, and follows what the line carries.
Next: agent/connection/connection.py
"""

from __future__ import annotations

FIRST, LEAST, MOST = 1 << 10, 1 << 9, 512 << 10  # bytes
SOON = 0.5  # seconds, beyond the round trip of a heartbeat: what comes within them makes room for more


class Window:
    """Pure: the caller says how long a frame took."""

    def __init__(self) -> None:
        self.size = FIRST

    def landed(self, size: int, seconds: float) -> None:
        """A frame of `size` bytes came to the other side after so many seconds."""
        if seconds > 2 * SOON:
            self.size = max(self.size // 2, LEAST)
        elif seconds < SOON and size >= self.size // 4:  # a small one tells nothing about large ones
            self.size = min(2 * self.size, MOST)
