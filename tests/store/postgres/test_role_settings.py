"""Settings of a role or a database: connections of ours set what they depend on, and a timeout ends no server."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from tests.conftest import eventually

import mainspring
from mainspring.errors import AccessDenied, StoreUnavailable
from mainspring.store.postgres.database import Connection, Database

HOSTILE = {
    "lock_timeout": "20ms",
    "statement_timeout": "40ms",
    "transaction_timeout": "50ms",
    "idle_in_transaction_session_timeout": "10ms",
    "idle_session_timeout": "200ms",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "enable_nestloop": "off",
    "enable_indexscan": "off",
    "TimeZone": "Europe/Paris",
}


async def set_for_all(database: Database, settings: dict[str, str]) -> None:
    """For every connection that is opened from now on."""
    name = urlsplit(database.dsn).path.strip("/")
    async with database.acquire() as conn:
        await conn.execute("; ".join(f"alter database {name} set {key} = '{settings[key]}'" for key in settings))


async def shown(conn: Connection, *names: str) -> list[str]:
    return [await conn.fetchval(f"show {name}") for name in names]


async def test_connections_of_ours_override_the_settings_of_a_database(dsn: str, database: Database) -> None:
    await set_for_all(database, HOSTILE)
    hardened = ("lock_timeout", "statement_timeout", "transaction_timeout", "idle_session_timeout")
    fresh = Database(dsn)
    engine = await fresh.connect()
    assert await shown(engine, *hardened) == ["0", "30s", "0", "0"]
    assert await shown(engine, "default_transaction_isolation", "TimeZone") == ["read committed", "UTC"]
    assert await shown(engine, "enable_nestloop", "enable_indexscan") == ["on", "on"]
    async with fresh.acquire() as pooled:
        assert await shown(pooled, *hardened) == ["0", "30s", "0", "0"]
    async with fresh.for_handlers().acquire() as for_handlers:
        assert await shown(for_handlers, "lock_timeout") == ["20ms"], "a handler's transaction is the user's"
        for_handlers.terminate()
    await engine.close()
    await fresh.close()


@pytest.mark.parametrize("is_set", [True, False], ids=["overridden", "in force"])
async def test_a_row_locked_for_longer_than_lock_timeout_ends_no_server(
    dsn: str, database: Database, monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    """In force: as behind settings that we do not know. Then each loop retries."""
    if not is_set:
        monkeypatch.setattr("mainspring.store.postgres.database._SESSION", {})
    await set_for_all(database, HOSTILE if is_set else {"lock_timeout": "20ms"})
    app = mainspring.App("locks", dsn=dsn)
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> int:
        began.set()
        await may_end.wait()
        return 7

    async with app.running():
        task = await work.enqueue()
        await began.wait()
        assert app.engine is not None
        recorder = app.engine.server.recorder
        async with database.acquire() as conn, conn.transaction():
            await conn.execute("select from mainspring.task where id = $1 for update", task.id)
            may_end.set()

            async def is_refused() -> bool:
                return recorder.may_lack_reports if not is_set else bool(recorder.backlog)

            await eventually(is_refused)
            assert not app.engine.server.loops.done()  # type: ignore[union-attr]
        assert await task.result(timeout=10) == 7
        assert not app.engine.server.loops.done()  # type: ignore[union-attr]


async def test_a_process_that_was_admitted_before_waits_while_it_is_refused(
    dsn: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password is being changed, or pg_hba.conf: no reason for a running server to end."""

    async def refuse(*_: object, **__: object) -> Connection:
        raise AccessDenied("wrong password")

    newcomer = Database(dsn)
    for each, expected in ((database, StoreUnavailable), (newcomer, AccessDenied)):
        monkeypatch.setattr(each._connector, "connect", refuse)
        with pytest.raises(expected, match="wrong password"):
            await each.connect()
    monkeypatch.undo()
    await (await database.connect()).close()
    await newcomer.close()
