"""AgentPlacement: which sessions the tasks of a pool take, by its strategy and by what is known of the agents.

A server places on its own agents. Where another server may have a better one, by a preferred label or by the
hash of a sticky argument, a task is left to that server for a moment.
Reads   server.gateway (agents here), server.registry (agents of the whole)
Next:   store/tasks/claims.py, store/tasks/sticky.py
"""

from __future__ import annotations

from mainspring.model.placement.placement import Requirements, arrange, fits, matches
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.tasks.sticky import Contest

COURTESY = 1.0  # seconds that a due task is left to another server's agent before an agent here may take it


class AgentPlacement:
    def __init__(self, catalogue: Catalogue, gateway: Gateway, registry: Registry) -> None:
        self._catalogue = catalogue
        self._gateway = gateway
        self._registry = registry
        self._last: dict[int, int] = {}  # by pool, who took the last task

    def places(self, pool: int, requirements: Requirements, room: dict[int, int], limit: int) -> list[int]:
        """The order in which tasks take sessions with room, for at most `limit` tasks."""
        if len(room) == 1:
            return list(room)
        last = self._last.get(pool, 0)
        ids = sorted(room, key=lambda id: (id <= last, id))  # on from where the last turn ended
        candidates = [self._gateway.sessions[id].candidate(room[id]) for id in ids]
        return arrange(requirements, self._catalogue.strategy, candidates, limit)

    def placed(self, pool: int, places: list[int], size: int) -> None:
        """So many tasks have taken these places."""
        if size:
            self._last[pool] = places[(size - 1) % len(places)]

    def delay(self, requirements: Requirements, room: dict[int, int]) -> float:
        """For how long a due task is left to agents of other servers that are preferred to those here."""
        prefer = requirements.placement.prefer
        if not prefer:
            return 0.0
        sessions = self._gateway.sessions
        best = max((matches(prefer, sessions[id].labels) for id in room), default=0)
        for agent in self._registry.elsewhere:
            if fits(requirements, agent.labels, agent.offers) and matches(prefer, agent.labels) > best:
                return COURTESY
        return 0.0

    def contest(self, requirements: Requirements, room: dict[int, int]) -> Contest:
        """Who competes for the tasks of a sticky pool: agents here with room, and all that fit elsewhere."""
        assert requirements.placement.sticky is not None
        sessions = self._gateway.sessions
        here = [(sessions[id].name, id, free) for id, free in room.items()]
        elsewhere = [
            (agent.name, None, 0)
            for agent in self._registry.elsewhere
            if fits(requirements, agent.labels, agent.offers)
        ]
        return Contest(requirements.placement.sticky, [*here, *elsewhere], COURTESY)
