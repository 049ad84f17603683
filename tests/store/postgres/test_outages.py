"""PostgreSQL is away, silent or full: each ends as StoreUnavailable and in bounded time, and armed tasks fire."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import eventually
from tests.postgres import PostgreSQL, Primary
from tests.stream_proxy import StreamProxy

import mainspring
from mainspring.errors import StoreFull, StoreUnavailable
from mainspring.server.cluster.leader import Leader
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.cluster.membership import Membership
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Database, DedicatedConnection
from mainspring.store.postgres.migrate import migrate


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_inside_the_lead_window_fires_continue_while_postgresql_is_down(primary: PostgreSQL, fault: str) -> None:
    app = mainspring.App("fires", dsn=primary.dsn, lead=3.0)
    fired: list[float] = []

    @app.job(every="250ms")
    async def tick() -> None:
        task = mainspring.current_task()
        assert task.plan_time is not None
        fired.append(task.plan_time.timestamp())

    async def armed_after() -> bool:
        return fired[-1] > back + 3.5

    async with app.running():
        await eventually(_at_least(fired, 4))  # the first ones may have been due already, not armed ahead
        before = len(fired)
        if fault == "killed":
            primary.kill()
        else:
            primary.freeze()
        await eventually(_at_least(fired, before + 5))
        if fault == "killed":
            await asyncio.to_thread(primary.start)
        else:
            primary.thaw()
        back = time.time()
        await eventually(armed_after)
    plans = sorted(fired)
    assert {round(later - earlier, 3) for earlier, later in itertools.pairwise(plans)} == {0.25}, "each one once"


# ── a full disk ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(server_directory: Path) -> Iterator[Path]:
    disk = server_directory / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=711", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a disk of its own takes root and the right to mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk_is_reported_and_waited_out(small_disk: Path) -> None:
    with Primary(small_disk / "a", settings="max_wal_size = 64MB\nmin_wal_size = 32MB\nautovacuum = off") as full:
        app = mainspring.App("full", dsn=full.dsn)

        @app.job
        async def work(text: str) -> int:
            return len(text)

        async with app.running():
            assert await (await work.enqueue("x")).result(timeout=10) == 1
            with suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(bytes(2**16)):
                    pass
            with pytest.raises(StoreFull, match="disk is full .*make room"):
                for _ in range(100):
                    await work.enqueue_many([("y" * 2000,)] * 100)
            (small_disk / "ballast").unlink()
            assert await (await work.enqueue("zz")).result(timeout=10) == 2


# ── silence ─────────────────────────────────────────────────────────────────────────────────────────


IN_TIME = 20.0  # seconds: what is not bounded waits for 30 s or more


async def in_time(call: Awaitable[object]) -> None:
    """It ends as an outage, and does not wait for ever."""
    async with asyncio.timeout(IN_TIME):
        with pytest.raises(StoreUnavailable):
            await call


async def test_a_statement_on_a_connection_that_goes_silent_ends_in_bounded_time(
    lasting: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.postgres.connecting.connect.CONNECT_TIMEOUT", 0.2)
    monkeypatch.setattr("mainspring.store.postgres.database.CLOSE_TIMEOUT", 0.1)

    async def statement(dedicated: DedicatedConnection) -> None:
        async with dedicated as conn:
            await conn.fetchval("select 1")

    async def begin(dedicated: DedicatedConnection) -> None:
        async with dedicated as conn, conn.transaction():
            pass

    async def inside(dedicated: DedicatedConnection) -> None:
        async with dedicated as conn, conn.transaction():
            proxy.black_hole()
            await conn.fetchval("select 1")

    async def commit(dedicated: DedicatedConnection) -> None:
        async with dedicated as conn, conn.transaction():
            await conn.fetchval("select 1")
            proxy.black_hole()

    async def listen(dedicated: DedicatedConnection) -> None:
        async with dedicated as conn:
            await conn.add_listener("mainspring", lambda *_: None)

    for use in (statement, begin, inside, commit, listen):
        async with StreamProxy("127.0.0.1", lasting.port) as proxy:
            database = Database(lasting.dsn.replace(str(lasting.port), str(proxy.port)), command_timeout=0.2)
            dedicated, idle = database.dedicated(), database.dedicated()
            for each in (dedicated, idle):
                await statement(each)
            await database.open()
            if use not in (inside, commit):
                proxy.black_hole()
            await in_time(use(dedicated))
            await in_time(database.connect())
            async with asyncio.timeout(IN_TIME):
                await dedicated.close()
                await idle.close()
                await database.close()


async def test_a_silent_host_does_not_hold_up_the_others(lasting: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.store.postgres.connecting.connect.CONNECT_TIMEOUT", 60.0)
    async with StreamProxy("127.0.0.1", lasting.port) as silent:
        silent.black_hole()
        hosts = f"127.0.0.1:{silent.port},127.0.0.1:{lasting.port}"
        database = Database(f"postgresql://mainspring@{hosts}/mainspring")
        async with asyncio.timeout(IN_TIME), database.acquire() as conn:
            assert await conn.fetchval("select inet_server_port()") == lasting.port
        monkeypatch.setattr("mainspring.store.postgres.connecting.connect.HEAD_START", 60.0)
        async with asyncio.timeout(IN_TIME):  # the one that was good last comes first
            await (await database.connect()).close()
        await database.close()


async def test_both_ends_of_a_tcp_connection_send_keepalives(lasting: PostgreSQL) -> None:
    """So that the locks of a machine that died without a word are free within 10 s."""
    conn: Any = await Database(lasting.dsn).connect()
    names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"]
    assert [await conn.fetchval(f"show {name}") for name in names] == ["5", "1", "3", "8000"]
    peer = conn._transport.get_extra_info("socket")
    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8_000
    await conn.close()


def _at_least(fired: list[float], count: int) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return len(fired) >= count

    return there


async def test_a_server_that_stops_does_not_wait_for_a_silent_database(
    lasting: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it goes; if that cannot be heard, its leases end by themselves."""
    monkeypatch.setattr("mainspring.store.postgres.database.LEASE_TIMEOUT", 0.2)
    monkeypatch.setattr("mainspring.server.cluster.leader.LEASE_TIMEOUT", 0.2)
    monkeypatch.setattr("mainspring.store.postgres.database.CLOSE_TIMEOUT", 0.1)
    await migrate(Database(lasting.dsn))
    async with StreamProxy("127.0.0.1", lasting.port) as proxy:
        database = Database(lasting.dsn.replace(str(lasting.port), str(proxy.port)))
        server_lease = ServerLease(uuid4())
        membership = Membership(database, server_lease, ServerInfo(server_lease.id, "a", "1", "here"), 60.0, lambda: 0)
        leader = Leader(database, server_lease, 60.0)
        await membership.join()
        await leader.step()
        assert leader.term is not None
        proxy.black_hole()
        async with asyncio.timeout(IN_TIME):
            await membership.drain()
            await leader.close()
            await database.close()
        assert server_lease.is_draining
