"""Connections: faults become ours, dedicated connections reopen after a loss."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from mainspring.errors import Busy, JobNotFound, MainspringError, StoreFull, StoreUnavailable, ValidationError
from mainspring.store.postgres.database import HANDSHAKES, Connection, Database, translate


def postgres_error(sqlstate: str, message: str = "boom") -> BaseException:
    error: BaseException = asyncpg.PostgresError.new({"C": sqlstate, "M": message})
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (postgres_error("MSV01", "delay: too long"), ValidationError),
        (postgres_error("MSJ01"), JobNotFound),
        (postgres_error("57P01"), StoreUnavailable),  # the server shuts down
        (postgres_error("57P02"), StoreUnavailable),  # another backend was killed
        (postgres_error("57P03"), StoreUnavailable),  # it starts, or recovers
        (postgres_error("57P05"), StoreUnavailable),  # a connection was idle for longer than somebody allows
        (postgres_error("57014"), StoreUnavailable),  # a statement was cancelled
        (postgres_error("08006"), StoreUnavailable),
        (postgres_error("53300"), StoreUnavailable),  # too many connections
        (postgres_error("53100"), StoreFull),
        (postgres_error("40P01"), StoreUnavailable),  # a deadlock was broken
        (postgres_error("40001"), StoreUnavailable),
        (postgres_error("25006"), StoreUnavailable),  # a standby
        (postgres_error("25P03"), StoreUnavailable),  # we slept inside a transaction
        (postgres_error("25P04"), StoreUnavailable),  # a transaction took longer than transaction_timeout
        (postgres_error("55P03"), StoreUnavailable),  # a lock was not free within lock_timeout
        (postgres_error("55006"), StoreUnavailable),  # another session has a table open
        (asyncpg.InvalidCachedStatementError("a migration"), StoreUnavailable),
        (postgres_error("58030"), StoreUnavailable),  # its disk fails
        (ConnectionRefusedError(), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (asyncpg.InterfaceError("connection is closed"), StoreUnavailable),
        (postgres_error("23505"), None),  # a unique violation is a bug of ours
        (postgres_error("42601"), None),
        (ValueError(), None),
        (asyncio.CancelledError(), None),
    ],
    ids=repr,
)
def test_an_error_of_the_driver_becomes_ours_where_there_is_one(
    error: BaseException, expected: type[MainspringError] | None
) -> None:
    assert type(translate(error)) is (expected or type(None))


def test_a_refusal_names_its_field() -> None:
    ours = translate(postgres_error("MSV01", "key_ttl: -1 is not between 0 and 10 years"))
    assert ours is not None
    assert (ours.field, ours.message) == ("key_ttl", "key_ttl: -1 is not between 0 and 10 years")


async def test_a_value_that_cannot_be_sent_is_not_taken_for_an_outage(database: Database) -> None:
    """Else whoever waits outages out would repeat it forever."""
    with pytest.raises(Exception, match="out of int64 range") as raised:
        async with database.acquire() as conn:
            await conn.fetchval("select $1::bigint", 2**70)
    assert not isinstance(raised.value, StoreUnavailable)


async def test_a_port_without_a_server_is_reported(dsn: str) -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await Database("postgresql://localhost:1/x?connect_timeout=1").connect()


@pytest.mark.parametrize(
    ("dsn", "error", "advice"),
    [
        ("postgresql://localhost/x?target_session_attrs=standby", ValidationError, "use read-write"),
        ("postgresql://me:secret@localhost:port,b/x", ValidationError, "cannot be read"),
        (
            "postgresql://me:secret@localhost:1,localhost:2/x",
            StoreUnavailable,
            "localhost:1 does not answer .*localhost:2 does not answer .*; one of them must be",
        ),
    ],
)
async def test_a_dsn_that_leads_nowhere_is_reported_without_its_password(
    dsn: str, error: type[MainspringError], advice: str
) -> None:
    with pytest.raises(error, match=advice) as told:
        await Database(dsn).connect()
    assert "secret" not in told.value.message


async def test_a_setting_that_postgresql_does_not_know_is_an_error_of_the_dsn(dsn: str) -> None:
    with pytest.raises(ValidationError, match='"connect_timeout"; take it out of the DSN'):
        await Database(f"{dsn}&connect_timeout=3").connect()


async def kill(conn: Connection, pid: int) -> None:
    assert await conn.fetchval("select pg_terminate_backend($1, 5000)", pid)


async def test_the_pool_gives_the_most_recently_used_connection(database: Database) -> None:
    async with database.acquire() as conn:
        first = await conn.fetchval("select pg_backend_pid()")
    for _ in range(3):
        async with database.acquire() as conn:
            assert await conn.fetchval("select pg_backend_pid()") == first


async def test_the_pool_takes_back_neither_a_lost_connection_nor_an_open_transaction(
    conn: Connection, database: Database
) -> None:
    with pytest.raises(StoreUnavailable):
        async with database.acquire() as mine:
            lost = await mine.fetchval("select pg_backend_pid()")
            await kill(conn, lost)
            await mine.fetchval("select 1")
    async with database.acquire() as mine:
        left_open = await mine.fetchval("select pg_backend_pid()")
        await mine.execute("begin")
    async with database.acquire() as mine:
        third = await mine.fetchval("select pg_backend_pid()")
    assert len({lost, left_open, third}) == 3


async def test_a_connection_that_died_while_it_was_idle_is_not_given_out(conn: Connection, database: Database) -> None:
    async with database.acquire() as mine:
        idle = mine
        pid = await mine.fetchval("select pg_backend_pid()")
    await kill(conn, pid)
    while not idle.is_closed():
        await asyncio.sleep(0.001)
    async with database.acquire() as mine:
        assert await mine.fetchval("select 1") == 1


async def test_a_dedicated_connection_reopens_after_a_loss(dsn: str, conn: Connection) -> None:
    dedicated = Database(dsn).dedicated()
    async with dedicated as mine:
        first = await mine.fetchval("select pg_backend_pid()")
    async with dedicated as mine:
        assert await mine.fetchval("select pg_backend_pid()") == first
    with pytest.raises(StoreUnavailable):
        async with dedicated as mine:
            await kill(conn, first)
            await mine.fetchval("select 1")
    async with dedicated as mine:
        assert await mine.fetchval("select pg_backend_pid()") != first
    await dedicated.close()


async def test_a_group_opens_another_connection_only_while_the_others_are_in_use(dsn: str) -> None:
    database = Database(dsn)
    group = database.for_handshakes()
    assert database.for_handshakes() is group

    async def pid() -> int:
        async with group.acquire() as mine:
            found: int = await mine.fetchval("select pg_backend_pid()")
            return found

    assert len({await pid() for _ in range(5)}) == 1
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(group.acquire()) for _ in range(HANDSHAKES)]
        assert len({await mine.fetchval("select pg_backend_pid()") for mine in held}) == HANDSHAKES
        late = asyncio.ensure_future(pid())
        await asyncio.sleep(0)
        assert not late.done()
    assert await asyncio.wait_for(late, 20) > 0
    await database.close()
    assert all(mine.is_closed() for mine in held)


async def test_a_group_goes_on_after_a_loss(dsn: str, conn: Connection) -> None:
    database = Database(dsn)
    group = database.for_handshakes()
    for _ in range(HANDSHAKES + 1):
        with pytest.raises(StoreUnavailable):
            async with group.acquire() as mine:
                await kill(conn, await mine.fetchval("select pg_backend_pid()"))
                await mine.fetchval("select 1")
    async with group.acquire() as mine:
        assert await mine.fetchval("select 1") == 1
    await database.close()


async def test_a_dedicated_connection_is_kept_after_an_error_of_the_statement_and_dropped_after_any_other(
    dsn: str,
) -> None:
    dedicated = Database(dsn).dedicated()
    async with dedicated as mine:
        first = await mine.fetchval("select pg_backend_pid()")
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with dedicated as mine:
            await mine.fetchval("select 1/0")
    async with dedicated as mine:
        assert await mine.fetchval("select pg_backend_pid()") == first
    with pytest.raises(ZeroDivisionError):
        async with dedicated as mine:
            raise ZeroDivisionError
    async with dedicated as mine:
        assert await mine.fetchval("select pg_backend_pid()") != first
    await dedicated.close()


@pytest.mark.parametrize("sqlstate", ["53100", "40P01"])  # a full disk, a deadlock
async def test_a_connection_is_kept_after_a_fault_that_is_not_its_own(database: Database, sqlstate: str) -> None:
    """A full disk must not make everybody connect anew, again and again."""
    dedicated, pids = database.dedicated(), set[int]()
    for users in (lambda: dedicated, database.acquire):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                async with users() as mine:
                    pids.add(await mine.fetchval("select pg_backend_pid()"))
                    async with mine.transaction():
                        await mine.execute(f"do $$ begin raise sqlstate '{sqlstate}'; end $$")
    assert len(pids) == 2, "one dedicated, one of the pool"
    await dedicated.close()


async def test_a_shared_dedicated_connection_may_be_closed_by_each_user_while_another_uses_it(dsn: str) -> None:
    dedicated = Database(dsn).dedicated()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def use() -> int:
        async with dedicated as mine:
            entered.set()
            await leave.wait()
            return int(await mine.fetchval("select 1"))

    using = asyncio.create_task(use())
    await entered.wait()
    closing = [asyncio.create_task(dedicated.close()) for _ in range(3)]
    await asyncio.sleep(0)
    leave.set()
    assert await using == 1, "its user may end"
    await asyncio.gather(*closing)
    async with dedicated as mine:
        assert await mine.fetchval("select 1") == 1
    await dedicated.close()


async def test_a_dedicated_connection_is_closed_in_the_end_whatever_its_user_does(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.postgres.database.CLOSE_TIMEOUT", 0.1)
    dedicated = Database(dsn).dedicated()
    with pytest.raises(StoreUnavailable):
        async with dedicated as mine:
            await asyncio.gather(mine.execute("select pg_sleep(10)"), dedicated.close())


async def test_a_dedicated_connection_serves_one_user_at_a_time(dsn: str) -> None:
    dedicated = Database(dsn).dedicated()
    inside = 0

    async def use() -> None:
        nonlocal inside
        async with dedicated as mine:
            inside += 1
            assert inside == 1
            await mine.fetchval("select 1")
            inside -= 1

    await asyncio.gather(*(use() for _ in range(10)))
    await dedicated.close()


async def test_a_database_closes_its_lines_with_its_pool(dsn: str) -> None:
    database = Database(dsn)
    used: list[Connection] = []
    for dedicated in (
        database.dedicated(),
        database.dedicated(),
        database.dedicated("shared"),
        database.dedicated("shared"),
    ):
        async with dedicated as mine:
            used.append(mine)
    assert used[0] is not used[1]
    assert used[2] is used[3]
    await database.close()
    assert all(mine.is_closed() for mine in used)


async def test_a_cancelled_user_leaves_the_dedicated_connection_usable(dsn: str, conn: Connection) -> None:
    dedicated = Database(dsn).dedicated()
    await conn.execute("select pg_advisory_lock(7)")

    async def wait() -> None:
        async with dedicated as mine:
            await mine.execute("select pg_advisory_lock(7)")

    waiting = asyncio.ensure_future(wait())
    while not await conn.fetchval("select exists (select from pg_locks where not granted and locktype = 'advisory')"):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with dedicated as mine:
        assert await mine.fetchval("select 1") == 1
    await dedicated.close()


async def test_statements_on_the_connection_for_leases_end_in_time_for_a_renewal(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.postgres.database.LEASE_TIMEOUT", 0.2)
    dedicated, same = database.for_leases(), database.for_leases()
    is_there = asyncio.Event()

    async def hold() -> None:
        async with dedicated as conn:
            is_there.set()
            await conn.fetchval("select pg_sleep(60)")

    holding = asyncio.create_task(hold())
    await is_there.wait()
    async with asyncio.timeout(20), same as conn:
        assert await conn.fetchval("select 1") == 1
    with pytest.raises(StoreUnavailable):
        await holding
    await dedicated.close()


# ── the pool of the HTTP API ────────────────────────────────────────────────────────────────────


async def test_the_fifth_request_of_the_api_is_told_busy_and_the_rest_of_the_process_is_not(
    database: Database,
) -> None:
    api = database.for_api()
    api._pool_wait = 0.05
    async with api.acquire(), api.acquire(), api.acquire(), api.acquire():
        with pytest.raises(Busy, match="no connection to PostgreSQL was free within 0.05 s"):
            async with api.acquire():
                pass
        async with database.acquire() as conn:
            assert await conn.fetchval("select 1") == 1
    async with api.acquire() as conn:
        assert await conn.fetchval("show statement_timeout") == "5s"
    await api.close()


async def test_a_postgresql_that_is_silent_holds_a_request_of_the_api_no_longer_than_it_may() -> None:
    async def silence(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)

    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = Database(f"postgresql://127.0.0.1:{port}/x").for_api()
    api._connect_timeout = 0.05
    with pytest.raises(StoreUnavailable, match="does not answer within 0.05 s"):
        async with api.acquire():
            pass
    for writer in silent:
        writer.transport.abort()
    server.close()
