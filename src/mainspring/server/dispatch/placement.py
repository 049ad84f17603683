"""AgentPlacement: choose the sessions that get the tasks of a pool, by its strategy and the load of the agents.

A server places tasks on its own agents. Where another server may have a better one, by a preferred label or by the
hash of a sticky argument, it leaves a due task to that server for a moment.
Reads   server.agents.gateway (agents of this server), server.agents.registry (agents of the cluster)
Next:   store/tasks/claims.py
"""

from __future__ import annotations

from mainspring.model.placement.placement import Requirements, arrange, matches
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.tasks.sticky import Contest

DEFERENCE = 1.0  # seconds that a due task is left to a better agent of another server


class AgentPlacement:
    def __init__(self, catalogue: Catalogue, gateway: Gateway, registry: Registry) -> None:
        self._catalogue = catalogue
        self._gateway = gateway
        self._registry = registry
        self._last: dict[int, int] = {}  # by pool, the session that got the last task

    def places(self, pool: int, requirements: Requirements, room: dict[int, int], limit: int) -> list[int]:
        """The sessions that the next tasks go to, in order, for at most `limit` tasks."""
        if len(room) == 1:
            return list(room)
        last = self._last.get(pool, 0)
        ids = sorted(room, key=lambda id: (id <= last, id))  # continue after the last one
        candidates = [self._gateway.sessions[id].candidate(requirements.slots_for(room[id])) for id in ids]
        if requirements.chunk == 1:
            return arrange(requirements, self._catalogue.strategy, candidates, limit)
        # A chunk is for one agent. The last one of an agent may be cut short: there is one more for each of them.
        chunks = arrange(
            requirements, self._catalogue.strategy, candidates, requirements.slots_for(limit) + len(candidates)
        )
        return _chunk_by_chunk(chunks, requirements.chunk, room)[:limit]

    def placed(self, pool: int, places: list[int], size: int) -> None:
        """The first `size` of these places were taken."""
        if size:
            self._last[pool] = places[(size - 1) % len(places)]

    def delay(self, requirements: Requirements, room: dict[int, int]) -> float:
        """Seconds for which a due task is left to preferred agents of other servers."""
        prefer = requirements.placement.prefer
        if not prefer:
            return 0.0
        sessions = self._gateway.sessions
        best = max((matches(prefer, sessions[id].labels) for id in room), default=0)
        is_beaten = any(matches(prefer, agent.labels) > best for agent in self._registry.elsewhere(requirements))
        return DEFERENCE if is_beaten else 0.0

    def contest(self, requirements: Requirements, room: dict[int, int]) -> Contest:
        """The agents that compete for the tasks of a sticky pool: those here with room, and all that fit elsewhere."""
        assert requirements.placement.sticky is not None
        sessions = self._gateway.sessions
        here = [(sessions[id].name, id, free) for id, free in room.items()]
        elsewhere = [(agent.name, None, 0) for agent in self._registry.elsewhere(requirements)]
        return Contest(requirements.placement.sticky, [*here, *elsewhere], DEFERENCE)


def _chunk_by_chunk(chunks: list[int], size: int, room: dict[int, int]) -> list[int]:
    """A session for each task, from one for each chunk; no session more often than it has room."""
    left = dict(room)
    places: list[int] = []
    for session in chunks:
        taken = min(size, left[session])
        left[session] -= taken
        places += [session] * taken
    return places
