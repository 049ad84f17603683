"""Health of the cluster: a list of checks, each with what to do about it.

From few statements that cost the same whatever is stored: they read neither the history nor tasks that are not due.
`unavailable` is the answer while PostgreSQL gives no connection.
Reads   store.figures.condition, store.figures.waiting, store.alerts.deliveries
Next:   store/figures/condition.py
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from mainspring.errors import MainspringError, SchemaMismatch, StoreUnavailable
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.waits import Known, Wait, why
from mainspring.model.words.skew import DEFAULT_LIMIT
from mainspring.operations.definitions import holds
from mainspring.store.alerts import deliveries
from mainspring.store.cluster import registry
from mainspring.store.figures import condition
from mainspring.store.figures.condition import Condition
from mainspring.store.figures.waiting import Waiting, waiting
from mainspring.store.postgres import migrate
from mainspring.store.postgres.connection import Connection

DEGRADED_AFTER = 60.0  # seconds that a task may be due and wait
LEASE = 15.0  # seconds, where no server tells its own
LEASES = 2  # that segments may be without an owner, or the cluster without a leader
FAILING = 600.0  # seconds that a chore may fail: it waits for locks, and is repeated every minute
SETTLING = 5.0  # seconds for an agent that can run a task to join
NAMED = 5  # jobs, in a message


class Status(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # it works, and something needs attention
    UNHEALTHY = "unhealthy"  # it does not work


class Check(msgspec.Struct, frozen=True):
    code: str
    status: Status
    message: str
    since: datetime | None = None  # it has failed at least since then; None: nothing tells


class Health(msgspec.Struct, frozen=True):
    """`status` is that of the worst check."""

    status: Status
    checks: list[Check]


_ORDER = list(Status)


def _health(checks: Sequence[Check]) -> Health:
    return Health(max((check.status for check in checks), key=_ORDER.index, default=Status.HEALTHY), list(checks))


def _good(code: str, message: str) -> Check:
    return Check(code, Status.HEALTHY, message)


def _degraded(code: str, message: str, since: datetime | None = None) -> Check:
    return Check(code, Status.DEGRADED, message, since)


def _unhealthy(code: str, message: str, since: datetime | None = None) -> Check:
    return Check(code, Status.UNHEALTHY, message, since)


def unavailable(error: MainspringError) -> Health:
    """The health of a cluster whose PostgreSQL cannot be asked, or written to."""
    what_to_do = "see that it runs and that --dsn names it; work goes on by itself once it answers"
    message = error.message if isinstance(error, SchemaMismatch) else f"{error.message}; {what_to_do}"
    return _health([_unhealthy(error.code, message)])


async def health(
    conn: Connection, actor: Actor, degraded_after: float = DEGRADED_AFTER, skew_limit: float = DEFAULT_LIMIT
) -> Health:
    """Whether the cluster is well, with every check and what to do about it.

    `degraded_after` is how long a task may be due and wait, `skew_limit` how wrong a clock may be.
    """
    if (mismatch := await _schema(conn)) is not None:
        return _health([mismatch])  # the other checks might ask for what is not there
    sent = time.time()
    found = await condition.read(conn)
    skew = _own_skew(found, sent, time.time())
    agents = await registry.heard(conn)
    pools = [pool for pool in await waiting(conn) if _is_seen(pool, actor) and not pool.is_held]
    return _health(
        [
            _writable(found),
            _good("schema_mismatch", "the schema is the one that this program knows"),
            _server(found),
            _leader(found),
            _segments(found),
            await _agents(conn, agents),
            *_queue(pools, agents, actor, degraded_after),
            await _full(conn, actor),
            await _clocks(conn, skew, skew_limit),
            await _maintenance(conn),
            await _alerts(conn),
            await _held(conn, actor),
        ]
    )


# ── the store ───────────────────────────────────────────────────────────────────────────────────


async def _schema(conn: Connection) -> Check | None:
    try:
        missing = await migrate.missing(conn)
    except SchemaMismatch as error:
        return _unhealthy("schema_mismatch", error.message)
    return _unhealthy("schema_mismatch", migrate.lacks(missing)) if missing else None


def _writable(found: Condition) -> Check:
    if found.is_read_only:
        return _unhealthy(
            StoreUnavailable.code,
            "PostgreSQL is read-only here: a standby, or told to be; name its primary in the DSN as well",
        )
    return _good(StoreUnavailable.code, "PostgreSQL answers, and takes writes")


# ── servers ─────────────────────────────────────────────────────────────────────────────────────


def _server(found: Condition) -> Check:
    if found.servers:
        return _good("no_server", f"{_counted(found.servers, 'server')} active")
    start = "start one with `mainspring up`, `server` or `worker`"
    return _unhealthy(
        "no_server", f"no server is active: nothing is planned or dispatched; {start}", found.last_server_at
    )


def _is_long(found: Condition, since: datetime | None) -> bool:
    """Whether it lasts longer than another server may take to notice and to act."""
    return since is None or (found.now - since).total_seconds() > LEASES * (found.lease or LEASE)


def _leader(found: Condition) -> Check:
    until = found.leads_until
    if not found.servers:
        return _degraded("no_leader", "no server leads, because none is active; start one", until)
    if until is not None and (until > found.now or not _is_long(found, until)):
        return _good("no_leader", "a server leads, or is about to be elected")
    return _degraded(
        "no_leader",
        "no server leads: segments are not assigned, lost tasks not rescued, old rows not deleted; start a server, and "
        "if one runs, see its log: PostgreSQL refuses its election",
        until,
    )


def _segments(found: Condition) -> Check:
    if not found.unowned or (found.servers and not _is_long(found, found.unowned_since)):
        return _good("segments_unowned", "every segment has an owner, or is about to get one")
    return _degraded(
        "segments_unowned",
        f"{found.unowned} of 100 segments have no living owner: their schedules and tasks wait; "
        "`mainspring segments` shows which and why, and starting a server helps",
        found.unowned_since,
    )


async def _maintenance(conn: Connection) -> Check:
    failing = await condition.failing(conn, FAILING)
    if not failing:
        return _good("maintenance_failing", "maintenance runs")
    first = failing[0]
    names = _listed(chore.name for chore in failing)
    reason = "it has not run: is there a leader?" if first.error is None else first.error
    return _degraded(
        "maintenance_failing",
        f"maintenance fails ({names}): {reason}; `mainspring stats` shows each chore, and the leader's log more",
        first.since,
    )


async def _alerts(conn: Connection) -> Check:
    found = await deliveries.undelivered(conn)
    if found is None:
        return _good("alerts_undelivered", "what alerts had to tell has reached its channels")
    reason = "no leader has tried to send them" if found.error is None else found.error
    return _degraded(
        "alerts_undelivered",
        f"{_counted(found.messages, 'message')} of alerts did not reach {_listed(found.channels)}: {reason}; "
        f"`mainspring channel list` shows the state of each, `mainspring channel test {found.channels[0]}` tries one",
        found.since,
    )


# ── agents and the queue ────────────────────────────────────────────────────────────────────────


async def _agents(conn: Connection, agents: Sequence[Known]) -> Check:
    if agents:
        return _good("no_agents", f"{_counted(len(agents), 'agent')} connected")
    start = "start one with `mainspring up`, `worker` or `agent`"
    return _degraded(
        "no_agents", f"no agent is connected: nothing can run; {start}", await condition.last_agent_at(conn)
    )


async def _full(conn: Connection, actor: Actor) -> Check:
    full = [queue for queue in await condition.full_queues(conn) if actor.reaches(queue.name)]
    if not full:
        return _good("queue_full", "no bounded queue is full")
    job, bound = full[0].name, full[0].bound
    since = _earliest(queue.since for queue in full)
    more = f" and {len(full) - 1} more" if len(full) > 1 else ""
    told = f"as many tasks of {job!r}{more} wait as may ({bound:,}), and submissions are refused"
    if (hold := await _hold_of(conn, actor, job)) is not None:
        return _degraded("queue_full", f"{told}; {hold}", since)
    return _degraded("queue_full", f"{told}; add agents or slots, or raise max_queued", since)


async def _hold_of(conn: Connection, actor: Actor, job: str) -> str | None:
    """That nothing of this job starts because of a hold, and what ends it."""
    found = await holds.show(conn, actor)
    if found.everything is not None and found.everything.released_at is None:
        return "everything is held, so none starts: `mainspring release` lets it go on"
    if any(one.job == job and one.released_at is None for one in found.jobs):
        return f"the job is held, so none starts: `mainspring job release {shlex.quote(job)}` lets it go on"
    return None


def _is_seen(pool: Waiting, actor: Actor) -> bool:
    """Whether it has tasks of jobs that the actor may see."""
    return any(actor.reaches(job) for job in pool.jobs) or not actor.jobs


def _queue(pools: Sequence[Waiting], agents: Sequence[Known], actor: Actor, degraded_after: float) -> Iterator[Check]:
    """Tasks that wait for a limit of their job do as they were told."""
    waits = [(pool, why(pool.requirements, agents)) for pool in pools if pool.requirements is not None]
    unrunnable = [(pool, wait) for pool, wait in waits if agents and wait is not None and wait.is_unrunnable]
    yield _unrunnable([(pool, wait) for pool, wait in unrunnable if pool.age > SETTLING], actor)
    stuck = {id(pool) for pool, _ in unrunnable}
    late = [(pool, wait) for pool, wait in waits if id(pool) not in stuck and pool.age > degraded_after]
    if not late:
        yield _good("backing_up", f"no task that could run has been due for more than {degraded_after:g} s")
        return
    oldest, wait = late[0]
    reason = "" if wait is None else f": {wait.what}"
    yield _degraded(
        "backing_up",
        f"tasks of {_jobs(oldest, actor)} have been due for {oldest.age:.0f} s{reason}; add agents or slots, or see "
        "`mainspring task list --state pending` for what can be cancelled",
        oldest.oldest,
    )


def _unrunnable(found: Sequence[tuple[Waiting, Wait]], actor: Actor) -> Check:
    if not found:
        return _good("unrunnable", "every due task has an agent that can run it")
    first, wait = found[0]
    more = f"; {_counted(len(found) - 1, 'other set')} of requirements too" if len(found) > 1 else ""
    advice = "" if wait.code == "no_application" else "; start an agent that can, or change what the job requires"
    return _degraded(
        "unrunnable",
        f"no agent can run the due tasks of {_jobs(first, actor)}: {wait.reason}{more}{advice}",
        min(pool.oldest for pool, _ in found),
    )


def _jobs(pool: Waiting, actor: Actor) -> str:
    return _listed(job for job in pool.jobs if actor.reaches(job))


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def _earliest(instants: Iterable[datetime | None]) -> datetime | None:
    return min((instant for instant in instants if instant is not None), default=None)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


async def _held(conn: Connection, actor: Actor) -> Check:
    found = await holds.show(conn, actor)
    jobs = [one for one in found.jobs if one.released_at is None]
    if (everything := found.everything) is not None and everything.released_at is None:
        why = f" ({everything.note})" if everything.note else ""
        told = f"everything is held by {everything.by}{why}: nothing new starts; `mainspring release` lets it go on"
        return _degraded("held", told, everything.since)
    if not jobs:
        return _good("held", "nothing is held")
    first = min(jobs, key=lambda one: one.since)
    names = _listed(one.job or "" for one in jobs)
    told = f"held: {names}, the first by {first.by}{f' ({first.note})' if first.note else ''}"
    return _degraded(
        "held", f"{told}; `mainspring job release {shlex.quote(first.job or '')}` lets it go on", first.since
    )


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────


def _own_skew(found: Condition, sent: float, received: float) -> float:
    """By how much this machine's clock is ahead of the database's at least, whatever the query took."""
    theirs = found.now.timestamp()
    return max(0.0, sent - theirs) + min(0.0, received - theirs)


async def _clocks(conn: Connection, own: float, limit: float) -> Check:
    skewed = await condition.skewed(conn, limit)
    wrong = [f"agent {agent.name} ({agent.skew:+.1f} s)" for agent in skewed]
    if abs(own) > limit:
        wrong.insert(0, f"the machine that answers this ({own:+.1f} s)")
    if not wrong:
        return _good("clock_skew", f"clocks agree with the database's within {limit:g} s")
    return _degraded(
        "clock_skew",
        f"clocks differ from the database's: {', '.join(wrong)}; tasks fire on the database's time, but set them right",
        _earliest(agent.since for agent in skewed),
    )
