"""The fleet: list, show, drain and undrain agents; the strategy that places tasks on them.

Next: store/cluster/registry.py
"""

from __future__ import annotations

from mainspring.model.placement.define_placement import check_strategy
from mainspring.model.words.names import check_name
from mainspring.store.cluster import registry, settings
from mainspring.store.cluster.agents import any_lives as has_agents
from mainspring.store.cluster.registry import AgentView
from mainspring.store.cluster.settings import strategy
from mainspring.store.postgres.connection import Connection

__all__ = ["drain", "has_agents", "listing", "set_strategy", "show", "strategy", "undrain"]


async def listing(conn: Connection) -> list[AgentView]:
    """The agents with a lease, and those that left or were lost within the hour."""
    return await registry.listing(conn)


async def show(conn: Connection, name: str) -> list[AgentView]:
    """The sessions of one agent, the latest last."""
    return await registry.listing(conn, check_name(name, field="agent"))


async def drain(conn: Connection, name: str) -> bool:
    """Returns whether the agent was not draining before."""
    return await registry.drain(conn, check_name(name, field="agent"))


async def undrain(conn: Connection, name: str) -> bool:
    """Returns whether the agent was draining before."""
    return await registry.undrain(conn, check_name(name, field="agent"))


async def set_strategy(conn: Connection, name: str) -> None:
    check_strategy(name, field="strategy")
    await settings.put_strategy(conn, name)
