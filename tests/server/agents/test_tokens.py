"""What a token allows, over real WebSockets: names, labels, and how long."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.server.agents.test_network import Shop, agent, rogue, server, settings, token
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from mainspring.compose.network import RemoteAgent
from mainspring.errors import AccessDenied
from mainspring.model.placement.token_binding import TokenBinding, define_binding
from mainspring.server.agents import refusals
from mainspring.store.access import tokens
from mainspring.store.cluster import agents
from mainspring.store.cluster.agents import AgentInfo
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.channel import ChannelRefused

Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
async def url(shop: Shop, database: Database, dsn: str) -> AsyncIterator[str]:
    async with server(shop, database, dsn, lease=2.0) as url:
        yield url


async def bound(conn: Connection, *agents: str, labels: tuple[str, ...] = (), **given: Any) -> str:
    return (await tokens.create(conn, "bound", binding=define_binding(agents, labels), **given))[1]


async def refusal(url: str, secret: str, **hello: Any) -> str | None:
    """Why an agent is refused after its hello; None if it is not."""
    try:
        async with rogue(url, secret, **hello):
            return None
    except ChannelRefused as refused:
        return refused.message


HELLOS: list[tuple[dict[str, Any], str | None]] = [
    ({"name": "web-1"}, None),
    ({"name": "db"}, "its token is for agents named web-*"),
    ({"name": "xweb-1"}, "its token is for agents named web-*"),
    ({"name": "web-1", "labels": {"gpu": "a100", "zone": "eu-west"}}, None),
    ({"name": "web-1", "labels": {"zone": "us"}}, "its token is for the labels gpu, zone=eu-*, not zone=us"),
    ({"name": "web-1", "labels": {"app": "shop"}}, "its token is for the labels gpu, zone=eu-*, not app=shop"),
    ({"name": "web-1", "offers": {"gpu": 2.0}}, None),
    ({"name": "web-1", "offers": {"tpu": 1.0}}, "its token is for the labels gpu, zone=eu-*, not tpu"),
]


async def test_a_token_binds_names_labels_and_offers(url: str, conn: Connection) -> None:
    secret = await bound(conn, "web-*", labels=("gpu", "zone=eu-*"))
    for hello, reason in HELLOS:
        assert await refusal(url, secret, **{"labels": {}, **hello}) == reason, hello


async def test_an_agent_that_its_token_does_not_fit_ends_with_the_reason_and_runs_nothing(
    shop: Shop, url: str, dsn: str, conn: Connection
) -> None:
    given = settings(dsn, server=url, token=await bound(conn, "web-*"), agent_name="honest")
    async with RemoteAgent(given, shop.app.handlers, "shop") as remote:
        with pytest.raises(AccessDenied, match="for agents named web-"):
            await asyncio.wait_for(remote.joined(asyncio.Event()), 20)
    assert await conn.fetchval("select count(*) from mainspring.agent") == 0


async def test_a_credential_is_bound_as_its_token_was(url: str, conn: Connection) -> None:
    once = await bound(conn, "web-*", once=True)
    assert await refusal(url, once, name="db") is not None, "and it is not used up"
    async with rogue(url, once, name="web-1") as liar:
        assert liar.credential is not None
    assert await refusal(url, liar.credential, name="web-2") is None
    assert await refusal(url, liar.credential, name="db") is not None


async def test_the_name_of_a_living_agent_is_refused_to_another_token(
    shop: Shop, url: str, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    mine, other = await token(conn), await token(conn)
    taken = "an agent of another token lives under this name; give this one another --name"
    async with agent(shop, dsn, url, mine, agent_name="honest"):
        assert await refusal(url, other, name="honest", labels={"app": "shop"}) == taken
        assert await refusal(url, mine, name="honest", labels={}) is None
        assert await refusal(url, other, name="another", labels={}) is None
        assert await (await shop.double.enqueue(21)).result(timeout=20) == 42

    async def is_free() -> bool:
        return await refusal(url, other, name="honest", labels={}) is None

    await eventually(is_free)


async def test_a_name_that_an_agent_holds_while_it_reconnects_is_refused_too(
    url: str, conn: Connection, eventually: Eventually
) -> None:
    """Its connection is gone, its lease lives."""
    mine, other = await token(conn), await token(conn)
    async with rogue(url, mine, name="honest") as honest:
        pass

    async def has_left() -> bool:
        return bool(await conn.fetchval("select ended_at is not null from mainspring.agent"))

    await eventually(has_left)
    await conn.execute("update mainspring.agent set ended_at = null, lease_until = mainspring.now() + interval '1 h'")
    assert await refusal(url, other, name="honest", instance="other") is not None
    assert await refusal(url, mine, name="honest", session=honest.session) is None
    await conn.execute("update mainspring.agent set lease_until = mainspring.now(), ended_at = null")
    assert await refusal(url, other, name="honest", instance="other") is None


async def test_of_several_tokens_that_want_a_name_at_once_at_most_one_gets_it(
    shop: Shop, database: Database, dsn: str, url: str, conn: Connection
) -> None:
    secrets = [await token(conn) for _ in range(4)]
    stay = asyncio.Event()
    arrived: list[str] = []

    async def come(where: str, secret: str) -> bool:
        try:
            async with rogue(where, secret, name="wanted", instance=secret):
                arrived.append(secret)
                await stay.wait()
                return True
        except ChannelRefused:
            arrived.append("refused")
            return False

    async with server(shop, database, dsn, lease=2.0) as second:
        coming = [asyncio.ensure_future(come((url, second)[n % 2], s)) for n, s in enumerate(secrets)]
        async with asyncio.timeout(20):
            while len(arrived) < len(secrets):
                await asyncio.sleep(0.01)
        stay.set()
        assert sum(await asyncio.gather(*coming)) <= 1


async def test_two_sessions_that_both_found_the_name_free_see_each_other(conn: Connection) -> None:
    sessions = []
    for instance in ("a", "b"):
        id, _ = await tokens.create(conn, instance)
        assert await tokens.why_not(conn, id, f"new-{instance}", instance, {}, {}) is None
        sessions.append(await agents.begin(conn, AgentInfo("new", 1, {}, instance=instance, token=id), 60.0))
    assert [await tokens.is_contested(conn, session) for session in sessions] == [True, True]
    await agents.end(conn, sessions[:1])
    assert not await tokens.is_contested(conn, sessions[1])


async def test_a_session_whose_name_is_contested_ends(
    url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if both had asked at the same moment."""
    mine, other = await token(conn), await token(conn)
    async with rogue(url, mine, name="wanted", instance="first"):
        monkeypatch.setattr(tokens, "why_not", _nothing_against_it)
        assert await refusal(url, other, name="wanted", instance="second") == tokens.NAME_TAKEN
    living = "select count(*) from mainspring.agent where instance <> $1 and lease_until > mainspring.now()"
    assert await conn.fetchval(living, tokens.digest("first").hex()) == 0


