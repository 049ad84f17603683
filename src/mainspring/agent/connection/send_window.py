"""SendWindow: how many bytes of output and results may be in flight, by how long they take.

A heartbeat queues behind everything sent before it. On a slow line that must be little, or the lease expires while the
agent is sending; on a fast one it must not limit throughput. So the window starts small and follows the line.
Next: agent/connection/outbox.py
"""

from __future__ import annotations

FIRST, LEAST, MOST = 1 << 10, 1 << 9, 512 << 10  # bytes
SOON = 0.5  # seconds, beyond the round trip of a heartbeat, within which an arrival widens the window


class SendWindow:
    """Pure: the caller says how long a frame took."""

    def __init__(self) -> None:
        self.size = FIRST

    def arrived(self, size: int, seconds: float) -> None:
        """A frame of `size` bytes arrived after `seconds`."""
        if seconds > 2 * SOON:
            self.size = max(self.size // 2, LEAST)
        elif seconds < SOON and size >= self.size // 4:  # a small frame says nothing about large ones
            self.size = min(2 * self.size, MOST)
