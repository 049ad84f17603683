"""What is kept of an answer: the first bytes of it, uncompressed, and a count of the rest.

Pure: it is told what came. Memory and work are bounded, however much comes and whatever it would unpack to.
Next: agent/executors/http.py
"""

from __future__ import annotations

import zlib

from mainspring.agent.executors.capture import PIECE, REMARK, STDOUT, Emit

HEAD = 1 << 20  # kept as output
EXCERPT = 64 << 10  # of it, kept in the result
MOST = 64 << 20  # read at all; who sends more is not listened to any longer

_TEXT = ("ascii", "utf", "iso", "latin", "windows", "cp", "koi8", "shift_jis", "euc", "gb", "big5")


class Body:
    """Emits up to `head` bytes, then on close says how much more came."""

    def __init__(self, emit: Emit, encoding: str = "", *, head: int = HEAD, excerpt: int = EXCERPT) -> None:
        self._emit = emit
        self._encoding = encoding.strip().lower()
        self._decoder: zlib._Decompress | None = None
        self._left = head
        self._excerpt_left = excerpt
        self._excerpt = bytearray()
        self._waiting = bytearray()
        self._left_out = 0
        self._broken = ""
        self.received = 0  # as sent
        self.truncated = False  # the excerpt is not all of it

    @property
    def enough(self) -> bool:
        return self.received > MOST

    def feed(self, raw: bytes) -> None:
        """Take what came."""
        self.received += len(raw)
        while raw and self._left and not self._broken:
            data, raw = self._decoded(raw)
            self._keep(data)
        if raw:
            self._left_out += len(raw)
            self.truncated = True

    def _decoded(self, raw: bytes) -> tuple[bytes, bytes]:
        """At most as much as there is room for, and what of `raw` is still to be looked at."""
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            return raw[: self._left], raw[self._left :]
        if self._decoder is None or self._decoder.eof:  # several packed pieces may follow each other
            bare = self._encoding == "deflate" and raw[0] & 0xF != 8  # some send it without the header it should have
            self._decoder = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
        try:
            data = self._decoder.decompress(raw, self._left)
        except zlib.error as error:
            self._broken = f"… not {self._encoding} as it says ({error}) …"
            return b"", raw
        if len(data) == self._left and not self._decoder.eof:
            self.truncated = True  # more may be packed in what it has taken
        return data, self._decoder.unconsumed_tail or self._decoder.unused_data

    def _keep(self, data: bytes) -> None:
        self._left -= len(data)
        self._excerpt += data[: self._excerpt_left]
        if len(data) > self._excerpt_left:
            self.truncated = True
        self._excerpt_left -= min(len(data), self._excerpt_left)
        self._waiting += data
        while len(self._waiting) >= PIECE:
            self._emit(STDOUT, bytes(self._waiting[:PIECE]))
            del self._waiting[:PIECE]

    def close(self) -> None:
        """All that came is kept or counted now."""
        if self._waiting:
            self._emit(STDOUT, bytes(self._waiting))
            self._waiting.clear()
        if self._broken:
            self._emit(REMARK, self._broken.encode())
        if self._left_out:
            over = "; then the connection was closed" if self.enough else ""
            self._emit(REMARK, f"… {self._left_out:,} more bytes came and are left out{over} …".encode())

    def text(self, charset: str | None) -> str:
        """The excerpt as text that PostgreSQL can hold."""
        name = (charset or "utf-8").lower()
        try:
            text = self._excerpt.decode(name if name.startswith(_TEXT) else "utf-8", errors="replace")
        except (LookupError, ValueError):
            text = self._excerpt.decode(errors="replace")
        return text.encode(errors="replace").decode().replace("\x00", "\ufffd")
