"""Fleet: three servers and 200 agents, several to a process, over WebSockets; a server is killed in the middle.

slow, fast  1,000 and 5,000 tasks a second for a minute each; half of them due at once (`pickup`: from the call of
            enqueue to the first line of the handler), half at an instant six seconds ahead (`lateness`). The first
            server is killed (SIGKILL) at half time: tasks of the seconds after it (`--around`) are apart, as `kill_…`;
            `recovered_s` is when the last of them that had waited for more than 100 ms started, from the kill
growth      the load of `slow` without a kill on 10, 50 and 200 agents: what a task costs, and the `ratio` of the last
            to the first

Costs are CPU of all processes from the first submission to the last ending, in microseconds for a task; PostgreSQL
without the submissions. `idle_percent` is the CPU of all agents and servers before the load. Frames are those of
WebSockets: with acknowledgements and heartbeats. `missing` tasks never ran, `again` ran more than once.
`--parts slow,growth` runs some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks.common import (
    arguments,
    connection,
    empty_tables,
    fresh_database,
    lateness_of,
    median_of,
    quantiles,
    report,
    say,
)
from benchmarks.load import AHEAD, Load, load
from benchmarks.network import APP, Process, make_token, postgresql, process
from benchmarks.rebalance import free_addresses
from mainspring.cli.runtime import settle_memory
from mainspring.store.postgres.database import Connection

GROWTH = (10, 50, 200)  # agents
IDLE_FOR = 3.0  # seconds before the load
DRAIN_WITHIN = 60.0  # seconds from the last instant until all have ended
LATE = 0.1  # seconds: a task that waited longer was held up by the kill


class Starts(NamedTuple):
    """What the agents have counted."""

    at: dict[int, float]  # by task, the first time
    again: int
    sent: Counter[str]  # frames by what they carry
    received: Counter[str]


class Agents:
    """Processes with so many agents in all."""

    def __init__(self, urls: str, token: str, count: int, args: argparse.Namespace) -> None:
        self._children = []
        for first in range(0, count, args.per_process):
            here = min(args.per_process, count - first)
            command = [
                sys.executable,
                "-m",
                "benchmarks.fleet_agents",
                urls,
                token,
                *map(str, (first, here, args.slots)),
            ]
            self._children.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        self.pids = [child.pid for child in self._children]

    def wait_until_connected(self) -> None:
        for child in self._children:
            assert child.stdout is not None
            if child.stdout.readline() != "connected\n":
                raise RuntimeError("the agents could not connect")

    def begin(self) -> None:
        """Count from here."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()

    def end(self) -> Starts:
        """Drain them, and read what they have counted."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
            child.stdin = None
        found = Starts({}, 0, Counter(), Counter())
        for child in self._children:
            notes = json.loads(child.communicate(timeout=90)[0])
            found.sent.update(notes["sent"])
            found.received.update(notes["received"])
            for task, at in zip(notes["tasks"], notes["at"], strict=True):
                is_again = task in found.at
                found = found._replace(again=found.again + is_again)
                found.at[task] = min(at, found.at.get(task, at))
        return found

    def kill(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()


@contextmanager
def fleet(dsn: str, count: int, args: argparse.Namespace) -> Iterator[tuple[list[Process], Agents]]:
    """Servers and agents, all connected."""
    addresses = free_addresses(args.servers)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(process("server", "--listen", address, "--dsn", dsn, "--app", APP))
            for address in addresses
        ]
        agents = Agents(",".join(addresses), make_token(dsn), count, args)
        stack.callback(agents.kill)
        agents.wait_until_connected()
        yield servers, agents


class Costs:
    """CPU seconds by part. A process that was killed keeps what it had spent."""

    def __init__(self, servers: list[Process], agents: Agents, postmaster: psutil.Process) -> None:
        self._parts = {
            "server": [psutil.Process(server.pid) for server in servers],
            "agent": [psutil.Process(pid) for pid in agents.pids],
        }
        self._postmaster = postmaster
        self._spent: dict[int, float] = {}

    def now(self) -> dict[str, float]:
        found = {part: sum(map(self._cpu, processes)) for part, processes in self._parts.items()}
        # With its children that have ended: a server's connections end with it.
        database = sum(self._postmaster.cpu_times()[:4])
        return found | {"postgresql": database + sum(map(self._cpu, self._postmaster.children()))}

    def _cpu(self, process: psutil.Process) -> float:
        with suppress(psutil.NoSuchProcess):
            self._spent[process.pid] = sum(process.cpu_times()[:2])
        return self._spent.get(process.pid, 0.0)


async def phase(
    dsn: str, args: argparse.Namespace, count: int, rate: int, seconds: int, *, kill: bool
) -> dict[str, float]:
    """One load on a fleet of its own."""
    async with connection(dsn) as conn, load(dsn) as loaded:
        await empty_tables(conn)
        with fleet(dsn, count, args) as (servers, agents):
            costs = Costs(servers, agents, (await postgresql(conn))[0])
            idle = costs.now()
            await asyncio.sleep(IDLE_FOR)
            before = costs.now()
            agents.begin()
            began, submitting = time.time(), loaded.cpu()
            killing = asyncio.create_task(_kill(servers[0], costs, began + seconds / 2)) if kill else None
            await loaded.submit(rate, seconds)
            took = time.time() - began
            await _drain(conn)
            after = costs.now()
            submitting = loaded.cpu() - submitting
            starts = agents.end()
        states = dict(await conn.fetch("select state, count(*) from mainspring.task_history group by state"))
    after["postgresql"] -= submitting
    spent = {part: (after[part] - before[part]) / loaded.tasks * 1e6 for part in after}
    return {
        "per_s": round(loaded.tasks / took),
        "idle_percent": round(sum(before[part] - idle[part] for part in ("server", "agent")) / IDLE_FOR * 100, 1),
        **{f"{part}_us": round(each, 1) for part, each in spent.items()},
        "cpu_us": round(sum(spent.values()), 1),
        **_frames(starts, loaded.tasks),
        **_outcomes(loaded, starts, sum(states.values()) - states.get(10, 0)),
        **_times(loaded, starts, None if killing is None else await killing, args.around),
    }


async def _kill(server: Process, costs: Costs, at: float) -> float:
    await asyncio.sleep(at - time.time())
    costs.now()  # what it has spent
    killed_at = time.time()
    os.kill(server.pid, signal.SIGKILL)
    psutil.Process(server.pid).wait(10)  # nothing of it is left, as under a supervisor
    say("killed a server")
    return killed_at


async def _drain(conn: Connection) -> None:
    """Wait until nothing is left, within bounds: what is missing then is counted."""
    ends = time.monotonic() + AHEAD + DRAIN_WITHIN
    while time.monotonic() < ends and await conn.fetchval("select exists (select from mainspring.task)"):
        await asyncio.sleep(0.1)


def _frames(starts: Starts, tasks: int) -> dict[str, float]:
    say(f"frames to agents {dict(starts.received)}, to servers {dict(starts.sent)}")
    return {
        "frames_to_agents": round(starts.received.total() / tasks, 3),
        "frames_to_servers": round(starts.sent.total() / tasks, 3),
        "acks_to_agents": round(starts.received["Ack"] / tasks, 3),
        "acks_to_servers": round(starts.sent["Ack"] / tasks, 3),
    }


def _outcomes(loaded: Load, starts: Starts, failed: int) -> dict[str, float]:
    submitted = loaded.called.keys() | loaded.planned.keys()
    return {
        "tasks": loaded.tasks,
        "missing": len(submitted - starts.at.keys()),
        "again": starts.again,
        "failed": failed,
    }


def _times(loaded: Load, starts: Starts, killed_at: float | None, around: float) -> dict[str, float]:
    began = float("inf") if killed_at is None else killed_at
    found: dict[str, float] = {}
    held_up = 0.0
    for name, given in (("pickup", loaded.called), ("lateness", loaded.planned)):
        pairs = [(at, starts.at[task]) for task, at in given.items() if task in starts.at]
        near = [(at, started) for at, started in pairs if began <= at < began + around]
        rest = [(at, started) for at, started in pairs if not began <= at < began + around]
        found |= _named(name, lateness_of(rest) if name == "lateness" else _waits(rest))
        if near:
            found |= _named(f"kill_{name}", _waits(near))
            held_up = max([held_up, *(started - began for at, started in near if started - at > LATE)])
    return found if killed_at is None else {**found, "recovered_s": round(held_up, 2)}


def _waits(pairs: list[tuple[float, float]]) -> dict[str, float]:
    return quantiles([(started - at) * 1000 for at, started in pairs])


def _named(name: str, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}_{key}": value for key, value in figures.items()}


async def slow(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    return await phase(dsn, args, args.agents, args.slow, args.seconds, kill=True)


async def fast(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    return await phase(dsn, args, args.agents, args.fast, args.seconds, kill=True)


async def growth(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    sizes = sorted({min(count, args.agents) for count in GROWTH})
    for count in sizes:
        figures = await phase(dsn, args, count, args.slow, args.growth_seconds, kill=False)
        say(f"growth with {count} agents: {json.dumps(figures)}")
        found |= _named(str(count), figures)
    return found | {"ratio": round(found[f"{sizes[-1]}_cpu_us"] / found[f"{sizes[0]}_cpu_us"], 3)}


PARTS = {"slow": slow, "fast": fast, "growth": growth}


async def measure(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in args.parts:
        say(f"{name} begins")
        found = await PARTS[name](dsn, args)
        say(f"{name}: {json.dumps(found)}")
        result |= _named(name, found)
    return result


def main() -> None:
    args = arguments(
        __doc__ or "",
        parts=list(PARTS),
        servers=3,
        agents=200,
        per_process=25,
        slots=10,
        slow=1_000,
        fast=5_000,
        seconds=60,
        growth_seconds=20,
        around=20,
        runs=1,
    )
    results = []
    with fresh_database() as dsn:
        for number in range(1, args.runs + 1):
            settle_memory()
            results.append(uvloop.run(measure(dsn, args)))
            say(f"fleet run {number} of {args.runs}")
    report("fleet", {**median_of(results), "runs": args.runs}, as_json=args.json)


if __name__ == "__main__":
    main()
