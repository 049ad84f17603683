"""Metrics: every metric that `/metrics` tells, once: its name, kind, labels and meaning.

The documentation and the tests read this table. A label never holds a task, a key, a scope or other free text: its
values are words of this program, or names of jobs and agents, of which there are at most LABELLED.
Next: model/metrics/tallies.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from mainspring.model.metrics.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]

JOBS = 200  # with a label of their own; the others share OTHER
AGENTS = 1000  # of one server, the same
SCHEDULES = 200  # with an SLO, the same
RULES = 200  # of alerts, the same
OTHER = "other"


class Metric(NamedTuple):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


Sample = tuple[tuple[str, ...], "float | Histogram"]  # the values of its labels, and its own


class Family(NamedTuple):
    """A metric with its samples."""

    metric: Metric
    samples: list[Sample]


METRICS: dict[str, Metric] = {}


def _metric(kind: Kind, name: str, help: str, *labels: str) -> Metric:
    made = METRICS[name] = Metric(f"mainspring_{name}", kind, help, labels)
    return made


def _counter(name: str, help: str, *labels: str) -> Metric:
    return _metric("counter", name, help, *labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return _metric("gauge", name, help, *labels)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return _metric("histogram", name, help, *labels)


# ── attempts and tasks that ended here ──────────────────────────────────────────────────────────

ATTEMPTS_FINISHED = _counter("attempts_finished_total", "Attempts that ended, by their outcome.", "job", "outcome")
ATTEMPT_DURATION = _histogram("attempt_duration_seconds", "From the start of an attempt to its end.", "job")
TASKS_FINISHED = _counter("tasks_finished_total", "Tasks that ended, by their last state.", "job", "state")
LATENESS = _histogram(
    "lateness_seconds",
    "From the instant of a task to its start: planned, of tasks of schedules; due, of submitted ones.",
    "kind",
)
QUEUE_WAIT = _histogram(
    "queue_wait_seconds",
    "From the moment that a task is due until it is sent to an agent; 0: it is sent before.",
    "priority",
)
TASKS_RETRIED = _counter("tasks_retried_total", "Attempts after which the task runs again.")
TASKS_RESCUED = _counter(
    "tasks_rescued_total",
    "Tasks taken from agents, by the error code of the attempt: lost, its session was over; timeout, it ran past its "
    "deadline; quarantined; cancelled. recalled: it had not started, and is planned again.",
    "cause",
)
STALE_REPORTS = _counter(
    "stale_reports_total", "Reports on attempts that no longer had their task; they changed nothing."
)
QUARANTINED = _counter("quarantined_total", "Tasks that failed because their agents died too often.")
BATCHES_ENDED = _counter(
    "batches_ended_total", "Batches that this server has ended; with those that a client ended by closing them."
)
BATCH_CALLBACKS = _counter(
    "batch_callbacks_total", "Callbacks of batches that this server has enqueued; with those of such clients."
)

QUEUE_FULL = _counter(
    "queue_full_total", "Submissions that this process saw refused because too many tasks waited.", "job"
)
EXPIRED = _counter("tasks_expired_total", "Tasks that this server has skipped because their start deadline had passed.")

# ── planning ────────────────────────────────────────────────────────────────────────────────────

PLANNER_SCAN = _histogram("planner_scan_duration_seconds", "One step of the planner, from the query to its commit.")
SCHEDULES_SCANNED = _counter("planner_schedules_scanned_total", "Schedules that the planner has read.")
FIRES = _counter("fires_total", "Plan times that were decided: planned, or why there is no task.", "decision")
SLO_EVENTS = _counter(
    "slo_events_total",
    "Plan times of schedules with an SLO that this server counted as leader; not good: late, or missed.",
    "schedule", "good",
)  # fmt: skip
PINGS = _counter(
    "pings_total",
    "Signs of life that this server sent as leader: the heartbeat, and starts, successes and failures of schedules.",
    "event", "result",
)  # fmt: skip
PLAN_LAG = _gauge("plan_lag_seconds", "How late the planner was at most in the last minute, behind a plan time.")

# ── from a pending task to its agent ────────────────────────────────────────────────────────────

CLAIMS = _counter(
    "claims_total", "Statements that claim tasks: found some, empty, or failed (the answer did not come).", "result"
)
TASKS_AGED = _counter("tasks_aged_total", "Tasks that were claimed before more important ones, because of their age.")
CLAIM_DURATION = _histogram("claim_duration_seconds", "Statements that claim tasks.")
TASKS_DISPATCHED = _counter("tasks_dispatched_total", "Attempts sent to agents.")
DISPATCHES = _counter(
    "dispatches_total",
    "What became of attempts that were sent: acknowledged by the agent, resent, refused (the agent gave them back "
    "unstarted), or expired (the session ended before an acknowledgement).",
    "result",
)
DISPATCH_ACK = _histogram("dispatch_ack_seconds", "From the sending of a dispatch to its acknowledgement.")

# ── segments, leader, leases ────────────────────────────────────────────────────────────────────

SEGMENTS_OWNED = _gauge("segments_owned", "Segments of this server.")
SEGMENT_MOVES = _counter("segment_moves_total", "Segments that this server moved as leader, or released.", "reason")
SEGMENT_LOAD = _gauge(
    "segment_load", "Plan times decided in the last minute per segment planned here: the median and the maximum.",
    "quantile",
)  # fmt: skip
LEADER = _gauge("leader", "1 if this server leads.")
ELECTIONS = _counter("elections_total", "Elections that this server has won.")
SERVER_LEASE = _gauge("server_lease_seconds", "Seconds for which this server may still act on its lease.")
HEARTBEATS = _counter(
    "heartbeats_total", "Heartbeats of this server, and of its agents: ok, failed, or expired (the lease was lost).",
    "who", "result",
)  # fmt: skip

# ── agents of this server ───────────────────────────────────────────────────────────────────────

AGENTS_CONNECTED = _gauge("agents", "Agents connected to this server: active, draining, or silent.", "status")
AGENTS_IDLE = _gauge("agents_idle", "Active agents that hold no attempt.")
AGENT_SLOTS = _gauge("agent_slots", "Slots of an agent.", "agent")
AGENT_SLOTS_USED = _gauge("agent_slots_used", "Slots of an agent that run an attempt.", "agent")
AGENT_ARMED = _gauge("agent_armed", "Attempts that an agent holds ahead of their time.", "agent")
AGENT_SKEW = _gauge("agent_skew_seconds", "By how much the agent's clock is ahead of the database's.", "agent")
AGENT_ROUND_TRIP = _gauge("agent_round_trip_seconds", "Round trip of a heartbeat.", "agent")
AGENT_LEAD = _gauge("agent_lead_seconds", "How long before its time a task is armed on the agent.", "agent")
AGENT_HEARD = _gauge("agent_last_heartbeat_seconds", "Age of the agent's last heartbeat.", "agent")
AGENT_CONNECTIONS = _counter(
    "agent_connections_total",
    "Connections of agents: accepted, resumed (with the attempts that the agent held), refused, expired.",
    "result",
)

# ── the store ───────────────────────────────────────────────────────────────────────────────────

STORE_SECONDS = _histogram("store_seconds", "Statements, by what they do to which table.", "statement")
STORE_ERRORS = _counter("store_errors_total", "Statements and connections that failed: SQLSTATE, or a word.", "code")
MAINTENANCE_RUNS = _counter("maintenance_runs_total", "Runs of a chore by this server.", "chore")
MAINTENANCE_ROWS = _counter("maintenance_rows_total", "Rows or partitions that a chore has changed.", "chore")
MAINTENANCE_FAILURES = _counter("maintenance_failures_total", "Runs of a chore that failed.", "chore")
MAINTENANCE_SECONDS = _counter("maintenance_seconds_total", "Time that a chore took.", "chore")
DEAD_ROWS = _gauge("dead_rows", "Rows that vacuum has not removed yet, as PostgreSQL counts them.", "table")

# ── the cluster, told alike by every server: read it with max() ─────────────────────────────────

CLUSTER_TASKS = _gauge("cluster_tasks", "Live tasks, as the leader counted them last.", "state")
CLUSTER_QUEUE_TASKS = _gauge("cluster_queue_tasks", "Due tasks that no agent holds, counted likewise.", "job")
CLUSTER_QUEUE_OLDEST = _gauge("cluster_queue_oldest_seconds", "How long the oldest of them has been due.", "job")
CLUSTER_WAITING = _gauge(
    "cluster_waiting_tasks",
    "Due tasks that no agent holds, by the code of what they wait for; limit: a limit of their job; held; "
    "dispatching: an agent can take them. At most 1,000 are counted for each pool.",
    "code",
)
CLUSTER_CREATED = _counter(
    "cluster_tasks_created_total",
    "Task ids ever drawn: tasks created, and submissions that were refused or rolled back.",
)
CLUSTER_QUEUE_FULL = _counter(
    "cluster_queue_full_total", "Submissions ever refused because too many tasks waited, by whichever program."
)
CLUSTER_SLOTS = _gauge("cluster_slots", "Slots of all agents: busy or free.", "state")
CLUSTER_WANTED = _gauge(
    "cluster_wanted_slots",
    "Slots that all work asks for, now and within five minutes: what is due is to start within 30 seconds.",
)
ALERTS = _gauge("alerts", "Alerts of each rule that are pending, and those that fire.", "rule", "state")
CLUSTER_HELD = _gauge("cluster_held", "Holds in force: how many jobs are held (job), 1 if everything is (all).", "kind")
CLUSTER_UNOWNED = _gauge("cluster_segments_unowned", "Segments that no living server owns.")

# ── this process ────────────────────────────────────────────────────────────────────────────────

HTTP_REQUESTS = _counter("http_requests_total", "HTTP requests that were answered.", "operation", "status")
HTTP_SECONDS = _histogram("http_request_seconds", "From the request to its answer.", "operation", "status")
HTTP_STREAMS = _gauge("http_streams", "Event streams that are open.")
AUTH_FAILURES = _counter("auth_failures_total", "Requests without valid access.", "reason")
LOOP_LAG = _histogram("loop_lag_seconds", "How late the event loop runs a timer, sampled twice a second.")
BUILD_INFO = _gauge("build_info", "1, with the version of this program in its labels.", "version", "python")


def family(metric: Metric, by_label: Mapping[str, float] | Mapping[str, Histogram]) -> Family:
    """The family of a metric with one label."""
    return Family(metric, [((label,), value) for label, value in by_label.items()])


def single(metric: Metric, value: float | Histogram) -> Family:
    """The family of a metric without labels."""
    return Family(metric, [((), value)])


def capped(names: Iterable[str], most: int) -> set[str]:
    """The first `most` names in order: a label must not grow without bound."""
    return set(sorted(set(names))[:most])
