"""Metrics of a server: what its parts have counted since its start, and how they stand now.

Read by a scrape, on the server's own event loop. Asks no database.
Next: api/metering/text.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mainspring.model.figures.buckets import DURATION, LATENESS, added, empty
from mainspring.model.metrics import metrics
from mainspring.model.metrics.busiest import Busiest
from mainspring.model.metrics.histogram import Histogram
from mainspring.model.metrics.metrics import AGENTS, OTHER, SCHEDULES, Family, Sample, capped, family, single
from mainspring.model.tasks.jobs import PRIORITIES, PRIORITY_LEVELS
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import QUARANTINED
from mainspring.server.agents.session import AgentSession
from mainspring.server.recording.tallies import Tallies
from mainspring.server.server import Server
from mainspring.wire.clock import boottime

_PRIORITIES = {level: str(level) for level in PRIORITY_LEVELS} | {level: name for name, level in PRIORITIES.items()}


class ServerMetrics:
    """A source of families. It remembers which jobs were told under their own names."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._busiest = Busiest()
        self._names: dict[int, str] = {}  # of jobs, also of those that were deleted since: what was told stays told

    def families(self) -> Iterator[Family]:
        """All metrics of this server."""
        server = self._server
        self._names.update((id, job.name) for id, job in server.catalogue.jobs.items())
        self._busiest.most = server.catalogue.settings.metrics_jobs
        yield from _jobs(self._busiest, server.recorder.tallies, self._names)
        yield from _recording(server)
        yield from _planning(server)
        yield from _dispatching(server)
        yield from _cluster(server)
        yield from _agents(server)
        yield from _maintenance(server)
        yield from _store(server)


# ── what has ended ──────────────────────────────────────────────────────────────────────────────

_ATTEMPTS, _TASKS, _SECONDS, _BUCKETS = 0, 1, 2, 3  # the places of the numbers of a job and an outcome


def _jobs(busiest: Busiest, tallies: Tallies, names: dict[int, str]) -> Iterator[Family]:
    told = busiest.tell(_by_job(tallies, names))
    yield Family(
        metrics.ATTEMPTS_FINISHED,
        [(key, int(numbers[_ATTEMPTS])) for key, numbers in told.items() if numbers[_ATTEMPTS]],
    )
    yield Family(
        metrics.TASKS_FINISHED, [(key, int(numbers[_TASKS])) for key, numbers in told.items() if numbers[_TASKS]]
    )
    durations: dict[str, Histogram] = {}
    for (job, _), numbers in told.items():
        if not numbers[_ATTEMPTS]:
            continue
        histogram = durations.setdefault(job, Histogram(DURATION))
        histogram.sum += numbers[_SECONDS]
        histogram.counts = [count + int(more) for count, more in zip(histogram.counts, numbers[_BUCKETS:], strict=True)]
    yield family(metrics.ATTEMPT_DURATION, durations)


def _by_job(tallies: Tallies, names: dict[int, str]) -> dict[tuple[str, str], list[float]]:
    """By name and outcome."""
    found: dict[tuple[str, str], list[float]] = {}

    def add(id: int, state: TaskState, numbers: list[float]) -> None:
        key = names.get(id, OTHER), state.label
        before = found.get(key)
        found[key] = numbers if before is None else [sum(pair) for pair in zip(before, numbers, strict=True)]

    for cells, ends_task in ((tallies.ended, 1), (tallies.again, 0)):
        for (id, state), cell in cells.items():
            histogram = cell.durations or empty(DURATION)
            add(id, state, [cell.count, cell.count * ends_task, cell.duration_sum, *histogram])
    for (id, state), tasks in tallies.noted.items():
        add(id, state, [0, tasks, 0.0, *empty(DURATION)])
    return found


def _recording(server: Server) -> Iterator[Family]:
    tallies = server.recorder.tallies
    yield from _lateness(tallies)
    yield single(metrics.TASKS_RETRIED, sum(cell.count for cell in tallies.again.values()))
    yield single(metrics.STALE_REPORTS, tallies.stale)
    none = {"lost": 0, "timeout": 0, QUARANTINED: 0}
    yield family(metrics.TASKS_RESCUED, none | tallies.rescued | {"recalled": server.rescuer.recalled})
    yield single(metrics.QUARANTINED, tallies.rescued[QUARANTINED])
    yield family(metrics.QUEUE_FULL, server.database.tally.queue_full)
    yield single(metrics.EXPIRED, server.expiry.expired)
    yield single(metrics.BATCHES_ENDED, server.batches.tally.ended)
    yield single(metrics.BATCH_CALLBACKS, server.batches.tally.callbacks)


def _lateness(tallies: Tallies) -> Iterator[Family]:
    cells = [*tallies.ended.values(), *tallies.again.values()]
    planned = Histogram(LATENESS, added((cell.planned for cell in cells), LATENESS), sum(c.planned_sum for c in cells))
    due = Histogram(LATENESS, added((cell.due for cell in cells), LATENESS), sum(cell.due_sum for cell in cells))
    yield family(metrics.LATENESS, {"planned": planned, "due": due})


def _planning(server: Server) -> Iterator[Family]:
    tally = server.planner.tally
    yield single(metrics.PLANNER_SCAN, tally.scans)
    yield single(metrics.SCHEDULES_SCANNED, server.server_lease.tally.scanned)
    # What the overlap loop skips was planned before, and its task has ended as skipped since.
    yield family(metrics.FIRES, tally.fires | {"overlap": tally.fires["overlap"] + server.overlap.skipped})
    yield Family(metrics.SLO_EVENTS, _slo_events(server))
    yield Family(metrics.PINGS, [*(server.pinger.tally + server.heartbeat.tally).items()])
    yield single(metrics.PLAN_LAG, tally.lag.value(boottime()))
    yield family(metrics.SEGMENT_LOAD, tally.load.quantiles(boottime()))


def _slo_events(server: Server) -> list[Sample]:
    """By schedule, the first SCHEDULES that were counted; the others together."""
    tally = server.slo_counter.tally
    named = set(list(dict.fromkeys(name for name, _ in tally))[:SCHEDULES])  # once named, always named
    counted = Counter[tuple[str, ...]]()
    for (name, good), count in tally.items():
        counted[name if name in named else OTHER, "true" if good else "false"] += count
    return list(counted.items())


def _dispatching(server: Server) -> Iterator[Family]:
    dispatch, gateway = server.dispatcher.tally, server.gateway.tally
    yield family(metrics.CLAIMS, dispatch.claims)
    yield single(metrics.TASKS_AGED, dispatch.aged)
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


def _store(server: Server) -> Iterator[Family]:
    tally = server.database.tally
    yield family(metrics.STORE_SECONDS, tally.statements)
    yield family(metrics.STORE_ERRORS, tally.errors)


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
    now = server.clock.now()
    ahead = session.ahead(now)
    used = min(session.slots, max(0, session.used(now)))
    beat = session.heartbeat
    lead = server.gateway.lead.of(session.link.ack_time, session.load)
    return [session.slots, used, ahead, beat.skew, beat.round_trip, lead, boottime() - session.heard_at]
