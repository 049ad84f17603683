"""Process: a driver as this side sees it. Every wait is bounded, and a driver that does not end is killed by its pid.

Next: benchmarks/peers/parts.py
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.installation import ROOT

READY_SECONDS = 30.0
STOP_SECONDS = 20.0
LINE_BYTES = 2**26  # the starts of all tasks are one line


class DriverFailed(Exception):
    """The driver ended, or did not answer in time; the text says what it wrote last."""


@dataclass
class Output:
    """What a driver has said so far."""

    ready: bool = False
    started: int = 0
    first: float | None = None  # start of the first handler
    starts: dict[int, list[float]] = field(default_factory=dict)  # by number
    calls: dict[int, float] = field(default_factory=dict)  # when the submission of a task began
    submitted: dict[str, float] = field(default_factory=dict)  # tasks, seconds, ended

    def take(self, line: bytes) -> None:
        """One line; what is no JSON object of ours is ignored: some peers greet on the standard output."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        self.ready = self.ready or "ready" in message
        if "started" in message:
            self.started += message["started"]
            self.first = message["at"] if self.first is None else min(self.first, message["at"])
        for number, at in message.get("starts", ()):
            self.starts.setdefault(number, []).append(at)
        self.calls.update((number, at) for number, at in message.get("calls", ()))
        if "seconds" in message:
            self.submitted = {key: float(message[key]) for key in ("tasks", "seconds", "ended")}


class DriverProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.output = Output()
        self._process = process
        self._errors: list[str] = []
        self._changed = asyncio.Event()
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.output.take(line)
            self._changed.set()
        self._changed.set()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._errors = [*self._errors[-4:], line.decode(errors="replace").strip()]

    async def until_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not self.output.ready:
                    await self.change()
        except TimeoutError:
            raise DriverFailed(f"not ready after {READY_SECONDS:.0f} s{self._last_words()}") from None

    async def change(self) -> None:
        """Until it has said something."""
        if self._readers[0].done():
            await self._process.wait()
            raise DriverFailed(f"it ended with {self._process.returncode}{self._last_words()}")
        self._changed.clear()
        await self._changed.wait()

    async def stop(self) -> None:
        """Close its input, and read its last lines."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self.ended(STOP_SECONDS)

    async def ended(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*self._readers)
                code = await self._process.wait()
        except TimeoutError:
            raise DriverFailed(f"it did not end within {timeout:.0f} s{self._last_words()}") from None
        if code:
            raise DriverFailed(f"it ended with {code}{self._last_words()}")

    async def kill(self) -> None:
        for reader in self._readers:
            reader.cancel()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    def _last_words(self) -> str:
        found = [line for line in self._errors if line]
        return f": {found[-1]}" if found else ""


@asynccontextmanager
async def driver(command: Sequence[str], arguments: Iterable[str], env: dict[str, str]) -> AsyncIterator[DriverProcess]:
    """A running driver; whatever happens, it is gone when the block ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT, env=env, limit=LINE_BYTES
    )
    running = DriverProcess(process)
    try:
        yield running
    finally:
        await running.kill()


async def call(command: Sequence[str], arguments: Iterable[str], env: dict[str, str], timeout: float) -> Output:
    """Run a driver to its end."""
    async with driver(command, arguments, env) as running:
        await running.ended(timeout)
        return running.output


def order(how: str, tasks: int, **more: Any) -> str:
    return json.dumps({"how": how, "tasks": tasks, **more})
