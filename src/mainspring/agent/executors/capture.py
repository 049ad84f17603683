"""Capture: what the agent keeps of a command's output, as bytes.

Capture keeps the head as it is written and the tail at the end. OutputLimit, for daemons, keeps everything up to a
sustained rate; the server drops the oldest. Pure: the caller passes output in and says when to flush. Memory is
bounded, however much a command prints.
Next: agent/executors/pipes.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mainspring.model.secrets.values import NO_SECRETS, SecretValues

REMARK, STDOUT, STDERR = 0, 1, 2  # streams; a remark is written by the agent

HEAD = 1 << 20
TAIL = 1 << 20
PIECE = 64 << 10  # the largest that is emitted
PIECES = 4096  # of the tail: bounds its overhead when two streams alternate in tiny writes
STDERR_TAIL = 2048  # bytes, for the message of a failure
RATE = 256 << 10  # bytes a second
BURST = 1 << 20  # bytes allowed at once after a quiet time

Emit = Callable[[int, bytes], None]


class Capture:
    """Emits the first `head` bytes as they are written; on close a remark and the last `tail` bytes.

    The values of `secrets` are hidden first, so that no cut leaves a part of one. `on_output` is called for all that is
    written, kept or not.
    """

    def __init__(
        self,
        emit: Emit,
        *,
        head: int = HEAD,
        tail: int = TAIL,
        secrets: SecretValues = NO_SECRETS,
        on_output: Callable[[], None] = lambda: None,
    ) -> None:
        self._emit = emit
        self._on_output = on_output
        self._maskers = {stream: secrets.masker() for stream in (STDOUT, STDERR)}
        self._head_left = head
        self._tail_limit = tail
        self._tail: deque[tuple[int, bytearray]] = deque()
        self._tail_size = 0
        self._left_out = 0
        self._buffers = {STDOUT: bytearray(), STDERR: bytearray()}
        self.stderr_tail = b""

    def write(self, stream: int, data: bytes) -> None:
        """Add output. Small pieces are buffered until `flush`."""
        self._on_output()
        masker = self._maskers[stream]
        self._write(stream, data if masker is None else masker.feed(data))

    def _write(self, stream: int, data: bytes) -> None:
        if stream == STDERR:
            self.stderr_tail = (self.stderr_tail + data)[-STDERR_TAIL:]
        buffer = self._buffers[stream]
        buffer += data
        if len(buffer) >= PIECE:
            self._flush(stream)

    def flush(self) -> None:
        for stream in self._buffers:
            self._flush(stream)

    def _end(self) -> None:
        """Add what the maskers have kept back."""
        for stream, masker in self._maskers.items():
            if masker is not None:
                self._write(stream, masker.end())
        self.flush()

    def close(self) -> None:
        self._end()
        if self._left_out:
            self._emit(REMARK, f"… {self._left_out:,} bytes left out …".encode())
        for stream, data in self._tail:
            self._emit_pieces(stream, bytes(data))
        self._tail.clear()

    def _flush(self, stream: int) -> None:
        if self._buffers[stream]:
            data = bytes(self._buffers[stream])
            self._buffers[stream].clear()
            self._keep(stream, data)

    def _keep(self, stream: int, data: bytes) -> None:
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        self._emit_pieces(stream, head)
        if rest:
            self._keep_tail(stream, rest)

    def _emit_pieces(self, stream: int, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._emit(stream, data[start : start + PIECE])

    def _keep_tail(self, stream: int, data: bytes) -> None:
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


class OutputLimit(Capture):
    """Emits output up to `rate`; drops what exceeds it, with a remark once there is room again."""

    def __init__(
        self,
        emit: Emit,
        clock: Callable[[], float],
        *,
        rate: int = RATE,
        burst: int = BURST,
        secrets: SecretValues = NO_SECRETS,
        on_output: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(emit, secrets=secrets, on_output=on_output)
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._room = float(burst)
        self._at = clock()

    def close(self) -> None:
        self._end()
        self._emit_left_out()

    def _keep(self, stream: int, data: bytes) -> None:
        now = self._clock()
        self._room = min(self._burst, self._room + (now - self._at) * self._rate)
        self._at = now
        if len(data) > self._room:
            self._left_out += len(data)
            return
        self._emit_left_out()
        self._room -= len(data)
        self._emit_pieces(stream, data)

    def _emit_left_out(self) -> None:
        if self._left_out:
            self._emit(REMARK, f"… {self._left_out:,} bytes left out: too fast …".encode())
            self._left_out = 0
