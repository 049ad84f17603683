"""The API mounted in the web applications of others: FastAPI, Starlette and Django, each the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import django
import fastapi
import httpx2
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount

import mainspring
from mainspring.model.secrets.keys import new_key

SAME = {"Sec-Fetch-Site": "same-origin", "Origin": "http://shop.example"}


async def who(scope: Any) -> mainspring.Access | None:
    """The login of the application, as far as this test needs one."""
    user = dict(scope["headers"]).get(b"x-user", b"").decode()
    return mainspring.Access(user, mainspring.Role.OPERATOR) if user else None


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[mainspring.App]:
    app = mainspring.App("shop", dsn=dsn)

    @app.job
    async def report(day: str) -> str:
        return day

    async with app:
        yield app


def in_fastapi(app: mainspring.App) -> Any:
    web = fastapi.FastAPI()
    web.mount("/ops/jobs", mainspring.asgi(app, authorize=who))

    @web.get("/own")
    def own() -> str:
        return "mine"

    return web


def in_starlette(app: mainspring.App) -> Any:
    return Starlette(routes=[Mount("/ops/jobs", mainspring.asgi(app, authorize=who))])


def own(request: HttpRequest) -> HttpResponse:
    return HttpResponse("mine")


urlpatterns = [path("own", own)]


def in_django(app: mainspring.App) -> Any:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="test", USE_TZ=True)
        django.setup()
    pages, mounted = get_asgi_application(), mainspring.asgi(app, authorize=who)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/ops/jobs/"):
            await mounted({**scope, "root_path": "/ops/jobs"}, receive, send)
        else:
            await pages(scope, receive, send)

    return application


@pytest.fixture(params=[in_fastapi, in_starlette, in_django])
async def alice(request: pytest.FixtureRequest, app: mainspring.App) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=request.param(app))
    headers = {"X-User": "alice"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example", headers=headers) as client:
        yield client


async def test_who_has_logged_in_there_is_known_here(alice: httpx2.AsyncClient) -> None:
    told = (await alice.get("/ops/jobs/api/v1/session")).json()
    assert (told["name"], told["role"]) == ("alice", "operator")
    stranger = await alice.get("/ops/jobs/api/v1/session", headers={"X-User": ""})
    assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthorized")


async def test_its_role_counts_and_other_sites_are_refused(app: mainspring.App, alice: httpx2.AsyncClient) -> None:
    task = await app["report"].enqueue("2026-11-15")
    url = f"/ops/jobs/api/v1/tasks/{task.id}/cancel"
    assert (await alice.post(url, headers={"Origin": "http://evil.example"})).status_code == 403
    csrf = (await alice.get("/ops/jobs/api/v1/session")).json()["csrf"]
    mine = {"Sec-Fetch-Site": "same-origin", "Mainspring-CSRF": csrf}
    assert (await alice.post(url, headers=mine)).status_code == 202
    assert (await alice.get("/ops/jobs/api/v1/tokens")).status_code == 403, "an operator is no admin"


async def test_the_pages_of_the_application_are_its_own(alice: httpx2.AsyncClient) -> None:
    answer = await alice.get("/own")
    assert answer.status_code in (200, 404)
    assert "mainspring-request-id" not in answer.headers


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")  # applications still give it
@pytest.mark.parametrize("passed_on", ["/proxy", ""], ids=["whole path", "prefix cut off"])
@pytest.mark.parametrize("mounted_at", ["/ops", ""], ids=["below a path", "at the root"])
async def test_it_is_found_in_an_application_behind_a_proxy_with_a_prefix(
    app: mainspring.App, passed_on: str, mounted_at: str
) -> None:
    web = fastapi.FastAPI(root_path="/proxy")
    web.mount(mounted_at, mainspring.asgi(app, authorize=who))
    transport = httpx2.ASGITransport(app=web)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as alice:
        alice.headers["X-User"] = "alice"
        for path in ("/api/v1/session", "/api/v1/tasks", "/api/v1/jobs/a%2Fb"):
            answer = await alice.get(f"{passed_on}{mounted_at}{path}")
            assert (answer.status_code, answer.text) == (404 if "jobs" in path else 200, answer.text)
            assert "a/b" in answer.text or "jobs" not in path, "the path was found, and the job was not"
        described = (await alice.get(f"{passed_on}{mounted_at}/openapi.json")).json()
        assert described["servers"] == [{"url": f"/proxy{mounted_at}"}], "where the browser reaches it"


async def test_there_is_no_login_of_ours(alice: httpx2.AsyncClient) -> None:
    assert (await alice.get("/ops/jobs/login")).status_code == 404
    assert (await alice.post("/ops/jobs/api/v1/session", json={"code": "x"})).status_code == 405


async def test_its_options_are_those_of_a_server(app: mainspring.App) -> None:
    mounted = mainspring.asgi(
        app,
        authorize=who,
        public_url="https://shop.example/ops",
        allowed_hosts=["jobs.example"],
        trusted_proxies=["127.0.0.0/8"],
        keep="30d",
        rate=2.0,
    )

    async def behind_proxy(scope: Any, receive: Any, send: Any) -> None:
        await mounted({**scope, "client": ("127.0.0.1", 1)}, receive, send)

    transport = httpx2.ASGITransport(app=behind_proxy)
    headers = {"X-User": "alice", "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Host": "shop.example"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://inside.example", headers=headers) as alice:
        assert (await alice.get("/ops/api/v1/check")).status_code == 200, "public_url has the path"
        elsewhere = await alice.get("/api/v1/session", headers={"X-Forwarded-Host": "evil.example"})
        assert (elsewhere.status_code, elsewhere.json()["code"]) == (421, "wrong_host")
        assert (await alice.post("/api/v1/tokens", json={"name": "x"})).status_code == 403
        statuses = [(await alice.get("/api/v1/session")).status_code for _ in range(6)]
        assert 429 in statuses
    async with app.database.acquire() as conn:
        last = "select address from mainspring.audit where action = 'token.create' order by id desc limit 1"
        assert await conn.fetchval(last) == "203.0.113.9"


async def test_its_secrets_have_the_keys_of_the_application(dsn: str) -> None:
    async def admin(scope: Any) -> mainspring.Access:
        return mainspring.Access("alice", mainspring.Role.ADMIN)

    async with mainspring.App("shop", dsn=dsn, secret_keys=new_key("k1")) as app:
        transport = httpx2.ASGITransport(app=mainspring.asgi(app, authorize=admin))
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as alice:
            csrf = (await alice.get("/api/v1/session")).json()["csrf"]
            headers = {"Sec-Fetch-Site": "same-origin", "Mainspring-CSRF": csrf}
            made = await alice.put("/api/v1/secrets/db", json={"value": "hunter2"}, headers=headers)
    assert (made.status_code, made.json()["secret"]["key_id"]) == (201, "k1"), made.text


async def test_a_wrong_authorize_and_an_application_without_a_database_are_named(
    app: mainspring.App, caplog: pytest.LogCaptureFixture
) -> None:
    transport = httpx2.ASGITransport(app=mainspring.asgi(app, authorize=lambda scope: True))  # type: ignore[arg-type,return-value]
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        assert (await client.get("/api/v1/session")).status_code == 500
    assert "returned True; return mainspring.Access" in caplog.text
    remote = mainspring.App("shop", url="http://127.0.0.1:1", token="ms_x")
    with pytest.raises(mainspring.ValidationError, match=r"mainspring\.asgi\(\) needs a database"):
        mainspring.asgi(remote, authorize=who)
