"""What the tests of commands share: attempts at real processes, and what they printed."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from mainspring.agent.attempt import Attempt

DEADLINE = 15.0

Make = Callable[..., Attempt]


class Recording:
    """Records reports; its attempts belong to a job with a unique name."""

    def __init__(self) -> None:
        self.job_name = f"nightly-{uuid4()}"
        self.chunks: list[tuple[int, bytes]] = []

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None:
        self.chunks.append((stream, data))

    def note(self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        raise AssertionError("a command has nothing to note")

    def bytes(self, *streams: int) -> bytes:
        return b"".join(data for stream, data in self.chunks if stream in streams)

    def processes(self) -> list[int]:
        """Those of its attempts that are alive, whatever their parent is now."""
        mark = f"MAINSPRING_JOB={self.job_name}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", script)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """All of them are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 2, hard))
    hogs = []
    try:
        with suppress(OSError):
            while True:
                hogs.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for hog in hogs:
            os.close(hog)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """A zombie is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
