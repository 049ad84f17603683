"""The system under test: PostgreSQL, servers, agents and workers as processes, with a proxy on every line between them.

A node is a place for one process. While it is wanted, it is started again whenever it has ended, as a supervisor would.
Next: tests/torture/injector.py
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg

from mainspring.store.postgres.database import Connection
from tests.journey.network import Process
from tests.journey.network_app import ROOT
from tests.journey.processes import DEADLINE, command
from tests.postgres import DATABASE, USER, PostgreSQL, Primary, free_port, standby_of
from tests.stream_proxy import StreamProxy
from tests.torture.evidence import Life
from tests.torture.plan import LEASE, Sizes

APP = "tests.torture.app:app"
WATCH = 0.2  # seconds between two looks at who has ended
STOP_WITHIN = 45.0  # seconds, also while PostgreSQL is away


class Node:
    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._arguments = arguments
        self.environment = environment
        self.wanted = False
        self.clock_offset = 0.0
        self.processes: list[Process] = []  # one after another; the last one is the present one
        self.lives: list[Life] = []

    @property
    def process(self) -> Process:
        return self.processes[-1]

    def start(self) -> None:
        self.wanted = True
        offset = {"MAINSPRING_CLOCK_OFFSET": str(self.clock_offset)} if self.clock_offset else {}
        child = subprocess.Popen(
            command(*self._arguments, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**self.environment, **offset},
        )
        self.processes.append(Process(child))
        self.lives.append(Life(self.name, child.pid))

    async def kill(self) -> None:
        self.wanted = False
        if self.process.alive:
            await self.process.kill()

    async def stop(self) -> str:
        """Ask it to stop; returns what was wrong with that. A signal before it is up ends it at once, as it may."""
        self.wanted = False
        was_up = self.process.is_up
        if not self.process.alive:
            return ""
        try:
            await asyncio.wait_for(self.process.stop(), STOP_WITHIN)
        except (AssertionError, TimeoutError) as error:
            if self.process.alive:
                await self.process.kill()
            return f"{self.name}: {str(error)[-500:] or type(error).__name__}" if was_up else ""
        return ""

    def look(self) -> None:
        """Start it again if it has ended. One that was never up, as while PostgreSQL is away, may do so."""
        if not self.wanted or self.process.alive:
            return
        if self.process.is_up:
            self.lives[-1].ended_by_itself = self.process.notes[-2000:] or "without a word"
        self.start()

    def finish(self, directory: Path) -> None:
        """Leave no process, and keep what they said."""
        with (directory / f"{self.name}.log").open("a") as log:
            for life, process in zip(self.lives, self.processes, strict=True):
                process.clean_up()
                life.thaws = [at for _, at in process.thaws]
                log.write(f"== process {life.pid}\n{process.notes}")


class Cluster:
    def __init__(self, directory: Path, sizes: Sizes, source: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.sizes = sizes
        self._environment = self._for_all(source, environment)
        self.postgres: PostgreSQL
        self._standby: PostgreSQL | None = None
        self.nodes: dict[str, Node] = {}
        self.lines: dict[str, StreamProxy] = {}  # by target: agent-1/server-2, server-1/postgres
        self._ports = {server: free_port() for server in sizes.names("server")}
        self._stack = AsyncExitStack()
        self._watching: asyncio.Task[None]

    @staticmethod
    def _for_all(source: Path, environment: dict[str, str]) -> dict[str, str]:
        path = os.pathsep.join([str(source), str(ROOT), *(entry for entry in sys.path if entry)])
        ours = {"MAINSPRING_LEASE": LEASE, "MAINSPRING_POLL": 0.2, "MAINSPRING_STOP_PATIENCE": 2.0}
        return {**os.environ, "PYTHONPATH": path, **{name: str(value) for name, value in ours.items()}, **environment}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """A connection past all proxies, for whoever looks on; PostgreSQL may be away for a while."""
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    conn: Connection = await asyncpg.connect(self.postgres.dsn, timeout=5, command_timeout=DEADLINE)
                    break
                except (OSError, TimeoutError, asyncpg.PostgresError):
                    await asyncio.sleep(0.2)
        try:
            yield conn
        finally:
            conn.terminate()

    async def open(self, *, standby: bool) -> None:
        """PostgreSQL, with a synchronous standby if asked for, and all lines; no process of ours yet."""
        self.postgres = await asyncio.to_thread(Primary, self.directory / "postgres")
        self._stack.callback(self.postgres.kill)
        if standby:
            self._standby = await asyncio.to_thread(standby_of, self.postgres, self.directory / "standby")
            self._stack.callback(self._standby.kill)
            await asyncio.to_thread(self.postgres.wait_for_standby)
        for target in self.sizes.lines:
            port = self._ports.get(target.partition("/")[2], self.postgres.port)
            self.lines[target] = await self._stack.enter_async_context(StreamProxy("127.0.0.1", port))
        for name in self.sizes.processes:
            self.nodes[name] = Node(name, self._arguments(name), self._of(name))

    def fail_over(self) -> None:
        """The primary is dead: the standby takes its place, and all lines lead to it."""
        assert self._standby is not None
        self.postgres, self._standby = self._standby, None
        self.postgres.promote()
        for target, line in self.lines.items():
            if target.endswith("/postgres"):
                line.lead_to(self.postgres.port)

    def dsn_through(self, name: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.lines[f'{name}/postgres'].port}/{DATABASE}"

    def _arguments(self, name: str) -> list[str]:
        match name.partition("-")[0]:
            case "server":
                return ["server", "--listen", f"127.0.0.1:{self._ports[name]}", "--app", APP]
            case "agent":
                own = [self.lines[f"{name}/{server}"].port for server in self._ports]
                first = int(name.partition("-")[2]) % len(own)  # not all with the same one
                urls = [f"ws://127.0.0.1:{port}" for port in own[first:] + own[:first]]
                return ["agent", "--server", ",".join(urls), "--name", name, "--slots", "20", "--app", APP]
        return ["worker", APP, "--name", name, "--slots", "20"]

    def _of(self, name: str) -> dict[str, str]:
        own = {"DSN": self.dsn_through(name), "DATA_DIRECTORY": str(self.directory / name), "SERVER_NAME": name}
        return {**self._environment, **{f"MAINSPRING_{setting}": value for setting, value in own.items()}}

    async def start(self, names: Iterable[str]) -> None:
        """Start these, and wait until they say that they are up."""
        nodes = [self.nodes[name] for name in names]
        for node in nodes:
            node.start()
        async with asyncio.timeout(2 * DEADLINE):
            while not all(node.process.is_up for node in nodes):
                ended = [node for node in nodes if not node.process.alive]
                assert not ended, f"{ended[0].name} does not start:\n{ended[0].process.notes}"
                await asyncio.sleep(0.05)

    async def give_token(self) -> None:
        """Let agents in."""
        environment = {**self._environment, "MAINSPRING_DSN": self.postgres.dsn}
        arguments = command("token", "create", "torture")
        done = await asyncio.to_thread(
            subprocess.run, arguments, capture_output=True, text=True, env=environment, timeout=DEADLINE
        )
        assert done.returncode == 0, done.stderr
        for node in self.nodes.values():
            node.environment["MAINSPRING_TOKEN"] = done.stdout.strip()

    def watch(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH)
            for node in self.nodes.values():
                node.look()

    async def stop(self) -> list[str]:
        """Ask all processes to stop; returns what went wrong. PostgreSQL goes on."""
        self._watching.cancel()
        told = await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        return [each for each in told if each]

    async def close(self) -> None:
        """Whatever happened, no process is left."""
        await asyncio.to_thread(self._finish)
        await self._stack.aclose()

    def _finish(self) -> None:
        for node in self.nodes.values():
            node.wanted = False
            node.finish(self.directory)
