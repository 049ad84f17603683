"""An attacker with a browser, a cookie or a token that is not enough: what test_access.py does not try."""

from __future__ import annotations

import pytest

from mainspring.api.access import guard as guards
from mainspring.api.app import Api
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from tests.api.conftest import Caller, MakeCaller, over
from tests.api.serving import serving, streaming
from tests.api.test_access import SAME, code_for, logged_in
from tests.api.test_app import assert_problem, submitted


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://127.0.0.1:7071",  # another port is another origin
        "http://127.0.0.1",
        "http://console.127.0.0.1:7070",
        "http://127.0.0.1:7070.evil.example",
        "http://127.0.0.1:7070@evil.example",
        "http://evil.example/127.0.0.1:7070",
        "http://[::1",
        "",
    ],
)
async def test_an_origin_that_only_looks_like_ours_changes_nothing(
    api: Api, conn: Connection, job: str, origin: str
) -> None:
    id = await submitted(conn, job)
    async with logged_in(api, conn) as browser:
        for headers in ({"Origin": origin}, {"Origin": origin, "Sec-Fetch-Site": "same-origin"}):
            answer = await browser.post(f"/api/v1/tasks/{id}/cancel", headers=headers)
            assert_problem(answer, 403, "forbidden")
    assert await conn.fetchval("select state from mainspring.task where id = $1", id) == 1


async def test_a_login_for_a_page_of_another_site_sets_no_cookie(api: Api, conn: Connection) -> None:
    """Else a page could log a victim in as the attacker, and read what it does there."""
    async with over(api) as browser:
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            answer = await browser.post("/api/v1/session", json={"code": await code_for(conn)}, headers=headers)
            assert_problem(answer, 403, "forbidden")
            assert "set-cookie" not in answer.headers


async def test_a_login_makes_a_new_secret_whatever_cookie_came_with_it(api: Api, conn: Connection) -> None:
    async with over(api, cookies={"mainspring-7070": "fixed-by-somebody-else"}) as browser:
        answer = await browser.post("/api/v1/session", json={"code": await code_for(conn)})
        assert answer.status_code == 200
        assert "fixed-by-somebody-else" not in answer.headers["set-cookie"]
    async with over(api, headers={"Cookie": "mainspring-7070=fixed-by-somebody-else"}) as thief:
        assert_problem(await thief.get("/api/v1/session"), 401, "unauthorized")


async def test_a_code_or_a_token_in_the_query_opens_nothing(anybody: Caller, conn: Connection) -> None:
    """A query is in logs and histories."""
    code = await code_for(conn)
    _, secret = await tokens.create(conn, "admin", role=Role.ADMIN)
    refused = await anybody.post(f"/api/v1/session?code={code}", json={})
    assert_problem(refused, 422, "validation")
    for name in ("token", "access_token", "authorization"):
        assert_problem(await anybody.get(f"/api/v1/session?{name}={secret}"), 401, "unauthorized")
    assert (await anybody.post("/api/v1/session", json={"code": code})).status_code == 200, "it was not used up"


async def test_of_several_cookies_one_that_is_bound_to_the_host_counts(api: Api, conn: Connection) -> None:
    """A sibling subdomain can set `mainspring-7070`, but no browser lets it set `__Host-mainspring-7070`."""
    async with over(api, base_url="https://127.0.0.1:7070") as browser:
        answer = await browser.post("/api/v1/session", json={"code": await code_for(conn)})
    own = answer.headers["set-cookie"].partition(";")[0]
    async with over(api, base_url="https://127.0.0.1:7070") as browser:
        for cookies in (f"mainspring-7070=other; {own}", f"{own}; mainspring-7070=other", f"a=b; {own}; c"):
            found = await browser.get("/api/v1/session", headers={"Cookie": cookies})
            assert found.status_code == 200, cookies
        for cookies in ("X=a; X=b", "X=", "X", "=;=;", "X=" + "x" * 5000):
            given = {"Cookie": cookies.replace("X", "mainspring-7070")}
            assert_problem(await browser.get("/api/v1/session", headers=given), 401, "unauthorized")


async def test_a_session_ends_with_its_token_and_so_does_its_open_stream(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "BELIEVED", 0.1)
    id, secret = await tokens.create(conn, "admin", role=Role.ADMIN)
    async with serving(dsn) as served, served.client("") as browser:
        del browser.headers["authorization"]
        assert (await browser.post("/session", json={"token": secret})).status_code == 200
        async with streaming(browser, "/events?topics=alerts") as stream:
            await stream.until("ready")
            await conn.execute("update mainspring.token set revoked_at = mainspring.now() where id = $1", id)
            assert (await stream.until("bye")).data == {"reason": "revoked"}
        assert_problem(await browser.get("/session"), 401, "unauthorized")


async def test_a_viewer_reads_no_secret_and_reveals_none(as_role: MakeCaller, admin: Caller) -> None:
    definition = {"run": {"type": "command", "argv": ["x"], "env": {"API_TOKEN": "hunter2"}}}
    assert (await admin.put("/api/v1/jobs/secretive", json=definition)).status_code == 201
    viewer = await as_role(Role.VIEWER)
    for path in ("/jobs/secretive", "/jobs"):
        assert "hunter2" not in (await viewer.get(f"/api/v1{path}")).text
    refused = assert_problem(await viewer.get("/api/v1/jobs/secretive?reveal=true"), 403, "forbidden")
    assert (refused["role"], refused["roles"]) == ("admin", ["admin"])
    masked = (await admin.get("/api/v1/jobs/secretive")).json()["definition"]
    assert_problem(await admin.put("/api/v1/jobs/secretive", json=masked), 422, "validation")
    assert "hunter2" in (await admin.get("/api/v1/jobs/secretive?reveal=true")).text, "the mask replaced nothing"
    assert "hunter2" not in (await admin.get("/api/v1/audit")).text


async def test_a_key_replays_nothing_to_another_caller(as_role: MakeCaller, job: str) -> None:
    key = {"Idempotency-Key": "guessed"}
    first, second = await as_role(Role.SUBMITTER), await as_role(Role.SUBMITTER, jobs=("report*",))
    made = await first.post("/api/v1/tasks", json={"job": job}, headers=key)
    assert made.status_code == 201
    assert_problem(await second.post("/api/v1/tasks", json={"job": job}, headers=key), 404, "job_not_found")


async def test_a_change_after_log_out_needs_a_new_session(api: Api, conn: Connection, job: str) -> None:
    id = await submitted(conn, job)
    async with logged_in(api, conn) as browser:
        cookies = dict(browser.cookies)
        csrf = browser.headers["Mainspring-CSRF"]
        await browser.delete("/api/v1/session", headers=SAME)
    async with over(api, cookies=cookies) as thief:
        headers = {**SAME, "Mainspring-CSRF": csrf}
        assert_problem(await thief.post(f"/api/v1/tasks/{id}/cancel", headers=headers), 401, "unauthorized")
