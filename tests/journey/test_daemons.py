"""Daemons on real worker processes that are killed and stopped: always as many as are wanted, never two of one."""

from __future__ import annotations

import signal
from collections import defaultdict
from itertools import pairwise

import pytest

from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import schedules
from tests.conftest import eventually
from tests.journey.conftest import Story
from tests.ledger import Line


def lives(story: Story) -> dict[int, list[list[Line]]]:
    """By task, the beats of each of its lives, in the order in which these began."""
    by_token: dict[tuple[int, int], list[Line]] = defaultdict(list)
    for line in story.ledger():
        by_token[line.task, line.token].append(line)
    found: dict[int, list[list[Line]]] = defaultdict(list)
    for (task, _), beats in sorted(by_token.items()):
        found[task].append(beats)
    return found


def assert_never_two_at_once(story: Story) -> None:
    for task, its_lives in lives(story).items():
        for one, following in pairwise(its_lives):
            assert one[-1].at < following[0].at, f"task {task} ran twice at once"


async def start_daemon(conn: Connection, replicas: int) -> None:
    await schedules.create(conn, define_schedule("stand", "stand", {"daemon": replicas}), enabled=True)


async def until_up(conn: Connection, replicas: int, agents: int) -> dict[int, int]:
    """Wait until so many replicas run, on so many sessions; returns the session of each."""

    async def up() -> dict[int, int]:
        rows = await conn.fetch("select id, session from mainspring.task where origin = 'daemon' and state = 3")
        found = {row["id"]: row["session"] for row in rows}
        return found if len(found) == replicas and len(set(found.values())) == agents else {}

    found: dict[int, int] = await eventually(up, timeout=60)
    return found


async def test_replicas_spread_over_the_workers(story: Story, conn: Connection) -> None:
    await story.worker()
    await story.worker()
    await start_daemon(conn, 4)
    # Two each, unless one of them stands still for a second: the other takes a third one then.
    await until_up(conn, 4, agents=2)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_the_replicas_of_a_worker_that_goes_run_elsewhere_and_never_twice_at_once(
    story: Story, conn: Connection, end: signal.Signals
) -> None:
    first = await story.worker()
    second = await story.worker()
    await start_daemon(conn, 3)
    before = await until_up(conn, 3, 2)
    first.signal(end)
    await first.ended()

    async def moved() -> bool:
        rows = await conn.fetch("select id, session from mainspring.task where origin = 'daemon' and state = 3")
        now = {row["id"]: row["session"] for row in rows}
        return now.keys() == before.keys() and len(set(now.values())) == 1

    await eventually(moved, timeout=60)
    task = max(before)

    async def all_beat() -> bool:
        return all(its[-1][-1].pid == second.pid for its in lives(story).values())

    await eventually(all_beat, timeout=60)
    assert lives(story).keys() == before.keys()
    assert task in lives(story)
    assert_never_two_at_once(story)


async def test_a_worker_that_stood_still_past_its_lease_stops_what_runs_elsewhere_by_then(
    story: Story, conn: Connection
) -> None:
    zombie = await story.worker(lease=1.5)
    await start_daemon(conn, 1)
    [task] = await until_up(conn, 1, 1)
    zombie.signal(signal.SIGSTOP)
    other = await story.worker(lease=1.5)

    async def beats_there() -> bool:
        return any(line.pid == other.pid for line in story.ledger())

    await eventually(beats_there, timeout=60)
    zombie.signal(signal.SIGCONT)

    async def is_quiet() -> bool:
        stale = "select count(*) from mainspring.task where origin = 'daemon' and state = 3"
        return bool(await conn.fetchval(stale) == 1)

    await eventually(is_quiet, timeout=60)
    await zombie.stop()
    tokens = {line.token: line.pid for line in story.ledger() if line.task == task}
    assert len(set(tokens)) == len(tokens)
    assert tokens[max(tokens)] == other.pid
