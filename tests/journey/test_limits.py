"""Limits over two workers, one of which is killed: the jobs' own ledger shows no overlap, and nothing is lost."""

from __future__ import annotations

import time
from collections import Counter

from mainspring.store.postgres.database import Connection
from tests.journey.conftest import Story
from tests.ledger import Line

KEYS = 20
EACH = 30


def most_at_once(lines: list[Line], killed: int, killed_at: int) -> tuple[int, int]:
    """The most runs inside at the same time: with one key, and of all. What was killed left when it was."""
    inside: set[tuple[int, int, str]] = set()
    of_a_key = of_all = 0
    is_dead = False
    for line in sorted(lines, key=lambda line: line.at):
        if not is_dead and line.at > killed_at:
            inside = {run for run in inside if run[0] != killed}
            is_dead = True
        event, key = line.event.split()
        run = (line.pid, line.token, key)
        if event == "leave":
            inside.remove(run)
            continue
        inside.add(run)
        of_a_key = max(of_a_key, max(Counter(key for _, _, key in inside).values()))
        of_all = max(of_all, len(inside))
    return of_a_key, of_all


async def test_exclusive_keys_never_overlap_though_a_worker_is_killed(story: Story, conn: Connection) -> None:
    first, _ = await story.worker(slots=50), await story.worker(slots=50)
    await story.app["exclusive"].enqueue_many([f"k{number % KEYS}" for number in range(KEYS * EACH)])
    await story.until_written(KEYS * EACH // 2)
    await first.kill()
    killed_at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    await story.until_all_ended(conn)
    lines = story.ledger()
    left = {line.task for line in lines if line.event.startswith("leave")}
    assert len(left) == KEYS * EACH, "each has run to its end"
    assert len({line.pid for line in lines}) == 2, "both took part"
    of_a_key, of_all = most_at_once(lines, first.pid, killed_at)
    assert of_a_key == 1
    assert 2 <= of_all <= 12
    assert await conn.fetchval("select count(*) from mainspring.task") == 0
