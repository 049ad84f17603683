"""What `benchmarks.peers` makes of the lines of a driver, and of a driver that fails."""

from __future__ import annotations

import json
import os
import sys

import psutil
import pytest
from benchmarks.peers.process import DriverFailed, Output, call, driver


def output(*messages: object) -> Output:
    found = Output()
    for message in messages:
        found.take(json.dumps(message).encode() + b"\n")
    return found


def test_starts_are_counted_and_the_first_is_the_earliest() -> None:
    found = output({"ready": True}, {"started": 3, "at": 11.0}, {"started": 2, "at": 10.5})
    assert (found.ready, found.started, found.first) == (True, 5, 10.5)


def test_a_task_that_started_twice_has_two_starts() -> None:
    found = output({"starts": [[0, 1.0], [1, 1.5], [0, 2.0]]})
    assert found.starts == {0: [1.0, 2.0], 1: [1.5]}


def test_a_submission_says_when_it_called_and_how_long_it_took() -> None:
    found = output({"calls": [[0, 1.0], [1, 2.0]]}, {"tasks": 2, "seconds": 1.5, "ended": 2.5})
    assert found.calls == {0: 1.0, 1: 2.0}
    assert found.submitted == {"tasks": 2, "seconds": 1.5, "ended": 2.5}


def test_what_a_peer_prints_by_itself_is_ignored() -> None:
    found = Output()
    for line in (b"Welcome!\n", b"12\n", b'["ready"]\n', b"\n"):
        found.take(line)
    assert found == Output()


async def run(program: str, timeout: float = 20.0) -> Output:
    return await call([sys.executable, "-c", program], [], dict(os.environ), timeout)


async def test_a_driver_that_fails_is_reported_with_its_last_words() -> None:
    with pytest.raises(DriverFailed, match="it ended with 1: SystemExit: no such table|it ended with 1: no such table"):
        await run("raise SystemExit('no such table')")


async def test_a_driver_that_does_not_end_in_time_is_killed() -> None:
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(DriverFailed, match="did not end within"):
        async with driver(program, [], dict(os.environ)) as running:
            pid = running._process.pid
            await running.ended(0.05)
    assert not psutil.pid_exists(pid)


async def test_a_worker_that_dies_ends_the_wait_for_its_starts() -> None:
    async with driver([sys.executable, "-c", "raise SystemExit(3)"], [], dict(os.environ)) as running:
        with pytest.raises(DriverFailed, match="it ended with 3"):
            await running.until_ready()
