"""From zero agents to some and back: an autoscaler of a few lines, real agents that end when idle, no task lost."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from mainspring.store.postgres.database import Database
from mainspring.store.testing import clock
from tests.journey.processes import Running, forked, mainspring, until

SLOTS = 2
TASKS = 30


class Autoscaler:
    """Starts as many agents as are wanted; stops none: they end by themselves."""

    def __init__(self, stack: ExitStack, url: str, api: str, agents: Path, reader: str) -> None:
        self._stack, self._url, self._agents = stack, url, agents
        self._asks = f"{api}/api/v1/autoscale?slots_per_agent={SLOTS}&target_wait=1s"
        self._reader = reader
        self.started: list[Running] = []

    def ask(self) -> Any:
        request = urllib.request.Request(self._asks, headers={"Authorization": f"Bearer {self._reader}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    @property
    def there(self) -> list[Running]:
        return [agent for agent in self.started if agent.child.poll() is None]

    def step(self) -> Any:
        found = self.ask()
        for _ in range(min(found["wanted_agents"], 3) - len(self.there)):
            options = ["--token-file", str(self._agents), "--slots", str(SLOTS), "--exit-when-idle", "2s"]
            agent = self._stack.enter_context(forked("agent", "--server", self._url, "--json", *options))
            self.started.append(agent)
        return found


def count_ended(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select count(*) from mainspring.task_history").fetchone()
    assert row is not None
    return int(row[0])


def counts(dsn: str) -> dict[str, int]:
    stats = json.loads(mainspring("stats", "--json", "--dsn", dsn).stdout)
    return {state: tasks for state, tasks in {**stats["live"], **stats["last_hour"]}.items() if tasks}


def test_agents_come_with_the_work_and_go_with_it(dsn: str, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(mainspring("token", "create", "agents", "--dsn", dsn).stdout)
    reader = mainspring("token", "create", "scaler", "--role", "viewer", "--dsn", dsn).stdout.strip()
    mainspring("job", "create", "work", "--dsn", dsn, "--", "sleep", "0.2")
    with forked("server", "--listen", "127.0.0.1:0", "--dsn", dsn, "--json") as server, ExitStack() as stack:
        told = server.ready()
        scaler = Autoscaler(stack, told["url"], told["api_url"], secret, reader)
        assert scaler.step()["wanted_agents"] == 0
        assert not scaler.started, "zero"

        lines = "".join(json.dumps({"job": "work"}) + "\n" for _ in range(TASKS))
        done = mainspring("task", "submit", "--from", "-", "--dsn", dsn, input=lines)
        assert done.returncode == 0, done.stderr
        until(lambda: scaler.step()["wanted_agents"] > 0 and scaler.started)
        for agent in scaler.started:
            agent.ready()
        until(lambda: scaler.step() and count_ended(dsn) == TASKS)

        ended = [agent.end() for agent in scaler.started]
        assert ended == [0] * len(ended), "they end by themselves"
        assert all(any("idle for 2 s; stopping" in note for note in agent.notes) for agent in scaler.started)
        assert counts(dsn) == {"succeeded": TASKS}, "nothing was lost, and nothing ran twice"
    assert asyncio.run(wanted_after(dsn, 600.0)) == 0, "and back"


async def wanted_after(dsn: str, seconds: float) -> int:
    """What is wanted once the minutes in which the work was done are over."""
    conn = await Database(dsn).connect()
    try:
        await clock.set_forward(conn, seconds, seconds)
    finally:
        await conn.close()
    found = mainspring("autoscale", "--json", "--dsn", dsn)
    wanted: int = json.loads(found.stdout)["wanted_slots"]
    return wanted
