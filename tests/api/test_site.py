"""The console's page and files, as the server gives them; tests/console/ uses them in a browser."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from mainspring.api.handlers import site
from mainspring.api.make import make_api
from mainspring.store.postgres.database import Database
from tests.api.conftest import Caller, over

ROUTES = Path(__file__).parents[2] / "console" / "src" / "routes.ts"
PAGE = b'<!doctype html><head><base href="/"><script src="static/main-1A.js"></script></head>'
SCRIPT = b"export const answer = 42;\n" * 100


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A console, as its build leaves it."""
    (tmp_path / "index.html").write_bytes(PAGE)
    (tmp_path / "main-1A.js").write_bytes(SCRIPT)
    (tmp_path / "main-1A.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path / "icon.svg").write_bytes(b"<svg/>")
    (tmp_path / "manifest.json").write_text(json.dumps({}))
    monkeypatch.setattr(site, "_folder", lambda: tmp_path)
    return tmp_path


def test_the_server_knows_every_address_of_the_console() -> None:
    routes = re.findall(r'^  \["([^"]*)",', ROUTES.read_text(), re.MULTILINE)
    assert routes
    assert {"/" + re.sub(r":(\w+)", r"{\1}", route) for route in routes} == set(site.PATHS)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("path", ["/", "/login", "/tasks/17", "/schedules/a%2Fb/at/2026-03-29T02:30"])
async def test_each_address_is_the_same_page(anybody: Caller, path: str) -> None:
    answer = await anybody.get(path)
    assert (answer.status_code, answer.content) == (200, PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_an_address_that_is_none_is_not_found(anybody: Caller) -> None:
    for path in ("/tsks", "/tasks/17/output", "/static/none.js", "/static/..%2Fsite.py", "/static/manifest.json"):
        answer = await anybody.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path


@pytest.mark.usefixtures("built")
async def test_a_person_at_an_address_that_is_none_gets_the_console(anybody: Caller) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    answer = await anybody.get("/nothing/here", headers=browser)
    assert (answer.status_code, answer.content) == (404, PAGE)
    assert answer.headers["cache-control"] == "no-cache"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    # where there are no pages, and for programs, a problem is a problem
    for path in ("/api/v1/nothing", "/api/nothing", "/static/none.js"):
        answer = await anybody.get(path, headers=browser)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    answer = await anybody.post("/nothing/here", headers=browser)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    answer = await anybody.get("/nothing/here", headers={"Accept": "application/json"})
    assert answer.json()["code"] == "not_found"


@pytest.mark.usefixtures("built")
async def test_files_are_kept_for_ever_and_packed(anybody: Caller) -> None:
    packed = await anybody.get("/static/main-1A.js", headers={"Accept-Encoding": "gzip, deflate"})
    assert (packed.content, packed.headers["content-encoding"]) == (SCRIPT, "gzip")
    assert packed.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert packed.headers["vary"] == "Accept-Encoding"
    plain = await anybody.get("/static/main-1A.js", headers={"Accept-Encoding": "identity"})
    assert plain.content == SCRIPT
    assert "content-encoding" not in plain.headers
    assert (await anybody.get("/static/icon.svg")).headers["cache-control"] == "public, max-age=3600"


async def test_a_new_build_is_served_at_once(anybody: Caller, built: Path) -> None:
    assert (await anybody.get("/")).content == PAGE
    (built / "index.html").write_bytes(b"another")
    os.utime(built / "manifest.json", (1, 1))
    assert (await anybody.get("/")).content == b"another"


@pytest.mark.usefixtures("built")
async def test_below_a_path_the_page_says_so(database: Database) -> None:
    api = make_api(database)
    async with over(api) as client:
        client._transport.root_path = "/ops/jobs"  # type: ignore[attr-defined]
        answer = await client.get("/ops/jobs/tasks")
    assert b'<base href="/ops/jobs/">' in answer.content
    await api.close()


async def test_without_a_build_the_page_says_how_to_make_one(
    anybody: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_folder", lambda: tmp_path / "none")
    answer = await anybody.get("/tasks")
    assert answer.status_code == 200
    assert "make console" in answer.text
    assert (await anybody.get("/openapi.json")).status_code == 200
