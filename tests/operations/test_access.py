"""Tokens, logins and sessions: none gives more than its maker has."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.operations.conftest import ACTOR, BAD_NAME

from mainspring.errors import BadCursor, Forbidden, NotFound, TokenNotFound, Unauthorized, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.operations import access
from mainspring.store.access import audit, sessions, tokens
from mainspring.store.postgres.database import Connection

NARROW = Actor("token:reports", Role.ADMIN, ("report*",))
NOBODY = Actor("anonymous", Role.VIEWER, (), "10.0.0.7", "r-1")


async def test_a_token_lets_agents_in_until_it_is_revoked(conn: Connection) -> None:
    made = await access.create_token(conn, ACTOR, "rack-7", expires="1h", once=True)
    assert made.token is not None
    assert await tokens.check(conn, made.token) == made.id
    [listed] = (await access.list_tokens(conn, ACTOR)).items
    assert (listed.id, listed.name, listed.once, listed.revoked_at) == (made.id, "rack-7", True, None)
    assert made.token not in str(listed), "the secret is never told again"
    await access.revoke_token(conn, ACTOR, made.id)
    assert await tokens.check(conn, made.token) is None
    assert ((await access.list_tokens(conn, ACTOR)).items)[0].revoked_at is not None


async def test_a_token_of_a_program_has_what_it_was_made_with(conn: Connection) -> None:
    made = await access.create_token(
        conn, ACTOR, "ci", role=Role.SUBMITTER, jobs=["report*", "report*"], rate=50, expires=86400
    )
    assert await tokens.check(conn, made.token or "") is None, "it is no agent's"
    found = await tokens.find(conn, made.token or "")
    assert found is not None
    assert (found.role, found.jobs, found.rate, found.created_by) == (Role.SUBMITTER, ["report*"], 50.0, "test")
    assert found.expires_at is not None
    actor = found.acting("10.0.0.7", "r-1")
    assert actor == Actor("token:ci", Role.SUBMITTER, ("report*",), "10.0.0.7", "r-1", token=made.id)
    assert not actor.reaches("bill")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("name", {"name": BAD_NAME}),
        ("jobs", {"role": Role.VIEWER, "jobs": "report*"}),
        ("jobs", {"role": Role.VIEWER, "jobs": [BAD_NAME]}),
        ("jobs", {"jobs": ["report*"]}),
        ("role", {"role": Role.VIEWER, "once": True}),
        ("role", {"role": Role.VIEWER, "labels": ["gpu"]}),
        ("rate", {"rate": 0}),
        ("rate", {"rate": float("nan")}),
        ("expires", {"expires": "0s"}),
        ("expires", {"expires": "soon"}),
        ("namespaces", {"namespaces": ["other"]}),
        ("namespaces", {"namespaces": []}),
    ],
)
async def test_what_is_wrong_with_a_token_is_refused(conn: Connection, field: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        await access.create_token(conn, ACTOR, given.pop("name", "ci"), **given)
    assert raised.value.field == field
    assert (await access.list_tokens(conn, ACTOR)).items == []


async def test_a_token_that_is_not_there_cannot_be_revoked(conn: Connection) -> None:
    with pytest.raises(TokenNotFound):
        await access.revoke_token(conn, ACTOR, 99)


@pytest.mark.parametrize("role", sorted(set(Role) - {Role.ADMIN}))
async def test_only_an_admin_hands_out_access(conn: Connection, role: Role) -> None:
    actor = Actor("token:x", role)
    for call in (
        lambda: access.create_token(conn, actor, "new", role=role),
        lambda: access.create_login(conn, actor),
        lambda: access.list_tokens(conn, actor),
        lambda: access.revoke_token(conn, actor, 1),
        lambda: access.list_sessions(conn, actor),
        lambda: access.revoke_session(conn, actor, 1),
        lambda: access.list_audit(conn, actor),
        lambda: access.grant_role(conn, actor, "viewer", "postgres", dry_run=True),
    ):
        with pytest.raises(Forbidden, match="admin"):
            await call()


@pytest.mark.parametrize(
    ("role", "jobs"),
    [(Role.VIEWER, []), (Role.VIEWER, ["*"]), (Role.ADMIN, ["report", "bill"]), (Role.AGENT, []), (Role.METRICS, [])],
)
async def test_a_narrow_admin_hands_out_nothing_beyond_its_jobs(conn: Connection, role: Role, jobs: list[str]) -> None:
    reason = "cannot make" if role in access.FOR_PEOPLE else "needs an admin of all jobs"
    with pytest.raises(Forbidden, match=f"admin of report.*{reason}"):
        await access.create_token(conn, NARROW, "new", role=role, jobs=jobs)
    if role not in (Role.AGENT, Role.METRICS):
        with pytest.raises(Forbidden, match="admin of report"):
            await access.create_login(conn, NARROW, role=role, jobs=jobs)
    assert (await access.list_tokens(conn, ACTOR)).items == []


async def test_a_narrow_admin_sees_and_ends_only_what_is_within_its_jobs(conn: Connection) -> None:
    wide = await access.create_token(conn, ACTOR, "wide", role=Role.VIEWER)
    rack = await access.create_token(conn, ACTOR, "rack")
    own = await access.create_token(conn, NARROW, "own", role=Role.ADMIN, jobs=["report-*"])
    assert [token.id for token in (await access.list_tokens(conn, NARROW)).items] == [own.id]
    for other in (wide, rack):
        with pytest.raises(TokenNotFound):
            await access.revoke_token(conn, NARROW, other.id)
        assert await tokens.find(conn, other.token or "") is not None
    await access.revoke_token(conn, NARROW, own.id)
    for maker in (ACTOR, NARROW):
        await access.exchange_login(conn, NOBODY, code=(await access.create_login(conn, maker)).code)
    everybody, [mine] = (
        (await access.list_sessions(conn, ACTOR)).items,
        (await access.list_sessions(conn, NARROW)).items,
    )
    other_session = next(session for session in everybody if session.id != mine.id)
    with pytest.raises(NotFound):
        await access.revoke_session(conn, NARROW, other_session.id)
    assert len((await access.list_sessions(conn, ACTOR)).items) == 2
    await access.revoke_session(conn, NARROW, mine.id)
    with pytest.raises(Forbidden, match="all jobs"):
        await access.list_audit(conn, NARROW)


async def test_a_login_becomes_a_session_in_the_name_of_its_maker(conn: Connection) -> None:
    login = await access.create_login(conn, ACTOR, role=Role.OPERATOR, jobs=["report*"])
    made = await access.exchange_login(conn, NOBODY, code=login.code)
    assert (made.session.actor, made.session.role, made.session.address) == ("test", Role.OPERATOR, "10.0.0.7")
    with pytest.raises(Unauthorized, match="used or has expired"):
        await access.exchange_login(conn, NOBODY, code=login.code)
    found = await sessions.find(conn, made.secret)
    assert found is not None
    actor = found.acting()
    assert (actor.name, actor.role, actor.jobs) == (f"session:{found.id}", Role.OPERATOR, ("report*",))
    who = await access.who(conn, actor)
    assert (who.name, who.role, who.jobs, who.session) == (actor.name, Role.OPERATOR, ("report*",), found.id)
    assert who.expires_at == made.session.expires_at
    await access.logout(conn, actor)
    assert await sessions.find(conn, made.secret) is None


async def test_a_token_opens_a_session_that_ends_with_it(conn: Connection) -> None:
    token = await access.create_token(conn, ACTOR, "alice", role=Role.ADMIN, expires="1h")
    made = await access.exchange_login(conn, NOBODY, token=token.token)
    opened = made.session.acting()
    nested = await access.exchange_login(conn, NOBODY, code=(await access.create_login(conn, opened)).code)
    assert nested.session.token == token.id
    who = await access.who(conn, replace(opened, session=None))
    assert who.expires_at is not None, "the token's"
    await access.revoke_token(conn, ACTOR, token.id)
    assert await sessions.find(conn, made.secret) is None
    assert await sessions.find(conn, nested.secret) is None, "nor does a login that was made in it live on"


@pytest.mark.parametrize("given", [{"code": "x"}, {"token": "ms_x"}, {"token": "\udcff\x00"}])
async def test_a_wrong_code_or_token_opens_nothing(conn: Connection, given: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        await access.exchange_login(conn, NOBODY, **given)
    assert (await access.list_sessions(conn, ACTOR)).items == []


@pytest.mark.parametrize("given", [{}, {"code": "x", "token": "y"}])
async def test_a_login_takes_a_code_or_a_token(conn: Connection, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        await access.exchange_login(conn, NOBODY, **given)


async def test_the_audit_is_read_in_pages_whose_cursors_belong_to_their_filters(conn: Connection) -> None:
    for number in range(7):
        await audit.record(conn, ACTOR, "task.cancel", f"task:{number}")
        await audit.refused(conn, NOBODY, "job.delete", "job:report", "forbidden")
    page = await access.list_audit(conn, ACTOR, action="task.*", limit=5)
    assert [entry.subject for entry in page.items] == [f"task:{number}" for number in (6, 5, 4, 3, 2)]
    rest = await access.list_audit(conn, ACTOR, action="task.*", limit=5, cursor=page.next)
    assert ([entry.subject for entry in rest.items], rest.next) == (["task:1", "task:0"], None)
    refused = await access.list_audit(conn, ACTOR, actor="anonymous")
    assert {entry.refused for entry in refused.items} == {"forbidden"}
    either = await access.list_audit(conn, ACTOR, subject=["task:3", "task:5", "job:x*"], actor=["none", ACTOR.name])
    assert [entry.subject for entry in either.items] == ["task:5", "task:3"]
    with pytest.raises(BadCursor):
        await access.list_audit(conn, ACTOR, action="job.*", cursor=page.next)
    with pytest.raises(ValidationError):
        await access.list_audit(conn, ACTOR, subject="a\x00b")
