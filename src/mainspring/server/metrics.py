"""Metrics of a server: what its parts have counted since its start, and how they stand now.

Read by a scrape, on the server's own event loop. Asks no database.
Next: api/metrics.py
"""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.model.metrics import metrics
from mainspring.model.metrics.metrics import AGENTS, OTHER, Family, capped, family, single
from mainspring.model.tasks.jobs import PRIORITIES, PRIORITY_LEVELS
from mainspring.server.agents.session import AgentSession
from mainspring.server.server import Server
from mainspring.wire.clock import boottime

_PRIORITIES = {level: str(level) for level in PRIORITY_LEVELS} | {level: name for name, level in PRIORITIES.items()}


def families(server: Server) -> Iterator[Family]:
    """All metrics of this server."""
    yield from _recording(server)
    yield from _planning(server)
    yield from _dispatching(server)
    yield from _cluster(server)
    yield from _agents(server)
    yield from _maintenance(server)


def _recording(server: Server) -> Iterator[Family]:
    recorder, rescuer = server.recorder.tally, server.rescuer.tally
    yield single(metrics.TASKS_RETRIED, recorder.retried)
    yield single(metrics.STALE_REPORTS, recorder.stale)
    yield family(metrics.TASKS_RESCUED, rescuer.rescued)
    yield single(metrics.QUARANTINED, rescuer.quarantined)


def _planning(server: Server) -> Iterator[Family]:
    tally = server.planner.tally
    yield single(metrics.PLANNER_SCAN, tally.scans)
    yield single(metrics.SCHEDULES_SCANNED, server.server_lease.tally.scanned)
    # What the overlap loop skips was planned before, and its task has ended as skipped since.
    yield family(metrics.FIRES, tally.fires | {"overlap": tally.fires["overlap"] + server.overlap.skipped})
    yield single(metrics.PLAN_LAG, tally.lag)
    yield family(metrics.SEGMENT_LOAD, tally.load.quantiles(boottime()))


def _dispatching(server: Server) -> Iterator[Family]:
    dispatch, gateway = server.dispatcher.tally, server.gateway.tally
    yield family(metrics.CLAIMS, dispatch.claims)
    yield single(metrics.CLAIM_DURATION, dispatch.claim_seconds)
    yield family(metrics.QUEUE_WAIT, {_PRIORITIES[level]: waits for level, waits in enumerate(gateway.queue_waits)})
    yield single(metrics.TASKS_DISPATCHED, gateway.sent)
    yield family(metrics.DISPATCHES, gateway.dispatches)
    yield single(metrics.DISPATCH_ACK, gateway.ack_seconds)
    refused = server.agent_connections.refusals.total
    yield family(metrics.AGENT_CONNECTIONS, gateway.connections | {"refused": refused})


def _cluster(server: Server) -> Iterator[Family]:
    lease = server.server_lease
    tally, agents = lease.cluster_tally, server.gateway.tally.heartbeats
    yield single(metrics.LEADER, 0 if server.leader.term is None else 1)
    yield single(metrics.ELECTIONS, tally.elections)
    yield single(metrics.SERVER_LEASE, max(0.0, lease.trusted_until - boottime()))
    beats = [(who, counts) for who, counts in (("server", tally.heartbeats), ("agent", agents))]
    yield Family(
        metrics.HEARTBEATS, [((who, result), count) for who, counts in beats for result, count in counts.items()]
    )
    yield family(metrics.SEGMENT_MOVES, tally.moves)


def _maintenance(server: Server) -> Iterator[Family]:
    chores = server.janitor.tallies
    yield family(metrics.MAINTENANCE_RUNS, {name: chore.runs for name, chore in chores.items()})
    yield family(metrics.MAINTENANCE_ROWS, {name: chore.rows for name, chore in chores.items()})
    yield family(metrics.MAINTENANCE_FAILURES, {name: chore.failures for name, chore in chores.items()})
    yield family(metrics.MAINTENANCE_SECONDS, {name: chore.seconds for name, chore in chores.items()})


# ── agents ──────────────────────────────────────────────────────────────────────────────────────

_SUMS = (metrics.AGENT_SLOTS, metrics.AGENT_SLOTS_USED, metrics.AGENT_ARMED)
_WORST = (metrics.AGENT_SKEW, metrics.AGENT_ROUND_TRIP, metrics.AGENT_LEAD, metrics.AGENT_HEARD)


def _agents(server: Server) -> Iterator[Family]:
    gateway, now = server.gateway, boottime()
    sessions = list(gateway.sessions.values())
    statuses = {"active": 0, "draining": 0, "silent": 0}
    idle = 0
    for session in sessions:
        is_silent = not session.is_trusted(now, server.lease)
        is_draining = session.draining or session.name in gateway.drained
        statuses["silent" if is_silent else "draining" if is_draining else "active"] += 1
        idle += not is_silent and not is_draining and len(session.held) == len(session.reported)
    yield family(metrics.AGENTS_CONNECTED, statuses)
    yield single(metrics.AGENTS_IDLE, idle)
    yield from _each_agent(server, sessions)


def _each_agent(server: Server, sessions: list[AgentSession]) -> Iterator[Family]:
    """Agents that share a name share a label: their slots add up, and of the rest the worst counts."""
    named = capped((session.name for session in sessions), AGENTS)
    found: dict[str, list[float]] = {}
    for session in sessions:
        values = _values(server, session)
        label = session.name if session.name in named else OTHER
        before = found.get(label)
        if before is not None:
            for place in range(len(_SUMS)):
                values[place] += before[place]
            for place in range(len(_SUMS), len(values)):
                values[place] = max(values[place], before[place], key=abs)
        found[label] = values
    for place, metric in enumerate((*_SUMS, *_WORST)):
        yield Family(metric, [((label,), values[place]) for label, values in found.items()])


def _values(server: Server, session: AgentSession) -> list[float]:
    """In the order of _SUMS and _WORST."""
    ahead = session.ahead(server.clock.now())
    used = min(session.slots, max(0, len(session.held) - len(session.reported) - ahead))
    beat = session.heartbeat
    lead = server.gateway.lead.of(session.link.ack_time, session.load)
    return [session.slots, used, ahead, beat.skew, beat.round_trip, lead, boottime() - session.heard_at]
