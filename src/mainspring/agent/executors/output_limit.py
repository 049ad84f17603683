"""What is kept of a daemon's output: all of it as it comes, but no faster than a sustained rate.

Pure: it is told what came, when to flush, and what time it is. The server keeps the newest of it.
Next: agent/executors/pipes.py
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.agent.executors.capture import REMARK, Capture, Emit, cut

RATE = 256 << 10  # bytes a second
BURST = 1 << 20  # that may come at once after a quiet time


class Flow(Capture):
    """Emits what comes; what is beyond the rate is left out, with a remark when there is room again."""

    def __init__(self, emit: Emit, clock: Callable[[], float], *, rate: int = RATE, burst: int = BURST) -> None:
        super().__init__(emit)
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._room = float(burst)
        self._at = clock()

    def close(self) -> None:
        self.flush()
        self._tell_left_out()

    def _pass_on(self, stream: int) -> None:
        data = bytes(self._waiting[stream])
        self._waiting[stream].clear()
        if not data:
            return
        now = self._clock()
        self._room = min(self._burst, self._room + (now - self._at) * self._rate)
        self._at = now
        if len(data) > self._room:
            self._left_out += len(data)
            return
        self._tell_left_out()
        self._room -= len(data)
        for piece in cut(data):
            self._emit(stream, piece)

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._emit(REMARK, f"… {self._left_out:,} bytes left out: too fast …".encode())
            self._left_out = 0
