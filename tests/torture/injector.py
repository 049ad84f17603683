"""The injector: lets each fault of the plan come at its instant and go after its time, and notes when that was.

Next: tests/torture/run.py
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import asyncpg
import psutil

from tests.stream_proxy import StreamProxy
from tests.torture.cluster import Cluster, Node
from tests.torture.evidence import Happened
from tests.torture.plan import Fault

# The leases move along: that somebody sets the database's clock says nothing about who has been silent for so long.
_SET_CLOCK = """
    create or replace function mainspring.now() returns timestamptz
        language sql volatile parallel safe
        as 'select clock_timestamp() + interval ''{total:.6f} seconds''';
    update mainspring.agent set lease_until = lease_until + interval '{step:.6f} seconds' where ended_at is null;
    update mainspring.server set lease_until = lease_until + interval '{step:.6f} seconds';
    update mainspring.leader set lease_until = lease_until + interval '{step:.6f} seconds';
"""
_LEADER = "select s.process from mainspring.leader l join mainspring.server s on s.id = l.owner"
_BACKENDS = "select pid from pg_stat_activity where application_name like 'mainspring%' order by pid"


def boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class DidNotHappen(Exception):
    """There was nothing to do this to."""


class Injector:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._down: set[str] = set()  # nodes that are frozen or on their way down or up
        self._ahead = 0.0  # of the database's clock
        self.happened: list[Happened] = []
        self.clock_steps: list[tuple[int, float]] = []
        self.did_not_stop: list[str] = []

    async def run(self, plan: Sequence[Fault]) -> None:
        """Until the last fault is over."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                group.create_task(self._one(fault, begin + fault.at))

    async def _one(self, fault: Fault, at: float) -> None:
        await asyncio.sleep(at - time.monotonic())
        happened = Happened(fault, boot(), 0)
        self.happened.append(happened)
        try:
            async with self._fault(fault) as note:
                happened.note = note
                await asyncio.sleep(fault.lasts)
        except (DidNotHappen, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as why:
            happened.note = f"did not happen: {why}"  # PostgreSQL may be away when it is asked
        happened.until = boot()

    @asynccontextmanager
    async def _fault(self, fault: Fault) -> AsyncIterator[str]:
        match fault.kind, fault.target:
            case "postgres", _:
                await asyncio.to_thread(self._cluster.postgres.kill)
                yield ""
                await asyncio.to_thread(self._cluster.postgres.start)
            case "failover", _:
                await asyncio.to_thread(self._cluster.postgres.kill)
                yield ""
                await asyncio.to_thread(self._cluster.fail_over)
            case "backend", _:
                async with self._frozen_backend(fault) as note:
                    yield note
            case "clock", "database":
                await self._set_clock(fault.amount)
                yield ""
            case (("partition" | "slow" | "cut"), _):
                with self._lines_of(fault.target) as lines:
                    self._disturb(fault, lines)
                    yield ""
            case "late", server:
                async with self._late(server, fault.amount):
                    yield ""
            case _:
                node = await self._node(fault.target)
                async with self._process(fault, node) as note:
                    yield note

    # ── processes ───────────────────────────────────────────────────────────────────────────────

    async def _node(self, target: str) -> Node:
        """`leader` is whoever leads at this moment."""
        if target == "leader":
            async with self._cluster.connected() as conn:
                identity = await conn.fetchval(_LEADER)
            pid = int(str(identity).split()[2]) if identity else 0
            target = next((n.name for n in self._cluster.nodes.values() if n.process.pid == pid), "nobody leads")
        if target not in self._cluster.nodes or target in self._down:
            raise DidNotHappen(target)
        return self._cluster.nodes[target]

    @asynccontextmanager
    async def _process(self, fault: Fault, node: Node) -> AsyncIterator[str]:
        note = f"{node.name} process {node.process.pid}"
        self._down.add(node.name)
        try:
            if fault.kind == "stop":
                node.process.freeze()
                yield note
                node.process.thaw()
            elif fault.kind == "guardian":
                yield f"{note} guardian {self._kill_guardian(node)}"
            else:
                if fault.kind == "clock":
                    node.clock_offset = fault.amount
                if fault.kind == "kill":
                    await node.kill()
                elif wrong := await node.stop():
                    self.did_not_stop.append(wrong)
                yield note
                node.start()
        finally:
            self._down.discard(node.name)

    @staticmethod
    def _kill_guardian(node: Node) -> int:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(node.process.pid).children():
                if any("guardian" in word for word in child.cmdline()):
                    child.kill()
                    return child.pid
        raise DidNotHappen(f"{node.name} has no guardian yet")

    # ── lines ───────────────────────────────────────────────────────────────────────────────────

    def _lines_of(self, target: str) -> _Healed:
        agent, _, end = target.partition("/")
        if end != "servers":
            return _Healed([self._cluster.lines[target]])
        servers = self._cluster.sizes.names("server")
        return _Healed([self._cluster.lines[f"{agent}/{server}"] for server in servers])

    @staticmethod
    def _disturb(fault: Fault, lines: Sequence[StreamProxy]) -> None:
        for line in lines:
            if fault.kind == "cut":
                line.cut()
            if fault.kind == "slow" and fault.how in ("both", "up"):
                line.up.delay = fault.amount
            if fault.kind == "slow" and fault.how in ("both", "down"):
                line.down.delay = fault.amount
            if fault.kind == "partition" and fault.how in ("both", "up"):
                line.up.stall()
            if fault.kind == "partition" and fault.how in ("both", "down"):
                line.down.stall()

    @asynccontextmanager
    async def _late(self, server: str, delay: float) -> AsyncIterator[None]:
        """What a server asks of PostgreSQL is carried out late, when the agents that said hello to it are elsewhere.

        All other connections of agents are cut, so that some come to this server, and then those to it.
        """
        lines = self._cluster.lines
        agents = self._cluster.sizes.names("agent")
        others = [name for name in self._cluster.sizes.names("server") if name != server]

        async def send_away() -> None:
            await asyncio.sleep(2 * delay)  # admitted after one delay, and then it says hello
            for agent in agents:
                lines[f"{agent}/{server}"].cut()

        with _Healed([lines[f"{server}/postgres"]]) as [line]:
            line.up.delay = delay
            for agent in agents:
                for other in others:
                    lines[f"{agent}/{other}"].cut()
            sending_away = asyncio.create_task(send_away())
            try:
                yield
            finally:
                await sending_away

    # ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _frozen_backend(self, fault: Fault) -> AsyncIterator[str]:
        async with self._cluster.connected() as conn:
            rows = await conn.fetch(_BACKENDS)
        if not rows:
            raise DidNotHappen("nobody is connected")
        pid: int = rows[int(fault.at * 1000) % len(rows)]["pid"]
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            raise DidNotHappen(f"backend {pid} has ended") from None
        yield f"backend {pid}"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _set_clock(self, step: float) -> None:
        async with self._cluster.connected() as conn, conn.transaction():
            await conn.execute(_SET_CLOCK.format(total=self._ahead + step, step=step))
        self._ahead += step
        self.clock_steps.append((boot(), self._ahead))


class _Healed:
    """Lines that are healed at the end of the block."""

    def __init__(self, lines: list[StreamProxy]) -> None:
        self._lines = lines

    def __enter__(self) -> list[StreamProxy]:
        return self._lines

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            line.heal()