async def _nothing_against_it(*_: object) -> None:
    return None


async def test_a_token_that_expires_cuts_the_connections_of_its_agents(
    shop: Shop, url: str, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    id, secret = await tokens.create(conn, "brief", expires=timedelta(hours=1))
    async with agent(shop, dsn, url, secret) as remote:
        assert await (await shop.double.enqueue(1)).result(timeout=20) == 2
        await conn.execute("update mainspring.token set expires_at = mainspring.now() where id = $1", id)

        async def is_out() -> bool:
            return remote._running.done()

        await eventually(is_out)
        assert isinstance(remote._running.exception(), AccessDenied)


async def test_a_credential_outlives_the_time_in_which_its_token_could_be_used(url: str, conn: Connection) -> None:
    once = await token(conn, once=True, expires=timedelta(hours=1))
    async with rogue(url, once) as liar:
        await conn.execute("update mainspring.token set expires_at = mainspring.now() where parent is null")
    assert liar.credential is not None
    assert await refusal(url, liar.credential) is None
    assert await conn.fetchval("select count(*) from mainspring.agent where lease_until > connected_at") > 0


async def test_a_flood_of_refused_connections_leaves_a_few_lines(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """However many windows a slow machine needs for them: each is told, one by one or in a sum."""
    monkeypatch.setattr(refusals, "WINDOW", 2.0)

    def told() -> tuple[int, int]:
        messages = [record.getMessage() for record in caplog.records]
        sums = [re.match(r"(\d+) more connections were refused", message) for message in messages]
        return sum("no valid token" in message for message in messages), sum(int(found[1]) for found in sums if found)

    with caplog.at_level(logging.INFO):
        for _ in range(20):
            with pytest.raises(InvalidStatus):
                await connect(f"{url}/agent", additional_headers={"Authorization": "Bearer no"}, proxy=None)

        async def summed_up() -> bool:
            return sum(told()) == 20

        await eventually(summed_up)
    single, summed = told()
    assert single % refusals.FIRST == 0
    assert summed > 0


async def test_two_authorization_headers_are_none(url: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    secret = await token(conn)
    headers = [("Authorization", f"Bearer {secret}"), ("Authorization", f"Bearer {secret}")]
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{url}/agent", additional_headers=headers, proxy=None)
    assert refused.value.response.status_code == 401
    assert not [record for record in caplog.records if record.exc_info]


def test_a_binding_without_patterns_allows_everything() -> None:
    assert define_binding([], []) == TokenBinding(None, None)
    assert TokenBinding().why_not("any", {"a": "b"}, ["c"]) is None
