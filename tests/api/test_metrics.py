"""Metrics: each moves when what it counts happens; both formats can be parsed; labels are bounded."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from mainspring.api.metering import cluster_metrics
from mainspring.api.metering.tallies import HttpTally, build
from mainspring.api.metering.text import OPENMETRICS, TEXT, process, render, render_in_parts
from mainspring.model.metrics import metrics
from mainspring.model.metrics.histogram import Histogram
from mainspring.model.metrics.metrics import METRICS, Family
from mainspring.store.postgres.database import Connection, Database
from tests.api import stories
from tests.api.stories import Move, Stage, move

Story = Callable[[Stage, Sequence[Move]], Awaitable[None]]

MOVES: dict[Story, list[Move]] = {
    stories.engine: [
        move("attempts_finished_total", job="works", outcome="succeeded"),
        move("attempts_finished_total", job="fails", outcome="failed"),
        move("attempt_duration_seconds", job="works"),
        move("tasks_finished_total", job="fails", state="failed"),
        move("lateness_seconds", kind="due"),
        move("lateness_seconds", kind="planned"),
        move("queue_wait_seconds", priority="normal"),
        move("tasks_retried_total"),
        move("planner_scan_duration_seconds"),
        move("planner_schedules_scanned_total"),
        move("batches_ended_total"),
        move("batch_callbacks_total"),
        move("fires_total", decision="planned"),
        move("plan_lag_seconds"),
        move("claims_total", result="found"),
        move("claims_total", result="empty"),
        move("claim_duration_seconds"),
        move("tasks_dispatched_total"),
        move("dispatches_total", result="acknowledged"),
        move("dispatch_ack_seconds"),
        move("segments_owned"),
        move("segment_load", quantile="1"),
        move("leader"),
        move("elections_total"),
        move("server_lease_seconds"),
        move("heartbeats_total", who="server", result="ok"),
        move("heartbeats_total", who="agent", result="ok"),
        move("agents", status="active"),
        move("agent_slots", agent="tester"),
        move("agent_slots_used", agent="tester"),
        move("agent_armed", agent="tester"),
        move("agent_skew_seconds", agent="tester"),
        move("agent_round_trip_seconds", agent="tester"),
        move("agent_lead_seconds", agent="tester"),
        move("agent_last_heartbeat_seconds", agent="tester"),
        move("agent_connections_total", result="accepted"),
        move("store_seconds", statement="update task"),
        move("cluster_waiting_tasks", code="no_labels"),
        move("cluster_tasks_created_total"),
        move("cluster_tasks", state="pending"),
        move("cluster_tasks", state="running"),
        move("cluster_queue_tasks", job="nowhere"),
        move("cluster_queue_oldest_seconds", job="nowhere"),
        move("cluster_slots", state="busy"),
        move("cluster_slots", state="free"),
        move("cluster_wanted_slots"),
    ],
    stories.watched: [
        move("slo_events_total", schedule="watched", good="false"),
        move("pings_total", event="start", result="failed"),
        move("pings_total", event="heartbeat", result="failed"),
    ],
    stories.aging: [move("tasks_aged_total")],
    stories.maintenance: [
        move("maintenance_runs_total", chore="analyze"),
        move("maintenance_rows_total", chore="forget moves"),
        move("maintenance_failures_total", chore="forget keys"),
        move("maintenance_seconds_total", chore="analyze"),
    ],
    stories.dead_rows: [move("dead_rows", table="segment")],
    stories.crashes: [
        move("tasks_rescued_total", cause="lost"),
        move("tasks_rescued_total", cause="quarantined"),
        move("quarantined_total"),
        move("stale_reports_total"),
    ],
    stories.mute_agent: [
        move("dispatches_total", result="resent"),
        move("dispatches_total", result="refused"),
        move("dispatches_total", result="expired"),
        move("tasks_dispatched_total"),
    ],
    stories.strangers: [
        move("agent_connections_total", result="refused"),
        move("agent_connections_total", result="resumed"),
        move("agents_idle"),
    ],
    stories.lost_leases: [
        move("heartbeats_total", who="server", result="expired"),
        move("heartbeats_total", who="agent", result="expired"),
        move("agent_connections_total", result="expired"),
        move("segment_moves_total", reason="dead"),
        move("segment_moves_total", reason="released"),
        move("elections_total"),
    ],
    stories.store: [move("store_errors_total", code="22012")],
    stories.queues: [
        move("queue_full_total", job="small"),
        move("cluster_queue_full_total"),
        move("tasks_expired_total"),
        move("tasks_finished_total", job="job", state="cancelled"),
    ],
    stories.alerts: [move("alerts", rule="no-agents", state="firing")],
    stories.unowned: [move("cluster_segments_unowned")],
    stories.holds: [
        move("cluster_held", kind="job"),
        move("cluster_held", kind="all"),
        move("cluster_waiting_tasks", code="held"),
    ],
    stories.requests: [
        move("http_requests_total", operation="tasks.cancel", status="202"),
        move("http_request_seconds", operation="tasks.cancel", status="202"),
        move("http_streams"),
        move("auth_failures_total", reason="expired"),
    ],
    stories.loop: [move("loop_lag_seconds"), move("build_info")],
}


def test_there_is_a_story_for_every_metric() -> None:
    told = {one.metric for moves in MOVES.values() for one in moves}
    assert told == METRICS.keys()


@pytest.mark.parametrize("story", MOVES, ids=lambda story: story.__name__)
async def test_metrics_move_when_what_they_count_happens(
    story: Story, dsn: str, database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_metrics, "FRESH", 0.0)
    await story(Stage(dsn, database, conn), MOVES[story])


# ── names ───────────────────────────────────────────────────────────────────────────────────────

LABELS = {
    "job", "outcome", "state", "kind", "priority", "cause", "decision", "result", "reason", "quantile", "who", "status",
    "agent", "schedule", "good", "event", "statement", "code", "chore", "table", "operation", "version", "python",
    "rule",
}  # fmt: skip


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_a_name_says_its_kind_and_unit(metric: metrics.Metric) -> None:
    assert re.fullmatch(r"mainspring_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")
    assert set(metric.labels) <= LABELS
    assert metric.help.endswith(".")


def test_nothing_is_told_that_is_not_in_the_table() -> None:
    http = HttpTally()
    http.add("health", 200, 0.1)
    text = render([http.families, build])[1].decode()
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name for name in told if not name.startswith("process_")} <= {m.name for m in METRICS.values()}


# ── formats ─────────────────────────────────────────────────────────────────────────────────────


BOUNDS = ("0.1", "1.0", "+Inf")


def _samples() -> Iterator[Family]:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.1, 0.5, 7.0):
        histogram.add(seconds)
    yield Family(metrics.ATTEMPT_DURATION, [(('a "job"\\of\nmine',), histogram)])
    yield Family(metrics.ATTEMPTS_FINISHED, [(("ä", "failed"), 3), (("b", "lost"), 0)])
    yield Family(metrics.PLAN_LAG, [((), math.inf)])
    yield Family(metrics.AUTH_FAILURES, [])


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("", TEXT, parse_text),
        ("text/plain", TEXT, parse_text),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3",
            OPENMETRICS,
            parse_openmetrics,
        ),
    ],
    ids=["nothing asked", "text", "as Prometheus asks"],
)
def test_the_text_is_parsed_to_what_was_counted(
    accept: str, content_type: str, parse: Callable[[str], Iterator[Any]]
) -> None:
    given, text = render([_samples], accept)
    assert given == content_type
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }
    job = ("job", 'a "job"\\of\nmine')
    buckets = {bound: found["mainspring_attempt_duration_seconds_bucket", job, ("le", bound)] for bound in BOUNDS}
    assert buckets == {"0.1": 1, "1.0": 2, "+Inf": 3}
    assert found["mainspring_attempt_duration_seconds_count", job] == 3
    assert found["mainspring_attempt_duration_seconds_sum", job] == pytest.approx(7.6)
    assert found["mainspring_attempts_finished_total", ("job", "ä"), ("outcome", "failed")] == 3
    assert found["mainspring_plan_lag_seconds",] == math.inf
    assert found["process_start_time_seconds",] > 0


async def test_a_text_in_parts_is_the_same_text() -> None:
    sources = [_samples, build]

    def ours(text: bytes) -> list[str]:
        return [line for line in text.decode().splitlines() if "process_" not in line]

    assert ours((await render_in_parts(sources))[1]) == ours(render(sources)[1])


def test_a_metric_is_told_once_though_two_sources_have_it() -> None:
    text = render([_samples, _samples, process])[1].decode()
    assert text.count("# TYPE mainspring_plan_lag_seconds") == 1
    assert text.count("# TYPE process_open_fds") == 1
