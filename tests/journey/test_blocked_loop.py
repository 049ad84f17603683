"""Blocking code in async handlers: it delays what shares its event loop, and costs no lease."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.journey.processes import Running, forked, mainspring, until, until_state
from tests.ledger import Ledger, read_ledger

LEASE = 3.0  # seconds: a busy machine may stall one
LONG = 7.0  # more than two leases

SHOP = """
import os, time
from pathlib import Path
import mainspring
from tests.ledger import Ledger, read_ledger

app = mainspring.App("shop")
path = os.environ["MAINSPRING_TEST_LEDGER"]
ledger = Ledger(path)

@app.job(retries=3, retry_delay="10ms")
async def block(seconds: float) -> int:
    task = mainspring.current_task()
    runs = 1 + len(read_ledger(Path(path)))
    ledger.write("begin", task.id, task.attempt, task.token)
    if runs == 1:
        time.sleep(seconds)
    ledger.write("end", task.id, task.attempt, task.token)
    return runs

async def tenants() -> list[str]:
    stuck = Path(path).with_name("stuck")
    if stuck.exists():
        stuck.unlink()
        time.sleep(7.0)
    return []

@app.job(every="1s", scopes=tenants)
async def bill() -> None: ...
"""


class Shop:
    """Processes that share a ledger and a database."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn = dsn
        self._directory = directory
        self._ledger = directory / "ledger"
        (directory / "shop.py").write_text(SHOP)
        Ledger(str(self._ledger))
        self._stack = ExitStack()

    def start(self, *arguments: str, **settings: object) -> Running:
        given = {"MAINSPRING_LEASE": str(LEASE), "MAINSPRING_TEST_LEDGER": str(self._ledger)}
        given |= {f"MAINSPRING_{name.upper()}": str(value) for name, value in settings.items()}
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        options = {"cwd": self._directory, "env": {**os.environ, "PYTHONPATH": path, **given}}
        return self._stack.enter_context(forked(*arguments, "--json", **options))

    def worker(self, **settings: object) -> Running:
        """Alone until it is ready: its agent must get the first task."""
        worker = self.start("worker", "shop:app", "--dsn", self.dsn, **settings)
        worker.ready()
        return worker

    def server(self) -> tuple[Running, str]:
        server = self.start("server", "--app", "shop:app", "--listen", "127.0.0.1:0", "--dsn", self.dsn)
        return server, server.ready()["url"]

    def agent(self, url: str, **settings: object) -> Running:
        token = mainspring("token", "create", "far", "--dsn", self.dsn).stdout.strip()
        agent = self.start("agent", "--app", "shop:app", "--server", url, "--token", token, **settings)
        agent.ready()
        return agent

    def submit(self, job: str = "block", *arguments: str) -> str:
        submitted = mainspring("task", "submit", job, *arguments, "--dsn", self.dsn)
        assert submitted.returncode == 0, submitted.stderr
        return submitted.stdout.strip()

    def block(self, seconds: float = LONG) -> str:
        """Submit a task that blocks, and wait until it does."""
        task = self.submit("block", "--arg", f"seconds={seconds}")
        until(self.events)
        return task

    def block_server(self) -> None:
        """By the provider of its scopes."""
        (self._directory / "stuck").touch()

    def result(self, task: str) -> object:
        waited = mainspring("task", "wait", task, "--json", "--dsn", self.dsn)
        return json.loads(waited.stdout)["result"]

    def events(self) -> list[str]:
        return [line.event for line in read_ledger(self._ledger)]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def shop(dsn: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(dsn, tmp_path)
    yield shop
    shop.close()


@pytest.mark.parametrize("place", ["worker", "agent"])
def test_a_handler_that_blocks_for_longer_than_its_lease_runs_once(shop: Shop, place: str) -> None:
    """And so does a command beside it: its guardian kills it once the lease is over."""
    if place == "worker":
        blocked = shop.worker()
    else:
        _, url = shop.server()
        blocked = shop.agent(url)
    created = mainspring("job", "create", "nap", "--dsn", shop.dsn, "--", "sleep", str(LONG - 1))
    assert created.returncode == 0, created.stderr
    nap = shop.submit("nap")
    until_state(nap, "running", shop.dsn)
    task = shop.block()
    rival = shop.worker()  # would take over what a dead process leaves
    assert shop.result(task) == 1
    assert shop.result(nap) == {"exit_code": 0}
    assert shop.events() == ["begin", "end"]
    notes = "".join(blocked.notes + rival.notes)
    assert f"by job block, task {task}; async code must not block" in notes
    assert "time.sleep(seconds)" in notes
    for word in ("expired", "is dead", "rescued", "could not be renewed", "is silent"):
        assert word not in notes

    def is_counted() -> bool:
        found = json.loads(mainspring("stats", "--json", "--dsn", shop.dsn).stdout)["blocked"]
        return bool(found["times"] >= 1 and found["seconds"] > LONG - 1)

    until(is_counted)


@pytest.mark.parametrize("place", ["worker", "agent"])
def test_a_process_whose_loop_does_not_come_back_is_ended(shop: Shop, place: str) -> None:
    if place == "worker":
        blocked = shop.worker(block_limit=2)
    else:
        _, url = shop.server()
        blocked = shop.agent(url, block_limit=2)
    task = shop.block(600.0)
    shop.worker()
    assert blocked.end() == 1
    assert "does not come back within 2 s (setting block_limit): this process ends" in "".join(blocked.notes)
    assert shop.result(task) == 2
    assert shop.events() == ["begin", "begin", "end"]


def test_a_blocked_agent_that_cannot_renew_ends_before_its_tasks_are_given_away(shop: Shop) -> None:
    server, url = shop.server()
    blocked = shop.agent(url)
    task = shop.block(600.0)
    server.signal(signal.SIGSTOP)
    shop.worker()
    assert blocked.end() == 1
    assert "the lease could not be renewed" in "".join(blocked.notes)
    assert shop.events() == ["begin"], "it has ended before another agent begins"
    assert shop.result(task) == 2
    server.signal(signal.SIGCONT)


def test_a_blocked_agent_keeps_its_session_when_its_server_goes(shop: Shop) -> None:
    """It cannot reconnect while it is blocked; another server renews its lease."""
    servers = {url: server for server, url in (shop.server(), shop.server())}
    blocked = shop.agent(",".join(servers))
    task = shop.block()
    connected = next(note for note in blocked.notes if "connected to" in note)
    gone = next(server for url, server in servers.items() if url in connected)
    gone.signal(signal.SIGTERM)
    assert gone.end() == 0
    assert shop.result(task) == 1
    assert shop.events() == ["begin", "end"]


def test_the_agents_of_a_blocked_server_keep_their_sessions(shop: Shop) -> None:
    """Its watchdog accepts connections on the same port."""
    server, url = shop.server()
    agent = shop.agent(url)
    created = mainspring("job", "create", "nap", "--dsn", shop.dsn, "--", "sleep", str(LONG + LEASE))
    assert created.returncode == 0, created.stderr
    nap = shop.submit("nap")
    until_state(nap, "running", shop.dsn)
    shop.block_server()
    server.until_told("the event loop has been blocked")
    assert shop.result(nap) == {"exit_code": 0}
    attempts = json.loads(mainspring("task", "show", nap, "--json", "--dsn", shop.dsn).stdout)["attempts"]
    assert len(attempts) == 1
    assert "could not be renewed" not in "".join(agent.notes)


def test_a_frozen_agent_still_loses_its_lease(shop: Shop) -> None:
    """The watchdog's thread is frozen with the rest."""
    _, url = shop.server()
    frozen = shop.agent(url)
    task = shop.block()
    frozen.signal(signal.SIGSTOP)
    shop.worker()
    assert shop.result(task) == 2
    frozen.signal(signal.SIGCONT)
