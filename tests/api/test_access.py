"""Who may come in: tokens, hosts, origins, sessions with their cookies, guesses, rates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import httpx2
import pytest

from mainspring.api.access import guard as guards
from mainspring.api.access.origins import Origin, Origins
from mainspring.api.app import Api
from mainspring.api.make import make_api
from mainspring.api.openapi import document
from mainspring.api.rows import ROWS
from mainspring.compose.api import make_api as compose
from mainspring.config import Settings
from mainspring.errors import Forbidden, RateLimited, StoreUnavailable, ValidationError
from mainspring.model.access.actors import Access, Role
from mainspring.operations.work import tasks
from mainspring.store.access import sessions, tokens
from mainspring.store.postgres.database import Connection, Database
from tests.api.conftest import ACTOR, BASE, Caller, MakeCaller, over
from tests.api.test_app import assert_problem, submitted

SAME = {"Sec-Fetch-Site": "same-origin", "Origin": BASE}


async def code_for(conn: Connection, role: Role = Role.ADMIN) -> str:
    code, _ = await sessions.create_code(conn, "os:alice@host", role=role)
    return code


@asynccontextmanager
async def logged_in(api: Api, conn: Connection) -> AsyncIterator[Caller]:
    """A browser with a session."""
    async with over(api) as browser:
        answer = await browser.post("/api/v1/session", json={"code": await code_for(conn)})
        assert answer.status_code == 200, answer.text
        browser.headers["Mainspring-CSRF"] = answer.json()["csrf"]
        yield browser


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7070", "", "127.0.0.1.evil.example", "[::2]", "a b"])
async def test_another_host_is_refused(admin: Caller, host: str) -> None:
    assert_problem(await admin.get("/api/v1/servers", headers={"Host": host}), 421, "wrong_host")
    assert (await admin.get("/healthz", headers={"Host": host})).status_code == 200, "load balancers ask for it"


@pytest.mark.parametrize("host", ["localhost:7070", "127.0.0.1", "[::1]:7070", "LOCALHOST", "console.example"])
async def test_our_own_hosts_may(database: Database, conn: Connection, host: str) -> None:
    _, secret = await tokens.create(conn, "viewer", role=Role.VIEWER)
    api = make_api(database, origins=Origins(public_url="https://console.example/jobs"))
    async with over(api, headers={"Authorization": f"Bearer {secret}", "Host": host}) as caller:
        assert (await caller.get("/api/v1/servers")).status_code == 200


async def test_a_link_opens_once(api: Api, anybody: Caller, conn: Connection) -> None:
    code = await code_for(conn)
    first = await anybody.post("/api/v1/session", json={"code": code})
    assert first.status_code == 200
    cookie = first.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert part in cookie
    assert "Secure" not in cookie, "this is plain HTTP on loopback"
    async with over(api) as thief:
        assert_problem(await thief.post("/api/v1/session", json={"code": code}), 401, "unauthorized")


async def test_a_code_that_is_too_old_opens_nothing(anybody: Caller, conn: Connection) -> None:
    code = await code_for(conn)
    await conn.execute("update mainspring.login_code set expires_at = mainspring.now()")
    assert_problem(await anybody.post("/api/v1/session", json={"code": code}), 401, "unauthorized")


async def test_under_tls_the_cookie_is_bound_to_the_host(api: Api, conn: Connection) -> None:
    async with over(api, base_url="https://127.0.0.1:7070") as browser:
        answer = await browser.post("/api/v1/session", json={"code": await code_for(conn)})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-mainspring-7070=")
    assert "Secure" in cookie


async def test_two_installations_on_one_host_do_not_log_each_other_out(
    database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser has one jar of cookies for a host, whatever the port."""
    monkeypatch.setattr(guards, "BELIEVED", 0.0)
    first, second = make_api(database), make_api(database)
    jar = httpx2.Cookies()
    for api, base in ((first, "http://127.0.0.1:7070"), (second, "http://127.0.0.1:7071")):
        async with over(api, base_url=base, cookies=jar) as browser:
            assert (await browser.post("/api/v1/session", json={"code": await code_for(conn)})).status_code == 200
            jar = browser.cookies
    async with (
        over(first, cookies=jar) as browser,
        over(second, base_url="http://127.0.0.1:7071", cookies=jar) as other,
    ):
        assert (await browser.get("/api/v1/session")).status_code == 200
        session = (await other.get("/api/v1/session")).json()
        headers = {"Origin": "http://127.0.0.1:7071", "Mainspring-CSRF": session["csrf"]}
        assert (await other.delete("/api/v1/session", headers=headers)).status_code == 204
        assert (await browser.get("/api/v1/session")).status_code == 200
    for api in (first, second):
        await api.close()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("example.org", "mainspring"),
        ("example.org:7070", "mainspring-7070"),
        ("[::1]:7071", "mainspring-7071"),
        ("[::1]", "mainspring"),
        ("", "mainspring"),
        ("a:b=c; x", "mainspring"),
    ],
)
def test_the_name_of_the_cookie_has_the_port(host: str, name: str) -> None:
    assert Origin("127.0.0.1", "http", host).cookie == name


