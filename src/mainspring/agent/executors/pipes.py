"""The two pipes that a command writes to, read as it writes, so that it never waits for us.

One that waits at a gate has a third, on which it waits; what it prints before stays in the pipes until then.

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

    def __init__(self, capture: Capture, *, gated: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.capture = capture
        self._flush: asyncio.TimerHandle | None = None
        pipes = _open_pipes(3 if gated else 2)
        (stdout, stdout_end), (stderr, stderr_end), *gates = pipes
        self._open = {STDOUT: stdout, STDERR: stderr}  # the ends that we read
        self.command_ends = [stdout_end, stderr_end, *(end for end, _ in gates)]  # whoever takes them closes them
        self._entrance = gates[0][1] if gates else None
        for descriptor in self._open.values():
            os.set_blocking(descriptor, False)
        if not gated:
            self._begin()

    def _begin(self) -> None:
        for stream, descriptor in self._open.items():
            self._loop.add_reader(descriptor, self._read, stream)

    def open_gate(self) -> bool:
        """Let the command go on, and read what it has printed so far; False if it ended before."""
        assert self._entrance is not None
        try:
            os.write(self._entrance, b"!")
        except BrokenPipeError:
            return False
        self._close_gate()
        self._begin()
        return True

    def discard(self) -> None:
        """Close without reading. A command that waits at the gate ends by itself."""
        self._close_gate()
        for stream in list(self._open):
            self._end(stream)

    def _close_gate(self) -> None:
        if self._entrance is not None:
            os.close(self._entrance)
            self._entrance = None

    def close(self) -> None:
        """Take what is left in the pipes, once no process of the command is, and emit the rest."""
        for stream in list(self._open):
            for _ in range(LAST_READS):
                if not self._read(stream):
                    break
            self._end(stream)
        if self._flush is not None:
            self._flush.cancel()
        self.capture.close()

    def _read(self, stream: int) -> bool:
        try:
            data = os.read(self._open[stream], READ)
        except BlockingIOError:
            return False
        if not data:
            self._end(stream)
            return False
        self.capture.write(stream, data)
        if self._flush is None:
            self._flush = self._loop.call_later(FLUSH_AFTER, self._flush_now)
        return True

    def _flush_now(self) -> None:
        self._flush = None
        self.capture.flush()

    def _end(self, stream: int) -> None:
        descriptor = self._open.pop(stream, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def _open_pipes(count: int) -> list[tuple[int, int]]:
    """All of them, or none."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())
    except OSError:
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])
        raise
    return pipes
