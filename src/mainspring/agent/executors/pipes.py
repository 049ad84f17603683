"""The two pipes that a command writes to, read as it writes, so that it never waits for us.

Next: agent/executors/process.py
"""

from __future__ import annotations

import asyncio
import os

from mainspring.agent.executors.capture import STDERR, STDOUT, Capture

READ = 64 << 10  # what a pipe holds
FLUSH_AFTER = 0.05  # seconds that a small piece waits for more: no chunk per byte
LAST_READS = 64  # at the end: more than a pipe can hold, yet a survivor that prints for ever is cut off


class Pipes:
    """Reads until closed. Opening them raises OSError when descriptors run out."""

    def __init__(self, capture: Capture) -> None:
        self._loop = asyncio.get_running_loop()
        self._capture = capture
        self._flush: asyncio.TimerHandle | None = None
        self._open: dict[int, int] = {}  # stream → the end that we read
        stdout, stdout_end = os.pipe()
        try:
            stderr, stderr_end = os.pipe()
        except OSError:
            os.close(stdout)
            os.close(stdout_end)
            raise
        self.command_ends = (stdout_end, stderr_end)  # whoever takes them closes them
        for stream, descriptor in ((STDOUT, stdout), (STDERR, stderr)):
            os.set_blocking(descriptor, False)
            self._open[stream] = descriptor
            self._loop.add_reader(descriptor, self._read, stream)

    def close(self) -> None:
        """Take what is left in the pipes, once no process of the command is, and emit the rest."""
        for stream in list(self._open):
            for _ in range(LAST_READS):
                if not self._read(stream):
                    break
            self._end(stream)
        if self._flush is not None:
            self._flush.cancel()
        self._capture.close()

    def _read(self, stream: int) -> bool:
        try:
            data = os.read(self._open[stream], READ)
        except BlockingIOError:
            return False
        if not data:
            self._end(stream)
            return False
        self._capture.write(stream, data)
        if self._flush is None:
            self._flush = self._loop.call_later(FLUSH_AFTER, self._flush_now)
        return True

    def _flush_now(self) -> None:
        self._flush = None
        self._capture.flush()

    def _end(self, stream: int) -> None:
        descriptor = self._open.pop(stream, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
