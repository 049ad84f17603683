"""Live, and honest about it: a server that dies, PostgreSQL that goes away, and more tabs than connections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Open, Up, in_database, opener, running

PROVOKED = (r"net::ERR_", r"Failed to load resource", r"^50[03] ")  # while nobody answers


@pytest.fixture(scope="module")
def alone(server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A server that these tests may kill."""
    with running(server_dsn, template, tmp_path_factory.mktemp("live"), "tests.console.app:app") as up:
        yield up


@pytest.fixture
def open_alone(browser: Any, alone: Up) -> Iterator[Open]:
    with opener(browser, alone) as open:
        yield open


def state(page: Any) -> Any:
    return page.locator(".live-dot")


def test_a_server_that_dies_is_said_and_what_was_missed_is_loaded(alone: Up, open_alone: Open) -> None:
    page = open_alone("tasks?filter=job:hello")
    page.strict.allow(*PROVOKED)
    page.locator(".live-dot.live").wait_for()
    alone.kill()
    page.get_by_text("not live since").wait_for()
    assert page.evaluate("document.documentElement.dataset.live") == "lost"
    alone.start()
    id = alone.submit("hello", wait=20)
    page.locator(".live-dot.live").wait_for(timeout=40_000)
    page.get_by_role("button", name="show").or_(page.locator(f'tr[data-id="{id}"]')).first.wait_for()


def test_postgresql_goes_away_and_comes_back(alone: Up, open_alone: Open, server_dsn: str) -> None:
    """It is said once on each page, nothing that was shown is lost, and all comes back without a click."""
    name = urlsplit(alone.dsn).path.strip("/")
    pages = [open_alone(path) for path in ("", "tasks", "cluster")]
    for page in pages:
        page.strict.allow(*PROVOKED)
        page.locator(".live-dot.live").wait_for()
    heading = pages[0].get_by_role("heading", name="Next to fire")
    heading.wait_for()
    in_database(server_dsn, f"alter database {name} allow_connections false")
    in_database(server_dsn, f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
    try:
        for page in pages:
            page.get_by_text("not live since").wait_for(timeout=30_000)
            expect(page.locator("main .line.bad").first).to_contain_text(
                re.compile("PostgreSQL.*loaded again by itself")
            )
            expect(page.locator(".problem")).to_have_count(0)
            assert page.evaluate("document.documentElement.dataset.live") == "lost"
        assert heading.is_visible()
        quiet = pages[0].get_by_role("region", name="Late or missed").locator(".card")
        assert float(quiet.evaluate("card => getComputedStyle(card).opacity")) < 1, "what is not known is not claimed"
        late = open_alone("jobs", role=None)  # opened meanwhile
        late.strict.allow(*PROVOKED, "401")
        late.context.add_cookies(pages[0].context.cookies())
        late.goto("jobs")
        late.locator(".problem", has_text="PostgreSQL").wait_for(timeout=30_000)
        late.get_by_text("The console opens by itself once it answers.").wait_for()
    finally:
        in_database(server_dsn, f"alter database {name} allow_connections true")
    for page in (*pages, late):
        page.locator(".live-dot.live").wait_for(timeout=40_000)
        expect(page.locator(".problem")).to_have_count(0)
        expect(page.get_by_text("loaded again by itself")).to_have_count(0)


def test_tabs_beyond_the_third_share_a_stream(alone: Up, open_alone: Open) -> None:
    first = open_alone("tasks?filter=job:hello")
    tabs = [first]
    streams: set[Any] = set()  # that are open
    first.context.on("request", lambda request: streams.add(request) if "/events?" in request.url else None)
    for ended in ("requestfailed", "requestfinished"):
        first.context.on(ended, lambda request: streams.discard(request))
    for _ in range(5):
        tab = first.context.new_page()
        tab.goto("tasks?filter=job:hello")
        tabs.append(tab)
    for tab in tabs:
        tab.locator(".live-dot.live").wait_for()
    first.wait_for_timeout(300)
    assert len(streams) <= 3, [request.url for request in streams]
    alone.submit("hello", wait=20)
    for tab in tabs:
        tab.get_by_role("button", name="show").wait_for()


def test_a_stranger_is_asked_to_log_in(alone: Up, open_alone: Open) -> None:
    page = open_alone("tasks", role=None)
    page.strict.allow(r"401")
    page.get_by_label("Or log in with a token").fill(alone.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Tasks").wait_for()
    assert page.url.endswith("/tasks")


def test_a_link_logs_in_once(tmp_path: Path, alone: Up, open_alone: Open) -> None:
    link = alone.call("POST /logins", {"role": "viewer"})["code"]
    page = open_alone(f"login#{link}", role=None)
    page.strict.allow(r"401")
    page.get_by_text("viewer", exact=True).wait_for()
    assert "#" not in page.url
    again = open_alone(f"login#{link}", role=None)
    again.strict.allow(r"401")
    again.get_by_role("alert").wait_for()
    again.locator(".command").get_by_text("mainspring login", exact=True).wait_for()