async def test_a_session_reads_and_changes_with_its_csrf_value(api: Api, conn: Connection, job: str) -> None:
    id = await submitted(conn, job)
    async with logged_in(api, conn) as browser:
        assert (await browser.get("/api/v1/session")).json()["role"] == "admin"
        assert (await browser.post(f"/api/v1/tasks/{id}/cancel", headers=SAME)).status_code == 202


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://other.127.0.0.1"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
        SAME | {"Mainspring-CSRF": ""},
        SAME | {"Mainspring-CSRF": "0" * 64},
    ],
)
async def test_a_page_of_another_site_changes_nothing(
    api: Api, conn: Connection, job: str, headers: dict[str, str]
) -> None:
    id = await submitted(conn, job)
    async with logged_in(api, conn) as browser:
        answer = await browser.post(f"/api/v1/tasks/{id}/cancel", headers=headers)
        assert_problem(answer, 403, "forbidden")
        assert (await browser.get(f"/api/v1/tasks/{id}")).status_code == 200, "reading is no change"
    assert await conn.fetchval("select state from mainspring.task where id = $1", id) == 1


async def test_a_log_out_ends_the_session_everywhere(api: Api, database: Database, conn: Connection) -> None:
    async with logged_in(api, conn) as browser:
        cookies = dict(browser.cookies)
        assert (await browser.delete("/api/v1/session", headers=SAME)).status_code == 204
        assert_problem(await browser.get("/api/v1/session"), 401, "unauthorized")
    async with over(make_api(database), cookies=cookies) as elsewhere:
        assert_problem(await elsewhere.get("/api/v1/session"), 401, "unauthorized")


class Away:
    """A PostgreSQL that does not answer."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        raise StoreUnavailable("PostgreSQL does not answer")


async def test_who_asks_how_things_are_is_believed_while_postgresql_does_not_answer(
    api: Api, as_role: MakeCaller, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "BELIEVED", 0.0)
    viewer, stranger = await as_role(Role.VIEWER), await as_role(Role.VIEWER)
    assert (await viewer.get("/metrics")).status_code == 200
    with monkeypatch.context() as outage:
        outage.setattr(api.guard, "_connections", Away())
        assert (await viewer.get("/metrics")).status_code == 200
        assert (await viewer.get("/api/v1/health")).json()["status"] == "unhealthy"
        assert_problem(await viewer.get("/api/v1/stats"), 503, "store_unavailable")
        assert_problem(await stranger.get("/metrics"), 503, "store_unavailable")
    await conn.execute("update mainspring.token set revoked_at = mainspring.now()")
    assert_problem(await viewer.get("/metrics"), 401, "unauthorized")
    monkeypatch.setattr(api.guard, "_connections", Away())
    assert_problem(await viewer.get("/metrics"), 503, "store_unavailable")


class Unreachable:
    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        raise StoreUnavailable("PostgreSQL at /srv/db/socket:5432 refuses the user 'shop'; correct the DSN")
        yield


async def test_why_postgresql_is_away_is_logged_and_not_told_to_anybody(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can be checked then, so whoever asks would read the address and the user of the database."""
    api = make_api(Unreachable())
    async with over(api, headers={"Authorization": "Bearer ms_guessed"}) as stranger:
        for answer in (
            await stranger.get("/api/v1/tasks"),
            await stranger.post("/api/v1/session", json={"token": "ms_guessed"}),
        ):
            assert_problem(answer, 503, "store_unavailable")
            assert "retry-after" in answer.headers
            assert "/srv" not in answer.text
            assert "shop" not in answer.text
    assert [record.getMessage() for record in caplog.records if "/srv/db" in record.getMessage()] == [
        "no connection for a request: PostgreSQL at /srv/db/socket:5432 refuses the user 'shop'; correct the DSN"
    ], "once, not for each request"
    await api.close()


