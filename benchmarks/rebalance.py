"""Rebalance: how long segments stand still when they change hands, for benchmarks/cluster.py.

Two servers with two agents, and tasks that are due all the time in every segment; a third server joins, then the
second one is stopped by SIGTERM, and its agents go on with another.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import pairwise
from pathlib import Path

from benchmarks.common import connection, drained
from benchmarks.network import APP, Process, make_token, process, read_stamps
from mainspring.store.postgres.database import Connection

STREAM, STREAM_EVERY = 50, 0.05  # tasks at a time, and seconds: ten in a second for each segment
BEFORE, AFTER = 1.0, 3.0  # seconds around a move in which starts are looked at
AGENTS, SLOTS = 2, 100


async def rebalance(conn: Connection, dsn: str) -> dict[str, float]:
    """Seconds between two starts in one segment around its move, the longest of all that moved."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory, "stamps")
        addresses = free_addresses(3)
        servers = [stack.enter_context(_server(dsn, address)) for address in addresses[:2]]
        options = ["--server", ",".join(addresses), "--token", make_token(dsn), "--slots", str(SLOTS), "--app", APP]
        for number in range(AGENTS):
            stack.enter_context(process("agent", *options, "--name", f"stream-{number}", stamps=path))
        streaming = asyncio.create_task(_stream(dsn, over := asyncio.Event()))
        await asyncio.sleep(AFTER)
        before = await _last_move(conn)
        await asyncio.to_thread(stack.enter_context, _server(dsn, addresses[2]))
        await asyncio.sleep(AFTER)
        between = await _last_move(conn)
        os.kill(servers[1].pid, signal.SIGTERM)
        await asyncio.sleep(AFTER)
        after = await _last_move(conn)
        over.set()
        await streaming
        await drained(conn, 1)
        starts = read_stamps(path)
    return {
        "rebalance_join_s": await _longest(conn, starts, before, between),
        "rebalance_stop_s": await _longest(conn, starts, between, after),
    }


def _server(dsn: str, address: str) -> AbstractContextManager[Process]:
    return process("server", "--listen", address, "--dsn", dsn, "--app", APP)


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


async def _stream(dsn: str, over: asyncio.Event) -> None:
    async with connection(dsn) as conn:
        while not over.is_set():
            await conn.execute("select mainspring.enqueue('stamp') from generate_series(1, $1)", STREAM)
            with suppress(TimeoutError):
                async with asyncio.timeout(STREAM_EVERY):
                    await over.wait()


async def _last_move(conn: Connection) -> int:
    return int(await conn.fetchval("select coalesce(max(id), 0) from mainspring.segment_move"))


_MOVED = """
    select segment, date_part('epoch', min(at)) as first, date_part('epoch', max(at)) as last
      from mainspring.segment_move, unnest(segments) as segment
     where id > $1 and id <= $2 group by segment
"""


async def _longest(conn: Connection, starts: Mapping[int, float], after: int, upto: int) -> float:
    """Of the moves with numbers in this range."""
    by_segment = defaultdict[int, list[float]](list)
    for task, at in starts.items():
        by_segment[task % 100].append(at)
    gaps = [
        later - earlier
        for segment, first, last in await conn.fetch(_MOVED, after, upto)
        for earlier, later in pairwise(sorted(by_segment[segment]))
        if first - BEFORE < earlier and later < last + AFTER
    ]
    if not gaps:
        raise RuntimeError("no segment has moved, or none that moved had tasks")
    return round(max(gaps), 3)
