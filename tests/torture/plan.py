"""The plan of faults: what goes wrong, where, when and for how long. Pure: the seed and the sizes decide all of it.

Targets are processes (`server-1`, `agent-2`, `worker-1`), lines between them (`agent-2/server-1`, `server-1/postgres`),
`postgres`, and `database`, which is its clock. One target has one fault at a time; else anything may be down together.
Next: tests/torture/injector.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

LEASE = 3.0  # seconds, of agents and servers
EVERY = 2.0  # seconds between the beginnings of two faults, on average
QUIET = 3.0  # seconds without faults at the beginning
DRIFT = 8.0  # seconds by which the database's clock may be off
GROUPS = ("kill", "restart", "stop", "partition", "late", "clock", "postgres", "failover")
LATE = 6.0  # times its delay that a server with a late line to PostgreSQL has it: a hello is three statements


class Fault(NamedTuple):
    at: float  # seconds since the load began
    lasts: float
    kind: str
    target: str
    how: str = ""  # of a partition and of a slow line: both, up, down
    amount: float = 0.0  # seconds, of a delay or of a clock

    def __str__(self) -> str:
        more = " ".join(filter(None, (self.how, f"{self.amount:g} s" if self.amount else "")))
        return f"{self.at:7.2f} s  for {self.lasts:5.2f} s  {self.kind:9} {self.target} {more}".rstrip()


class Sizes(NamedTuple):
    servers: int = 3
    agents: int = 3
    workers: int = 1

    def names(self, kind: str) -> list[str]:
        count: int = getattr(self, f"{kind}s")
        return [f"{kind}-{number}" for number in range(1, count + 1)]

    @property
    def processes(self) -> list[str]:
        return [*self.names("server"), *self.names("agent"), *self.names("worker")]

    @property
    def lines(self) -> list[str]:
        """Between an agent and a server, and between a process and PostgreSQL."""
        pairs = [f"{agent}/{server}" for agent in self.names("agent") for server in self.names("server")]
        return pairs + [f"{process}/postgres" for process in (*self.processes, "client")]


def make_plan(seed: int, seconds: float, sizes: Sizes, groups: Sequence[str] = GROUPS) -> list[Fault]:
    """The same for the same arguments. All faults are over when `seconds` have passed."""
    chance = random.Random(f"torture {seed}")
    busy: dict[str, float] = {}
    plan: list[Fault] = []
    drift, at = 0.0, QUIET
    while at < seconds and groups:
        fault = _one(chance, round(at, 3), sizes, groups, drift)
        touched = _touches(fault, sizes)
        if fault.at + fault.lasts <= seconds and all(busy.get(each, 0.0) <= fault.at for each in touched):
            plan.append(fault)
            busy |= dict.fromkeys(touched, fault.at + fault.lasts + 1.0)
            drift += fault.amount if fault.target == "database" else 0.0
            if fault.kind == "failover":  # there is one standby
                groups = [group for group in groups if group != "failover"]
        at += chance.expovariate(1 / EVERY)
    return plan


def _touches(fault: Fault, sizes: Sizes) -> list[str]:
    """What must have no other fault meanwhile. The guardian of an agent is the agent's: without both, commands stay."""
    agent, _, end = fault.target.partition("/")
    if fault.kind == "late":
        return [fault.target, f"{fault.target}/postgres"]
    return [f"{agent}/{server}" for server in sizes.names("server")] if end == "servers" else [fault.target]


def _one(chance: random.Random, at: float, sizes: Sizes, groups: Sequence[str], drift: float) -> Fault:
    lasts = round(chance.choice((0.2, 0.6, 1.2, 2.5)) * LEASE * chance.uniform(0.8, 1.2), 3)
    match chance.choice(list(groups)):
        case "kill":
            kind = chance.choice(("kill", "kill", "kill", "guardian"))
            return Fault(
                at, lasts, kind, chance.choice(sizes.names("agent") if kind == "guardian" else sizes.processes)
            )
        case "restart":
            return Fault(at, lasts, "restart", chance.choice(sizes.processes))
        case "stop":
            return Fault(at, lasts, "stop", chance.choice([*sizes.processes, "leader"]))
        case "partition":
            return _on_a_line(chance, at, lasts, sizes)
        case "late":
            delay = round(chance.uniform(0.2, 0.7), 2)
            return Fault(at, LATE * delay, "late", chance.choice(sizes.names("server")), amount=delay)
        case "clock":
            return _clock(chance, at, sizes, drift)
        case "postgres":
            return Fault(at, min(lasts, LEASE), chance.choice(("postgres", "backend", "backend")), "postgres")
        case "failover":
            return Fault(at, min(lasts, LEASE), "failover", "postgres")
    raise ValueError(f"faults: {groups}; there are {', '.join(GROUPS)}")


def _on_a_line(chance: random.Random, at: float, lasts: float, sizes: Sizes) -> Fault:
    """Silent, so that nobody gets a reset; slow, also one way; or cut. An agent may lose all its servers at once."""
    target = chance.choice([*sizes.lines, *sizes.names("agent") * 2])
    kind = chance.choice(("partition", "partition", "slow", "cut"))
    if "/" not in target:
        target += "/servers"
    if kind == "cut":
        return Fault(at, lasts, kind, target)
    how = chance.choice(("both", "up", "down"))
    return Fault(at, lasts, kind, target, how, round(chance.uniform(0.05, 1.0), 2) if kind == "slow" else 0.0)


def _clock(chance: random.Random, at: float, sizes: Sizes, drift: float) -> Fault:
    """An agent comes back with a wrong wall clock, or the database's clock is set."""
    if chance.random() < 0.5:
        return Fault(
            at, 0.5, "clock", chance.choice(sizes.names("agent")), amount=chance.choice((-3600, -30, 30, 3600))
        )
    step = round(chance.uniform(1.0, 5.0), 2) * chance.choice((-1, 1))
    return Fault(at, 0.0, "clock", "database", amount=step if abs(drift + step) <= DRIFT else -step)
