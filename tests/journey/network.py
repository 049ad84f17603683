"""A network of servers and agents in processes of their own, the jobs' ledger, and what must hold in the end.

Agents connect directly or through a proxy of tests/proxy.py, which runs in the test's own event loop: nothing here
may block it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import mainspring
from mainspring import App, Task
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.journey import invariants
from tests.journey.forks import Forked
from tests.journey.network_app import LEDGER, ROOT, make_app
from tests.journey.processes import Running, command
from tests.ledger import Line, read_ledger
from tests.namespaces import Host
from tests.proxy import Proxy

APP = "tests.journey.network_app:app"
LEASE = 3.0


class Process:
    """One `mainspring` process that has said that it is ready."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._running = Running(child)
        self.told: dict[str, Any] = {}
        self.thaws: list[invariants.Thaw] = []

    async def ready(self) -> None:
        self.told = await asyncio.to_thread(self._running.ready)

    @property
    def pid(self) -> int:
        return self._running.child.pid

    @property
    def is_up(self) -> bool:
        """Whether it has said so, where nobody waits for `ready`."""
        return self._running.has_spoken

    @property
    def alive(self) -> bool:
        return self._running.child.poll() is None

    @property
    def notes(self) -> str:
        """What it wrote on stderr."""
        return "".join(self._running.notes)

    async def until_told(self, words: str) -> None:
        await asyncio.to_thread(self._running.until_told, words)

    def freeze(self) -> None:
        self._running.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.thaws.append((self.pid, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
        self._running.signal(signal.SIGCONT)

    async def kill(self) -> None:
        self._running.signal(signal.SIGKILL)
        await asyncio.to_thread(self._running.end)

    def ask_to_stop(self) -> None:
        self._running.signal(signal.SIGTERM)

    async def stop(self) -> None:
        """Ask it to stop; it must end well."""
        self.ask_to_stop()
        await self.ended()

    async def ended(self) -> None:
        """It was asked to stop, or stops by itself."""
        try:
            code = await asyncio.to_thread(self._running.end)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not stop:\n{self.notes}") from None
        assert code == 0, self.notes

    def clean_up(self) -> None:
        if self.alive:
            self.thaw()
            self._running.child.kill()
        self._running.end()
        for stream in (self._running.child.stdout, self._running.child.stderr):
            if stream is not None:
                stream.close()


class Network:
    def __init__(self, dsn: str, directory: Path, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self._directory = directory  # where servers keep their ids
        self._ledger = directory / "ledger"
        self._stack = stack
        self._token = ""
        self.processes: list[Process] = []
        self.agents: list[Process] = []
        os.environ[LEDGER] = str(self._ledger)  # the application reads it here, in servers and in agents
        self.app: App = make_app(dsn)  # submits, and never runs anything

    # ── processes ───────────────────────────────────────────────────────────────────────────────

    async def server(self, host: Host | None = None, *, port: int = 0, **settings: Any) -> Process:
        """Its address is `told["url"]`; a `port` of its own is for one that is to come back there."""
        address = f"127.0.0.1:{port}" if host is None else f"{host.address}:{port}"
        listen = ["--listen", address, *([] if host is None else ["--without-tls"])]
        arguments = ["server", *listen, "--dsn", self.dsn, "--app", APP]
        return await self._start(arguments, self._of_a_server(settings), host)

    async def worker(self, **settings: Any) -> Process:
        """A server and an agent in one process. Its handlers run in it, so it is an agent here too."""
        worker = await self._start(["worker", APP, "--dsn", self.dsn], self._of_a_server(settings), None)
        self.agents.append(worker)
        return worker

    def _of_a_server(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"lease": LEASE, "poll": 0.2, "data_directory": self._directory, **settings}

    async def agent(
        self, *servers: str, name: str = "", slots: int = 20, host: Host | None = None, **settings: Any
    ) -> Process:
        """Connected to the first of these URLs that lets it in. `clock_offset=30` gives it a wrong wall clock."""
        name = name or f"agent-{len(self.agents) + 1}"
        arguments = ["agent", "--server", ",".join(servers), "--name", name, "--slots", str(slots), "--app", APP]
        arguments.append("--without-tls")  # a server on a host of its own is another machine
        agent = await self._start(arguments, {"token": await self.token(), **settings}, host)
        self.agents.append(agent)
        return agent

    async def proxy(self, server: Process) -> Proxy:
        return await self._stack.enter_async_context(Proxy(server.told["url"].removesuffix("/agent")))

    async def token(self) -> str:
        if not self._token:
            async with self.app.database.acquire() as conn:
                self._token = (await tokens.create(conn, "journey"))[1]
        return self._token

    async def _start(self, arguments: list[str], settings: dict[str, Any], host: Host | None) -> Process:
        process = Process(self._child([*arguments, "--json"], self._environment(settings), host))
        self.processes.append(process)
        await process.ready()
        return process

    def _child(self, arguments: list[str], environment: dict[str, str], host: Host | None) -> subprocess.Popen[str]:
        if host is None:
            return Forked(*arguments, cwd=ROOT, env=environment)
        return host.start(
            *command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment
        )

    def _environment(self, settings: dict[str, Any]) -> dict[str, str]:
        source = str(Path(mainspring.__file__).parents[1])
        path = os.pathsep.join([source, str(ROOT), os.environ.get("PYTHONPATH", "")])
        given = {f"MAINSPRING_{name.upper()}": str(value) for name, value in settings.items()}
        return {**os.environ, "PYTHONPATH": path, LEDGER: str(self._ledger), **given}

    def clean_up(self) -> None:
        for process in self.processes:
            process.clean_up()

    # ── the ledger and the database ─────────────────────────────────────────────────────────────

    def ledger(self) -> list[Line]:
        return read_ledger(self._ledger)

    async def until_begun(self, tasks: Iterable[Task[Any]], attempt: int = 1) -> None:
        """Each of them has begun, by its own word."""
        wanted = {task.id for task in tasks}

        async def begun() -> bool:
            return wanted <= {line.task for line in self.ledger() if line.attempt >= attempt}

        await eventually(begun, timeout=60)

    async def until_ended(self, tasks: Iterable[Task[Any]], timeout: float = 90) -> None:
        waiting = {task.id: task for task in tasks}

        async def all_ended() -> bool:
            for id, task in list(waiting.items()):
                if (await task.status()).finished_at is None:
                    return False
                del waiting[id]
            return True

        await eventually(all_ended, timeout=timeout)

    async def check(self, conn: Connection, tasks: Sequence[Task[Any]], at_most_once: Sequence[Task[Any]] = ()) -> None:
        """All invariants that a story can break; `tasks` are all that were accepted."""
        await invariants.check_no_process_left(self.ledger(), (agent.pid for agent in self.agents))
        lines = self.ledger()
        await invariants.check_ends(conn, lines, (task.id for task in tasks))
        invariants.check_no_overlap(lines, [thaw for process in self.processes for thaw in process.thaws])
        invariants.check_at_most_once(lines, (task.id for task in at_most_once))
        await invariants.check_tokens(conn, lines)
        await invariants.check_agreement(conn, lines)


@asynccontextmanager
async def open_network(dsn: str, directory: Path) -> AsyncIterator[Network]:
    """Whatever happens, no process is left."""
    async with AsyncExitStack() as stack:
        network = Network(dsn, directory, stack)
        try:
            async with network.app:
                yield network
        finally:
            await asyncio.to_thread(network.clean_up)
            os.environ.pop(LEDGER, None)
