"""Escapes: no process outlives its command, whatever it does to be forgotten.

Each escape holds the writing end of a FIFO (descriptor 9), which is lost by exit only. So the reader knows exactly
whether one is alive, even while it is in fork or exec.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.commands import DEADLINE, Make, eventually

from mainspring.agent.executors.command import CommandExecutor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans come to a subreaper on Linux only")

UP = "echo up >&9"
PYTHON = f"{shlex.quote(sys.executable)} -I -S -c"
HOP = """
import os, resource, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(9, b'up\\n')
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
DISGUISE = """
import os, resource, signal, time
resource.setrlimit(resource.RLIMIT_RTTIME, ({mark}, resource.RLIM_INFINITY))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(9, b'up\\n')
time.sleep(60)
"""

ESCAPES = {
    "a session of its own": f"setsid env -i sh -c '{UP}; sleep 60' &",
    "ignores TERM": f"setsid env -i sh -c 'trap \"\" TERM HUP; {UP}; sleep 60; sleep 60' &",
    "double fork": f"(setsid env -i sh -c '(trap \"\" TERM HUP; {UP}; sleep 60; sleep 60) & exit 0' &)",
    "nested": f'setsid env -i sh -c \'setsid env -i sh -c "setsid env -i sh -c \\"{UP}; sleep 60\\" & sleep 60" &\'',
    "execs without end": "setsid env -i sh -c \"trap '' TERM HUP; exec sh $STORM up\" &",
    "hops from process to process": f"setsid env -i {PYTHON} {shlex.quote(HOP)} &",
    "removes its mark": f"setsid env -i {PYTHON} {shlex.quote(DISGUISE.format(mark='resource.RLIM_INFINITY'))} &",
    "invents a mark": f"setsid env -i {PYTHON} {shlex.quote(DISGUISE.format(mark=1 << 61))} &",
}


class Leash:
    """Tells whether a process of a command is alive, by the FIFO that it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.said = b""

    @property
    def is_held(self) -> bool:
        while True:
            try:
                data = os.read(self._reader, 65_536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.said += data

    def is_up(self, count: int = 1) -> bool:
        return self.is_held and self.said.count(b"up") >= count

    def close(self) -> None:
        os.close(self._reader)


NewLeash = Callable[[], Leash]


@pytest.fixture
def new_leash(tmp_path: Path) -> Iterator[NewLeash]:
    made: list[Leash] = []

    def make() -> Leash:
        made.append(Leash(tmp_path / f"leash{len(made)}"))
        return made[-1]

    yield make
    for leash in made:
        leash.close()


@pytest.fixture
def storm(tmp_path: Path) -> str:
    """A script that replaces itself by itself, thousands of times a second."""
    path = tmp_path / "storm"
    path.write_text('[ "$1" ] && echo up >&9\nexec env -i /bin/sh "$0"\n')
    return str(path)


def escaping(escape: str, leash: Leash, storm: str, then: str) -> str:
    return f"exec 9>{leash.path}; STORM={storm}\n{escape}\n{then}"


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_none_is_left_after_a_success(
    executor: CommandExecutor, attempt_of: Make, new_leash: NewLeash, storm: str, tmp_path: Path, escape: str
) -> None:
    leash, gate = new_leash(), tmp_path / "gate"
    script = escaping(escape, leash, storm, f"until [ -e {gate} ]; do sleep 0.01; done")
    running = asyncio.create_task(executor.run(attempt_of(script, shell=True)))
    await eventually(leash.is_up)
    gate.touch()
    async with asyncio.timeout(DEADLINE):
        assert await running
    assert not leash.is_held


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_none_is_left_after_a_kill(
    executor: CommandExecutor, attempt_of: Make, new_leash: NewLeash, storm: str, escape: str
) -> None:
    leash = new_leash()
    script = escaping(escape, leash, storm, "trap '' TERM; sleep 60; sleep 60")
    running = asyncio.create_task(executor.run(attempt_of(script, shell=True, grace=0.0)))
    await eventually(leash.is_up)
    running.cancel()
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not leash.is_held


async def test_none_is_left_of_a_start_that_is_killed_at_once(
    executor: CommandExecutor, attempt_of: Make, new_leash: NewLeash
) -> None:
    """At every moment of fork, setsid and exec it is known to which command a process belongs."""
    leash = new_leash()
    script = f"exec 9>{leash.path}; setsid env -i sh -c 'sleep 60' & setsid env -i sleep 60 & exit 0"
    for _ in range(30):
        async with asyncio.timeout(DEADLINE):
            await executor.run(attempt_of(script, shell=True))
        assert not leash.is_held


async def test_each_command_ends_with_its_own_escapes_and_no_other(
    executor: CommandExecutor, attempt_of: Make, new_leash: NewLeash
) -> None:
    escape = f"setsid env -i sh -c 'trap \"\" TERM; {UP}; sleep 60' & (setsid env -i sh -c '{UP}; exec sleep 60' &)"
    leashes = [new_leash() for _ in range(3)]
    running = []
    for leash in leashes:
        script = f"exec 9<>{leash.path}; {escape}; sleep 60"
        running.append(asyncio.create_task(executor.run(attempt_of(script, shell=True, grace=0.1))))
    for leash in leashes:
        await eventually(lambda leash=leash: leash.is_up(2))  # type: ignore[misc]
    while running:
        first = running.pop(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert [leash.is_held for leash in leashes] == [False] * (3 - len(running)) + [True] * len(running)


async def test_a_stray_is_killed_though_its_command_runs(
    executor: CommandExecutor, attempt_of: Make, new_leash: NewLeash
) -> None:
    """It changed its mark and lost its parent: nothing tells any more to which command it belongs."""
    leash = new_leash()
    disguise = shlex.quote(DISGUISE.format(mark="resource.RLIM_INFINITY"))
    script = f"exec 9<>{leash.path}; (setsid {PYTHON} {disguise} &); exec 9<&-; sleep 60"
    running = asyncio.create_task(executor.run(attempt_of(script, shell=True, grace=0.1)))
    await eventually(lambda: leash.is_up() or b"up" in leash.said)
    await eventually(lambda: not leash.is_held)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
