"""Body: what the agent keeps of an HTTP response: its first bytes, uncompressed, and a count of the rest.

Pure: the caller feeds it. Memory and work are bounded, whatever the size, before and after decompression.
Next: agent/run/endings.py
"""

from __future__ import annotations

import zlib

from mainspring.agent.executors.capture import REMARK, STDOUT, Capture, Emit
from mainspring.model.secrets.values import NO_SECRETS, SecretValues

HEAD = 1 << 20  # kept as output
EXCERPT = 64 << 10  # of it, kept in the result
MOST = 64 << 20  # bytes read; then the connection is closed

_TEXT = ("ascii", "utf", "iso", "latin", "windows", "cp", "koi8", "shift_jis", "euc", "gb", "big5")


class Body:
    """Emits up to `head` bytes; on close a remark with the number of bytes dropped."""

    def __init__(
        self,
        emit: Emit,
        encoding: str = "",
        *,
        head: int = HEAD,
        excerpt: int = EXCERPT,
        secrets: SecretValues = NO_SECRETS,
    ) -> None:
        self._emit = emit
        self._capture = Capture(emit, head=head, tail=0)
        self._encoding = encoding.strip().lower()
        self._masker = secrets.masker()
        self._decoder: zlib._Decompress | None = None
        self._left = head
        self._excerpt_left = excerpt
        self._excerpt = bytearray()
        self._left_out = 0
        self._broken = ""
        self.received = 0  # bytes, compressed
        self.truncated = False  # the excerpt is not the whole body

    @property
    def enough(self) -> bool:
        return self.received > MOST

    def feed(self, raw: bytes) -> None:
        self.received += len(raw)
        while raw and self._left and not self._broken:
            data, raw = self._decoded(raw)
            self._keep(data)
        if raw:
            self._left_out += len(raw)
            self.truncated = True

    def _decoded(self, raw: bytes) -> tuple[bytes, bytes]:
        """(at most as many bytes as there is room for, the rest of `raw`)."""
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            return raw[: self._left], raw[self._left :]
        if self._decoder is None or self._decoder.eof:  # several compressed members may follow each other
            bare = self._encoding == "deflate" and raw[0] & 0xF != 8  # some servers omit the zlib header
            self._decoder = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
        try:
            data = self._decoder.decompress(raw, self._left)
        except zlib.error as error:
            self._broken = f"… not {self._encoding} as it says ({error}) …"
            return b"", raw
        if len(data) == self._left and not self._decoder.eof:
            self.truncated = True  # the decoder may hold more
        return data, self._decoder.unconsumed_tail or self._decoder.unused_data

    def _keep(self, data: bytes) -> None:
        self._left -= len(data)
        self._emit_masked(data if self._masker is None else self._masker.feed(data))

    def _emit_masked(self, data: bytes) -> None:
        self._excerpt += data[: self._excerpt_left]
        if len(data) > self._excerpt_left:
            self.truncated = True
        self._excerpt_left -= min(len(data), self._excerpt_left)
        self._capture.write(STDOUT, data)

    def close(self) -> None:
        if self._masker is not None:
            self._emit_masked(self._masker.end(cut=not self._left or bool(self._broken)))
        self._capture.close()
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
