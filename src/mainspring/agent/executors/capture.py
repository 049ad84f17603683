"""What is kept of a command's output: the head as it comes, the tail at the end, bytes as they are.

Pure: it is told what came and when to flush. Memory is bounded by the tail, however much comes.
Next: agent/executors/pipes.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

REMARK, STDOUT, STDERR = 0, 1, 2

HEAD = 1 << 20
TAIL = 1 << 20
PIECE = 64 << 10  # the largest that is emitted
PIECES = 4096  # of the tail: bounds its overhead when two streams alternate in tiny writes
LAST_WORDS = 2048  # of stderr, for the message of a failure

Emit = Callable[[int, bytes], None]


class Capture:
    """Emits `head` bytes as they come, then on close a remark and the last `tail` bytes."""

    def __init__(self, emit: Emit, *, head: int = HEAD, tail: int = TAIL) -> None:
        self._emit = emit
        self._head_left = head
        self._tail_limit = tail
        self._tail: deque[tuple[int, bytearray]] = deque()
        self._tail_size = 0
        self._left_out = 0
        self._waiting = {STDOUT: bytearray(), STDERR: bytearray()}
        self.last_words = b""

    def write(self, stream: int, data: bytes) -> None:
        """Take what came. Small pieces wait for more, until flushed."""
        if stream == STDERR:
            self.last_words = (self.last_words + data)[-LAST_WORDS:]
        waiting = self._waiting[stream]
        waiting += data
        if len(waiting) >= PIECE:
            self._pass_on(stream)

    def flush(self) -> None:
        for stream in self._waiting:
            self._pass_on(stream)

    def close(self) -> None:
        self.flush()
        if self._left_out:
            self._emit(REMARK, f"… {self._left_out:,} bytes left out …".encode())
        for stream, data in self._tail:
            for piece in cut(bytes(data)):
                self._emit(stream, piece)
        self._tail.clear()

    def _pass_on(self, stream: int) -> None:
        data = bytes(self._waiting[stream])
        self._waiting[stream].clear()
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        for piece in cut(head):
            self._emit(stream, piece)
        if rest:
            self._keep(stream, rest)

    def _keep(self, stream: int, data: bytes) -> None:
        if self._tail and self._tail[-1][0] == stream and len(self._tail[-1][1]) + len(data) <= PIECE:
            self._tail[-1][1].extend(data)
        else:
            self._tail.append((stream, bytearray(data)))
        self._tail_size += len(data)
        while self._tail and (self._tail_size > self._tail_limit or len(self._tail) > PIECES):
            oldest = self._tail[0][1]
            excess = len(oldest) if len(self._tail) > PIECES else self._tail_size - self._tail_limit
            dropped = min(excess, len(oldest))
            del oldest[:dropped]
            if not oldest:
                self._tail.popleft()
            self._tail_size -= dropped
            self._left_out += dropped


def cut(data: bytes) -> Iterator[bytes]:
    """Pieces that may be emitted."""
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
