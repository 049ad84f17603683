"""What commands ask about agents, and its implementation straight on the database.

Uses   store.roster, store.settings
Next:  cli/fleet/agents.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mainspring.model.placement.define_placement import check_strategy
from mainspring.model.placement.placement import requirements_of
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.waits import Wait, able_names, why
from mainspring.model.words.names import check_name
from mainspring.store.cluster import registry, settings
from mainspring.store.cluster.registry import AgentView
from mainspring.store.limits import waits
from mainspring.store.postgres.database import Connection


class Agents(Protocol):
    """The agents, and what waits for them."""

    skew_limit: float  # beyond which somebody is told of a wrong clock

    async def listing(self) -> list[AgentView]: ...
    async def named(self, name: str) -> list[AgentView]:
        """Its sessions, the last one last."""

    async def drain(self, name: str) -> bool:
        """Returns whether it did not drain before."""

    async def undrain(self, name: str) -> bool: ...
    async def strategy(self) -> str: ...
    async def put_strategy(self, name: str) -> None: ...
    async def waits(self, tasks: Sequence[int]) -> dict[int, Wait]:
        """Of those that are due and that nobody has taken: why."""

    async def able(self, definition: Definition) -> tuple[list[str], Wait | None]:
        """Names of the agents that can run such a job, and why none of them would take it now."""


class DatabaseAgents:
    """On the database itself."""

    def __init__(self, conn: Callable[[], AbstractAsyncContextManager[Connection]], skew_limit: float) -> None:
        self._conn = conn
        self.skew_limit = skew_limit

    async def listing(self) -> list[AgentView]:
        async with self._conn() as conn:
            return await registry.listing(conn)

    async def named(self, name: str) -> list[AgentView]:
        check_name(name, field="agent")
        async with self._conn() as conn:
            return await registry.listing(conn, name)

    async def drain(self, name: str) -> bool:
        check_name(name, field="agent")
        async with self._conn() as conn:
            return await registry.drain(conn, name)

    async def undrain(self, name: str) -> bool:
        check_name(name, field="agent")
        async with self._conn() as conn:
            return await registry.undrain(conn, name)

    async def strategy(self) -> str:
        async with self._conn() as conn:
            return await settings.strategy(conn)

    async def put_strategy(self, name: str) -> None:
        check_strategy(name, field="strategy")
        async with self._conn() as conn:
            await settings.put_strategy(conn, name)

    async def waits(self, tasks: Sequence[int]) -> dict[int, Wait]:
        if not tasks:
            return {}
        async with self._conn() as conn:
            return await waits.waits(conn, tasks)

    async def able(self, definition: Definition) -> tuple[list[str], Wait | None]:
        requirements = requirements_of(definition)
        async with self._conn() as conn:
            agents = await registry.loaded(conn)
        return able_names(requirements, agents), why(requirements, agents)