async def test_requests_of_one_token_that_come_at_once_share_a_lookup(
    as_role: MakeCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, find = [], tokens.find

    async def counted(conn: Connection, secret: str) -> Any:
        looked_up.append(secret)
        return await find(conn, secret)

    monkeypatch.setattr(tokens, "find", counted)
    viewer, other = await as_role(Role.VIEWER), await as_role(Role.VIEWER)
    answers = await asyncio.gather(*(caller.get("/api/v1/session") for caller in [viewer, other] * 10))
    assert {answer.status_code for answer in answers} == {200}
    assert len(looked_up) == 2


async def test_requests_of_one_token_share_a_failure_too(
    api: Api, as_role: MakeCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = []

    class Silent:
        @asynccontextmanager
        async def acquire(self) -> AsyncIterator[Connection]:
            lookups.append(1)
            await asyncio.sleep(0.05)
            raise StoreUnavailable("PostgreSQL does not answer")
            yield

    viewer = await as_role(Role.VIEWER)
    monkeypatch.setattr(api.guard, "_connections", Silent())
    for answer in await asyncio.gather(*(viewer.get("/api/v1/session") for _ in range(10))):
        assert_problem(answer, 503, "store_unavailable")
    assert len(lookups) == 1


async def test_a_lookup_that_is_given_up_leaves_the_others_theirs(
    as_role: MakeCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, find = asyncio.Event(), tokens.find

    async def silent_at_first(conn: Connection, secret: str) -> Any:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return await find(conn, secret)

    monkeypatch.setattr(tokens, "find", silent_at_first)
    viewer = await as_role(Role.VIEWER)
    first = asyncio.create_task(viewer.get("/api/v1/session"))
    await began.wait()
    others = [asyncio.create_task(viewer.get("/api/v1/session")) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(20):
        assert {(await other).status_code for other in others} == {200}


async def test_a_revoked_token_is_void_within_two_seconds(
    api: Api, as_role: MakeCaller, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = await as_role(Role.VIEWER)
    assert (await viewer.get("/api/v1/servers")).status_code == 200
    await conn.execute("update mainspring.token set revoked_at = mainspring.now()")
    assert guards.BELIEVED < 2
    monkeypatch.setattr(guards, "BELIEVED", 0.0)
    assert_problem(await viewer.get("/api/v1/servers"), 401, "unauthorized")


async def test_who_waits_with_a_token_that_is_revoked_is_not_told_the_end(
    api: Api, as_role: MakeCaller, conn: Connection, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "BELIEVED", 0.0)
    operator = await as_role(Role.OPERATOR)
    id = await submitted(conn, job)
    reading = asyncio.create_task(operator.get(f"/api/v1/tasks/{id}?wait=30"))
    submitting = asyncio.create_task(operator.post("/api/v1/tasks?wait=30", json={"job": job}))
    while len(made := [row["id"] for row in await conn.fetch("select id from mainspring.task")]) < 2:
        await asyncio.sleep(0.01)
    await conn.execute("update mainspring.token set revoked_at = mainspring.now()")
    for one in made:
        await tasks.cancel(conn, ACTOR, one)
    api.hint(made)
    assert_problem(await reading, 401, "unauthorized")
    answer = await submitting
    assert answer.status_code == 201, "what it submitted is there: an error would let it submit again"
    assert answer.json().keys() == {"id", "state", "created"}


async def test_an_address_that_guesses_is_made_to_wait(anybody: Caller, as_role: MakeCaller) -> None:
    guesses = [
        (await anybody.get("/api/v1/servers", headers={"Authorization": f"Bearer ms_{n}"})).status_code
        for n in range(12)
    ]
    assert guesses == [401] * 10 + [429] * 2
    viewer = await as_role(Role.VIEWER)
    assert (await viewer.get("/api/v1/servers")).status_code == 200, "who has a valid token need not guess"
    refused = await anybody.post("/api/v1/session", json={"code": "x"})
    told = assert_problem(refused, 429, "rate_limited")
    assert refused.headers["retry-after"] == str(told["retry_after"])


async def test_a_rate_of_a_token_holds(as_role: MakeCaller) -> None:
    slow = await as_role(Role.OPERATOR, rate=2.0)
    statuses = [(await slow.get("/api/v1/servers")).status_code for _ in range(6)]
    assert statuses[:4] == [200] * 4, "twice the rate at once"
    assert 429 in statuses[4:]


async def test_settings_change_the_bounds(database: Database, conn: Connection) -> None:
    settings = Settings(api_rate=1.0, api_failures=1.0, api_streams=3, api_streams_per_token=1)
    api = compose(settings, database)
    app = cast(Api, api.app)
    _, secret = await tokens.create(conn, "viewer", role=Role.VIEWER)
    async with over(app, headers={"Authorization": f"Bearer {secret}"}) as viewer:
        statuses = [(await viewer.get("/api/v1/session")).status_code for _ in range(4)]
    async with over(app) as anybody:
        guessed = {"Authorization": "Bearer ms_guessed"}
        guesses = [(await anybody.get("/api/v1/session", headers=guessed)).status_code for _ in range(3)]
    assert statuses[:2] == [200, 200]
    assert 429 in statuses[2:]
    assert guesses[0] == 401
    assert 429 in guesses[1:]
    with app.streams.admit("a"), pytest.raises(RateLimited, match="1 streams"), app.streams.admit("a"):
        pass
    await api.close()


async def test_an_agents_token_opens_nothing_here(as_role: MakeCaller) -> None:
    agent = await as_role(Role.AGENT)
    assert_problem(await agent.get("/api/v1/session"), 403, "forbidden")


async def test_refused_attempts_are_in_the_audit_but_not_all(as_role: MakeCaller, conn: Connection) -> None:
    viewer = await as_role(Role.VIEWER)
    for _ in range(15):
        assert (await viewer.post("/api/v1/tasks/1/retry")).status_code == 403
    refused = "select count(*) from mainspring.audit where actor = 'token:viewer-0' and refused is not null"
    assert await conn.fetchval(f"{refused} and action = 'task.retry' and subject = 'task:1'") == 10


async def test_what_an_operation_refuses_is_in_the_audit_too(as_role: MakeCaller, conn: Connection, job: str) -> None:
    viewer = await as_role(Role.VIEWER)
    assert_problem(await viewer.get(f"/api/v1/jobs/{job}?reveal=true"), 403, "forbidden")
    [found] = await conn.fetch("select action, subject, refused from mainspring.audit where actor = 'token:viewer-0'")
    assert (found["action"], found["subject"]) == ("job.show", f"job:{job}")
    assert "takes the role admin" in found["refused"]


async def test_mounted_the_application_says_who_calls(database: Database) -> None:
    def authorize(scope: dict[str, object]) -> Access | None:
        headers = dict(scope["headers"])  # type: ignore[call-overload]
        return Access("alice", Role.OPERATOR) if headers.get(b"x-user") == b"alice" else None

    api = make_api(database, authorize=authorize)
    async with over(api, headers={"X-User": "alice"}) as alice, over(api) as stranger:
        assert (await alice.get("/api/v1/session")).json()["name"] == "alice"
        assert_problem(await stranger.get("/api/v1/session"), 401, "unauthorized")
        crossing = await alice.post("/api/v1/tasks/1/retry", headers={"Origin": "http://evil.example"})
        assert_problem(crossing, 403, "forbidden")
        csrf = (await alice.get("/api/v1/session")).json()["csrf"]
        mine = await alice.post("/api/v1/tasks/1/retry", headers=SAME | {"Mainspring-CSRF": csrf})
        assert_problem(mine, 404, "task_not_found")
        basic = {"Origin": "http://evil.example", "Authorization": "Basic YTpi"}  # browsers send it by themselves
        assert_problem(await alice.post("/api/v1/tasks/1/retry", headers=basic), 403, "forbidden")
        program = await alice.post("/api/v1/tasks/1/retry", headers={"Authorization": "Bearer of-the-application"})
        assert_problem(program, 404, "task_not_found")


PAGE = {"Origin": "https://intranet.example"}
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def test_pages_of_another_site_read_answers_only_if_the_settings_name_it(
    database: Database, conn: Connection
) -> None:
    _, secret = await tokens.create(conn, "page", role=Role.VIEWER)
    token = {"Authorization": f"Bearer {secret}"}
    for origins, named in ((Origins(), False), (Origins(cors=["https://intranet.example"]), True)):
        api = make_api(database, origins=origins)
        async with over(api) as client:
            for headers in (PAGE, {"Origin": "https://intranet.example.evil"}):
                is_allowed = named and headers is PAGE
                answer = await client.get("/api/v1/stats", headers=token | headers)
                assert answer.status_code == 200
                assert answer.headers.get("access-control-allow-origin") == (headers["Origin"] if is_allowed else None)
                assert "access-control-allow-credentials" not in answer.headers, "never with a cookie"
                asked = await client.options("/api/v1/tasks", headers=PREFLIGHT | headers)
                assert ("access-control-allow-headers" in asked.headers) == is_allowed
        await api.close()


async def test_a_named_site_may_send_every_header_of_a_request(database: Database) -> None:
    api = make_api(database, origins=Origins(cors=["https://intranet.example"]))
    async with over(api) as client:
        answer = await client.options("/api/v1/tasks", headers=PREFLIGHT | PAGE)
    allowed = {name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")}
    taken = {
        parameter["name"].lower()
        for operations in document(ROWS)["paths"].values()
        for operation in operations.values()
        for parameter in operation["parameters"]
        if parameter["in"] == "header"
    }
    assert allowed == taken | {"authorization", "content-type", "mainspring-request-id"}
    await api.close()


def test_proxies_are_believed_only_if_they_are_ours() -> None:
    origins = Origins(trusted=["10.0.0.0/8"])
    sent = {"x-forwarded-for": "6.6.6.6, 1.2.3.4, 10.0.0.9", "x-forwarded-proto": "https", "host": "a"}
    ours = origins.of({"client": ("10.0.0.1", 1), "scheme": "http"}, sent)
    assert ours == Origin("1.2.3.4", "https", "a"), "what stands before the last stranger anybody may have written"
    other = origins.of({"client": ("9.9.9.9", 1), "scheme": "http"}, sent)
    assert other == Origin("9.9.9.9", "http", "a")
    with pytest.raises(ValidationError):
        Origins(trusted=["here"])


def test_an_origin_behind_a_prefix_is_ours() -> None:
    origins = Origins(public_url="https://console.example/jobs")
    origins.check_same(Origin("1.2.3.4", "http", "10.0.0.1:7070"), {"origin": "https://console.example"})
    with pytest.raises(Forbidden):
        origins.check_same(Origin("1.2.3.4", "http", "10.0.0.1:7070"), {"origin": "https://evil.example"})


@pytest.mark.parametrize("public_url", [None, "https://console.example"])
def test_under_tls_a_page_that_came_without_it_is_not_ours(public_url: str | None) -> None:
    """Anybody on the way may have written it; an Origin does not name the default port of its scheme."""
    origins, host = Origins(public_url=public_url), "console.example"
    origins.check_same(Origin("1.2.3.4", "https", host), {"origin": "https://console.example"})
    with pytest.raises(Forbidden):
        origins.check_same(Origin("1.2.3.4", "https", host), {"origin": "http://console.example"})
    # A proxy that ends TLS and is not told of in the settings: the server does not know.
    origins.check_same(Origin("1.2.3.4", "http", host), {"origin": "https://console.example"})
    origins.check_same(Origin("1.2.3.4", "http", "127.0.0.1:7070"), {"origin": "http://127.0.0.1:7070"})


async def test_a_role_that_there_is_not_is_refused_with_those_there_are(as_role: MakeCaller) -> None:
    answer = await (await as_role(Role.ADMIN)).post("/api/v1/tokens", json={"name": "x", "role": "king"})
    assert_problem(answer, 422, "validation")
    assert answer.json()["message"] == f"role: use {', '.join(role.value for role in Role)}"
