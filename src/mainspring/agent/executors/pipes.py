"""Pipes: a command's stdout and stderr, read as it writes, so that it never blocks on the agent.

A prewarmed interpreter has a third, its start pipe, on which it waits for its instant. What it prints before that
stays in the pipes.
Next: agent/executors/process.py
"""

from __future__ import annotations

import asyncio
import os

from mainspring.agent.executors.capture import STDERR, STDOUT, Capture

READ = 64 << 10  # what a pipe holds
FLUSH_AFTER = 0.05  # seconds that a small piece waits for more: no chunk per byte
LAST_READS = 64  # at the end: more than a pipe can hold, yet a survivor that never stops printing is cut off


class Pipes:
    """Reads until closed. The constructor raises OSError when descriptors run out."""

    def __init__(self, capture: Capture, *, prewarmed: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.capture = capture
        self._flush: asyncio.TimerHandle | None = None
        (stdout, stdout_end), (stderr, stderr_end), *start = _open_pipes(3 if prewarmed else 2)
        self._open = {STDOUT: stdout, STDERR: stderr}  # the ends that the agent reads
        self.command_ends = [stdout_end, stderr_end, *(end for end, _ in start)]  # closed by their receiver
        self._start_pipe = start[0][1] if start else None
        for descriptor in self._open.values():
            os.set_blocking(descriptor, False)
        if not prewarmed:
            self._begin()

    def _begin(self) -> None:
        for stream, descriptor in self._open.items():
            self._loop.add_reader(descriptor, self._read, stream)

    def start(self) -> bool:
        """Let a prewarmed command run, and read what it has printed so far; False if it has exited."""
        assert self._start_pipe is not None
        try:
            os.write(self._start_pipe, b"!")
        except BrokenPipeError:
            return False
        self._close_start_pipe()
        self._begin()
        return True

    def discard(self) -> None:
        """Close without reading. A command that waits on its start pipe exits by itself."""
        self._close_start_pipe()
        for stream in list(self._open):
            self._end(stream)

    def _close_start_pipe(self) -> None:
        if self._start_pipe is not None:
            os.close(self._start_pipe)
            self._start_pipe = None

    def close(self) -> None:
        """Read what is left in the pipes, once no process of the command is left, and emit it."""
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
        for reading, writing in pipes:
            os.close(reading)
            os.close(writing)
        raise
    return pipes
