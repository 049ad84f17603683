"""Console sessions: one for each login code, for so long, and no longer than their token."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mainspring.errors import NotFound
from mainspring.model.access.actors import Role
from mainspring.store.access import sessions, tokens
from mainspring.store.access.sessions import NewSession
from mainspring.store.maintenance import retention
from mainspring.store.postgres.database import Connection, Database

ALICE = "os:alice@host"
HOUR = timedelta(hours=1)


async def login(conn: Connection, token: int | None = None) -> NewSession:
    code, _ = await sessions.create_code(conn, ALICE, role=Role.OPERATOR, jobs=["report*"], token=token)
    made = await sessions.exchange(conn, code, address="127.0.0.1")
    assert made is not None
    return made


async def shift(conn: Connection, table: str, **back: timedelta) -> None:
    """Move columns into the past: the same as if so much time had passed."""
    for column, by in back.items():
        await conn.execute(f"update mainspring.{table} set {column} = {column} - $1::interval", by)


async def test_a_code_is_exchanged_for_a_session_once(conn: Connection) -> None:
    code, _ = await sessions.create_code(conn, ALICE, role=Role.OPERATOR, jobs=["report*"])
    made = await sessions.exchange(conn, code, address="127.0.0.1")
    assert made is not None
    assert (made.session.actor, made.session.role, made.session.jobs) == (ALICE, Role.OPERATOR, ["report*"])
    assert await sessions.find(conn, made.secret) == made.session
    assert sessions.csrf(made.secret) == made.csrf
    assert await sessions.exchange(conn, code) is None
    assert await sessions.find(conn, code) is None, "the code is not the cookie"
    assert await sessions.exchange(conn, made.secret) is None


async def test_of_two_uses_of_a_code_at_the_same_time_one_wins(dsn: str, conn: Connection) -> None:
    code, _ = await sessions.create_code(conn, ALICE, role=Role.ADMIN)
    others = [await Database(dsn).connect() for _ in range(6)]
    try:
        made = await asyncio.gather(*(sessions.exchange(other, code) for other in others))
    finally:
        for other in others:
            await other.close()
    assert sum(session is not None for session in made) == 1
    assert len((await sessions.listing(conn)).items) == 1


async def test_a_second_use_that_began_before_the_first_was_committed_gets_nothing(dsn: str, conn: Connection) -> None:
    code, _ = await sessions.create_code(conn, ALICE, role=Role.ADMIN)
    other = await Database(dsn).connect()
    try:
        async with conn.transaction():
            assert await sessions.exchange(conn, code) is not None
            second = asyncio.create_task(sessions.exchange(other, code))
            await asyncio.sleep(0)
        assert await second is None
    finally:
        await other.close()


async def test_a_code_is_void_after_ten_minutes(conn: Connection) -> None:
    code, expires_at = await sessions.create_code(conn, ALICE, role=Role.ADMIN)
    assert timedelta(minutes=9) < expires_at - await conn.fetchval("select mainspring.now()") <= timedelta(minutes=10)
    await shift(conn, "login_code", expires_at=timedelta(minutes=10))
    assert await sessions.exchange(conn, code) is None


async def test_a_session_that_is_used_lasts_seven_days_and_no_longer(conn: Connection) -> None:
    made = await login(conn)
    for _ in range(15):  # every 11 hours: 6 days and 21 hours
        back = timedelta(hours=11)
        await shift(conn, "console_session", created_at=back, last_seen_at=back, expires_at=back)
        assert await sessions.find(conn, made.secret) is not None
    await shift(conn, "console_session", created_at=4 * HOUR, last_seen_at=4 * HOUR, expires_at=4 * HOUR)
    assert await sessions.find(conn, made.secret) is None


async def test_a_session_that_is_not_used_ends_after_twelve_hours(conn: Connection) -> None:
    made = await login(conn)
    back = timedelta(hours=12)
    await shift(conn, "console_session", created_at=back, last_seen_at=back, expires_at=back)
    assert await sessions.find(conn, made.secret) is None
    assert (await sessions.listing(conn)).items == []
    with pytest.raises(NotFound):
        await sessions.revoke(conn, made.session.id)


async def test_a_session_is_written_at_most_once_a_minute(conn: Connection) -> None:
    made = await login(conn)

    async def version() -> object:
        return await conn.fetchval("select ctid from mainspring.console_session")

    first = await version()
    await sessions.find(conn, made.secret)
    assert await version() == first
    await shift(conn, "console_session", last_seen_at=timedelta(minutes=1))
    before = await version()
    await sessions.find(conn, made.secret)
    assert await version() != before


@pytest.mark.parametrize("ending", ["revoked_at = mainspring.now()", "expires_at = mainspring.now()"])
async def test_what_was_made_with_a_token_ends_with_it(conn: Connection, ending: str) -> None:
    id, secret = await tokens.create(conn, "alice", role=Role.OPERATOR, expires=HOUR)
    made, direct = await login(conn, id), await sessions.from_token(conn, secret)
    assert direct is not None
    code, _ = await sessions.create_code(conn, ALICE, role=Role.OPERATOR, token=id)
    lasting = await login(conn)
    await conn.execute(f"update mainspring.token set {ending} where id = $1", id)
    assert await sessions.exchange(conn, code) is None
    assert await sessions.from_token(conn, secret) is None
    assert [await sessions.find(conn, new.secret) for new in (made, direct)] == [None, None]
    assert await sessions.get(conn, made.session.id) is None
    assert await sessions.find(conn, lasting.secret) is not None


@pytest.mark.parametrize("role", Role)
async def test_a_token_opens_a_session_if_people_work_in_its_role(conn: Connection, role: Role) -> None:
    id, secret = await tokens.create(conn, "alice", role=role, jobs=["a*"])
    made = await sessions.from_token(conn, secret)
    assert (made is None) == (role in (Role.AGENT, Role.METRICS))
    if made is not None:
        assert (made.session.token, made.session.role, made.session.jobs) == (id, role, ["a*"])
        assert made.session.actor == "token:alice"


async def test_a_revoked_session_is_void_at_once(conn: Connection) -> None:
    made, other = await login(conn), await login(conn)
    assert {one.id for one in (await sessions.listing(conn)).items} == {made.session.id, other.session.id}
    await sessions.revoke(conn, made.session.id)
    assert await sessions.find(conn, made.secret) is None
    assert await sessions.find(conn, other.secret) is not None
    with pytest.raises(NotFound):
        await sessions.revoke(conn, made.session.id)


async def test_the_database_holds_neither_code_nor_cookie_nor_csrf(conn: Connection) -> None:
    code, _ = await sessions.create_code(conn, ALICE, role=Role.ADMIN)
    made = await login(conn)
    stored = await conn.fetchval("""
        select (select string_agg(c::text, ' ') from mainspring.login_code c)
               || (select string_agg(s::text, ' ') from mainspring.console_session s)
    """)
    assert not any(secret in stored for secret in (code, made.secret, made.csrf))


async def test_the_janitor_deletes_what_has_expired(conn: Connection) -> None:
    for _ in range(3):
        await sessions.create_code(conn, ALICE, role=Role.ADMIN)
        await login(conn)
    assert await retention.delete(conn, "login codes", 2, HOUR) == 0
    assert await retention.delete(conn, "console sessions", 2, HOUR) == 0
    for table in ("login_code", "console_session"):
        await shift(conn, table, expires_at=timedelta(days=8))
    assert await retention.delete(conn, "login codes", 2, HOUR) == 2
    assert await retention.delete(conn, "console sessions", 10, HOUR) == 3
