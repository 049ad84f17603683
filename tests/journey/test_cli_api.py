"""HTTP from the command line: which processes serve it, where, and how they stop."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.journey.processes import environment, mainspring, running, until

APP = "tests.journey.network_app:app"


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def anywhere(dsn: str) -> dict[str, str]:
    """The environment of who has named no address."""
    return {name: value for name, value in environment(MAINSPRING_DSN=dsn).items() if name != "MAINSPRING_LISTEN"}


@pytest.mark.usefixtures("default_ports")
def test_a_second_up_takes_the_next_port_and_says_which(dsn: str) -> None:
    with running("up", "--json", env=anywhere(dsn)) as first, running("up", "--json", env=anywhere(dsn)) as second:
        urls = {up.ready()["url"] for up in (first, second)}
        ports = [urlsplit(url).port or 0 for url in urls]
        assert len(urls) == 2
        assert all(7070 <= port <= 7079 for port in ports)
        for up in (first, second):
            up.until_told("Ctrl-C stops")
            assert any("console   http://127.0.0.1:707" in note for note in up.notes)
        assert [get(f"{url}/readyz") for url in urls] == [(200, {"status": "ready"})] * 2


def test_an_address_that_was_asked_for_and_is_taken_is_an_error(dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (("up",), ("worker", APP), ("server",), ("api",)):
            done = mainspring(*command, "--listen", address, "--dsn", dsn)
            assert done.returncode == 2, done.stderr
            assert f"mainspring: listen: {address}: Address already in use; name another" in done.stderr


@pytest.mark.parametrize("listens", [True, False])
def test_a_worker_listens_only_where_it_is_told_to(dsn: str, listens: bool) -> None:
    options = ("--listen", "127.0.0.1:0") if listens else ()
    with running("worker", APP, "--json", "--dsn", dsn, *options) as worker:
        told = worker.ready()
        assert ("url" in told) == listens
        if listens:
            assert get(f"{told['url']}/healthz") == (200, {"status": "healthy"})
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0


def test_up_without_an_api_listens_nowhere(dsn: str) -> None:
    with running("up", "--json", env=environment(MAINSPRING_DSN=dsn, MAINSPRING_API="off", MAINSPRING_LISTEN="")) as up:
        assert "url" not in up.ready()


def test_the_api_alone_joins_nothing_and_migrates_nothing(dsn: str, empty_dsn: str) -> None:
    with running("api", "--listen", "127.0.0.1:0", "--json", "--dsn", dsn) as api:
        url = api.ready()["url"]
        until(lambda: get(f"{url}/readyz") == (200, {"status": "ready"}))
        found = json.loads(mainspring("servers", "--json", "--all", "--dsn", dsn).stdout)
        assert [each["status"] for each in found] == ["stopped"], "the one that tests have from the start"
        api.signal(signal.SIGTERM)
        assert api.end() == 0
    with running("api", "--listen", "127.0.0.1:0", "--json", "--dsn", empty_dsn) as api:
        url = api.ready()["url"]
        lacking = {"status": "not_ready", "reason": "the schema lacks migration 1; run `mainspring migrate`"}
        until(lambda: get(f"{url}/readyz") == (503, lacking))
        plan = mainspring("migrate", "--plan", "--dsn", empty_dsn)
        assert "0001" in plan.stdout + plan.stderr
        mainspring("migrate", "--dsn", empty_dsn)
        until(lambda: get(f"{url}/readyz") == (200, {"status": "ready"}))
