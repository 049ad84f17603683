"""The fleet: list, show, drain and undrain agents; the strategy that places tasks on them.

Next: store/cluster/registry.py
"""

from __future__ import annotations

from mainspring.model.access.actors import Actor
from mainspring.model.placement.define_placement import check_strategy
from mainspring.model.placement.placement import DEFAULT_STRATEGY
from mainspring.model.words.names import check_path_name
from mainspring.store.cluster import agents, registry, settings
from mainspring.store.cluster.registry import AgentView
from mainspring.store.postgres.connection import Connection


async def listing(conn: Connection, actor: Actor) -> list[AgentView]:
    """The agents with a lease, and those that left or were lost within the hour."""
    return await registry.listing(conn)


async def show(conn: Connection, actor: Actor, name: str) -> list[AgentView]:
    """The sessions of one agent, the latest last."""
    return await registry.listing(conn, check_path_name(name, field="agent"))


async def drain(conn: Connection, actor: Actor, name: str) -> bool:
    """Returns whether the agent was not draining before."""
    return await registry.drain(conn, check_path_name(name, field="agent"))


async def undrain(conn: Connection, actor: Actor, name: str) -> bool:
    """Returns whether the agent was draining before."""
    return await registry.undrain(conn, check_path_name(name, field="agent"))


async def has_agents(conn: Connection, actor: Actor) -> bool:
    """Whether any agent has a lease."""
    return await agents.any_lives(conn)


async def strategy(conn: Connection, actor: Actor, default: str = DEFAULT_STRATEGY) -> str:
    """The strategy in force; `default` while none is set."""
    return await settings.strategy(conn, default)


async def set_strategy(conn: Connection, actor: Actor, name: str) -> None:
    check_strategy(name, field="strategy")
    await settings.put_strategy(conn, name)
