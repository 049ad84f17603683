"""What each kind of alert rule finds, on a real database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.alerting import end_tasks, job_id
from tests.cluster import add_server

from mainspring.model.alerts.findings import Finding, Look
from mainspring.model.alerts.rules import read_parameters
from mainspring.model.figures.buckets import LATENESS
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.globs import like
from mainspring.operations.alerting.kinds import FIND
from mainspring.store.postgres.database import Connection

MINUTE = timedelta(minutes=1)


async def now(conn: Connection) -> datetime:
    at: datetime = await conn.fetchval("select mainspring.now()")
    return at


async def find(
    conn: Connection,
    kind: str,
    *,
    names: Sequence[str] = (),
    since: timedelta = MINUTE,
    open: Sequence[str] = (),
    at: datetime | None = None,
    **parameters: Any,
) -> dict[str, Finding]:
    """By subject."""
    until = at or await now(conn) + timedelta(milliseconds=1)
    look = Look(like(names, field="names"), read_parameters(kind, parameters), until - since, until, open)
    found = await FIND[kind](conn, look)
    return {finding.subject: finding for finding in found.findings}


async def count(
    conn: Connection, job: str, minute: datetime, outcome: TaskState, number: int = 1, late: float = 0.0
) -> None:
    """A row of the figures."""
    histogram = [0] * (len(LATENESS) + 1)
    histogram[sum(bound < late for bound in LATENESS)] = number
    await conn.execute(
        """insert into mainspring.figure (minute, writer, job_id, count, outcome, again, planned, planned_max)
           values (date_trunc('minute', $1::timestamptz, 'UTC'), $2, $3, $4, $5, false, $6, $7)""",
        minute, uuid4(), await job_id(conn, job), number, int(outcome), histogram, late,
    )  # fmt: skip


# ── failed, expired ─────────────────────────────────────────────────────────────────────────────


async def test_failed_finds_what_ended_badly_within_the_look_by_job(conn: Connection) -> None:
    await end_tasks(conn, "report", 3)
    await end_tasks(conn, "report", 1, state=TaskState.TIMED_OUT, code="timeout", error=None)
    await end_tasks(conn, "mail", 1, state=TaskState.LOST, code="lost")
    await end_tasks(conn, "raised", 1, error="OSError: no room\n\nTraceback (most recent call last):\n  File x")
    await end_tasks(conn, "fine", 5, state=TaskState.SUCCEEDED)
    await end_tasks(conn, "skipped", 1, state=TaskState.SKIPPED, code="expired")
    found = await find(conn, "failed")
    assert {subject: finding.count for subject, finding in found.items()} == {
        "job:report": 4, "job:mail": 1, "job:raised": 1,
    }  # fmt: skip
    assert found["job:raised"].message.endswith("OSError: no room)")
    assert found["job:report"].events[-1]["state"] == "timed_out"
    assert "lost" in found["job:mail"].message
    assert found["job:mail"].job == "mail"
    assert list(await find(conn, "failed", names=["m*l"])) == ["job:mail"]
    assert await find(conn, "failed", at=await now(conn) - MINUTE) == {}


async def test_expired_finds_what_did_not_start_in_time(conn: Connection) -> None:
    before = await now(conn)
    await end_tasks(conn, "report", 2, state=TaskState.SKIPPED, code="expired", error=None)
    await end_tasks(conn, "other", 1, state=TaskState.SKIPPED, code="overlap")
    later = before + timedelta(seconds=30)
    assert await find(conn, "expired", at=later) == {}, "the figures have none: the history is not read"
    await conn.execute(
        "insert into mainspring.figure_note (job_id, count, outcome) values (1, 2, $1)", int(TaskState.SKIPPED)
    )
    assert {name: one.count for name, one in (await find(conn, "expired", at=later)).items()} == {"job:report": 2}


# ── failing ─────────────────────────────────────────────────────────────────────────────────────


async def test_failing_counts_failures_since_the_last_success(conn: Connection) -> None:
    at = await now(conn) - 2 * MINUTE
    await count(conn, "report", at - 3 * MINUTE, TaskState.SUCCEEDED, 5)
    await count(conn, "report", at - 2 * MINUTE, TaskState.FAILED, 1)
    await count(conn, "report", at, TaskState.TIMED_OUT, 2)
    await count(conn, "fine", at - MINUTE, TaskState.FAILED, 9)
    await count(conn, "fine", at, TaskState.SUCCEEDED, 1)
    found = await find(conn, "failing", since=10 * MINUTE)
    assert {name: one.details["failures"] for name, one in found.items()} == {"job:report": 3}
    assert await find(conn, "failing", since=10 * MINUTE, count=4) == {}


async def test_a_job_goes_on_failing_without_runs_until_it_succeeds(conn: Connection) -> None:
    at = await now(conn)
    await count(conn, "nightly", at - 600 * MINUTE, TaskState.FAILED, 3)
    assert await find(conn, "failing") == {}, "nothing has happened since the last look"
    assert list(await find(conn, "failing", open=["job:nightly"])) == ["job:nightly"]
    await count(conn, "nightly", at, TaskState.SUCCEEDED)
    assert await find(conn, "failing", open=["job:nightly"]) == {}


async def test_failures_of_days_ago_count_by_the_hour(conn: Connection) -> None:
    at = await now(conn)
    await count(conn, "weekly", at, TaskState.FAILED, 1)
    id = await job_id(conn, "weekly")
    for days, outcome, number in ((14, TaskState.SUCCEEDED, 1), (7, TaskState.FAILED, 2)):
        await conn.execute(
            """insert into mainspring.figure_hour (hour, duration_sum, planned_sum, due_sum, job_id, count,
                      duration_max, planned_max, due_max, outcome, again)
               values (date_trunc('hour', $1::timestamptz, 'UTC'), 0, 0, 0, $2, $3, 0, 0, 0, $4, false)""",
            at - timedelta(days=days), id, number, int(outcome),
        )  # fmt: skip
    found = await find(conn, "failing")
    assert found["job:weekly"].details == {"failures": 3}


async def test_within_the_minute_of_a_success_the_history_decides(conn: Connection) -> None:
    """First one failure, then a success, then two failures."""
    at = await now(conn)
    await end_tasks(conn, "report")
    await end_tasks(conn, "report", state=TaskState.SUCCEEDED)
    await end_tasks(conn, "report", 2)
    await count(conn, "report", at, TaskState.FAILED, 3)
    await count(conn, "report", at, TaskState.SUCCEEDED, 1)
    assert await find(conn, "failing", count=3) == {}
    assert (await find(conn, "failing", count=2))["job:report"].details == {"failures": 2}


# ── late, too long ──────────────────────────────────────────────────────────────────────────────


async def test_late_counts_starts_by_the_buckets_of_the_figures(conn: Connection) -> None:
    at = await now(conn)
    await count(conn, "report", at, TaskState.SUCCEEDED, 3, late=45.0)
    await count(conn, "slow", at - 2 * MINUTE, TaskState.SUCCEEDED, 2, late=1000.0)
    await count(conn, "old", at - 30 * MINUTE, TaskState.SUCCEEDED, 2, late=1000.0)
    assert {n: f.details["late"] for n, f in (await find(conn, "late", after="30s")).items()} == {
        "job:report": 3,
        "job:slow": 2,
    }
    assert list(await find(conn, "late", after="60s")) == ["job:slow"]
    assert list(await find(conn, "late", after="600s")) == ["job:slow"]
    assert await find(conn, "late", after="1100s") == {}
    assert await find(conn, "late", after="60s", count=3) == {}


async def test_too_long_finds_running_tasks_and_their_jobs(conn: Connection, make_task: Any) -> None:
    started = await now(conn) - 30 * MINUTE
    task = await make_task(TaskState.RUNNING, started_at=started)
    paused = await make_task(TaskState.RUNNING, started_at=started, paused_for=timedelta(minutes=25))
    await conn.execute("insert into mainspring.claim (session, batch, tasks) values (1, 1, $1)", [task, paused])
    found = await find(conn, "too_long", after="10m")
    assert found["job:job"].details == {"tasks": [task]}
    assert await find(conn, "too_long", after="1h") == {}


# ── queues ──────────────────────────────────────────────────────────────────────────────────────


async def queue(conn: Connection, job: str, tasks: int, age: timedelta, *, due: int | None = None) -> None:
    await conn.execute(
        """insert into mainspring.queue_count (counted_at, created, seconds, is_estimated)
           values (mainspring.now(), 0, 0, false)
           on conflict (the_one) do update set counted_at = excluded.counted_at"""
    )
    await conn.execute(
        "insert into mainspring.queue_figure (job_id, state, tasks, due, oldest) values ($1, 1, $2, $3, $4)",
        await job_id(conn, job), tasks, tasks if due is None else due, await now(conn) - age,
    )  # fmt: skip


async def test_queue_age_finds_jobs_whose_oldest_task_waits_too_long(conn: Connection) -> None:
    await queue(conn, "old", 7, timedelta(minutes=10))
    await queue(conn, "new", 7, timedelta(seconds=10))
    await queue(conn, "future", 7, timedelta(minutes=10), due=0)
    found = await find(conn, "queue_age", after="5m")
    assert list(found) == ["job:old"]
    assert re.search(r"\b60\d s", found["job:old"].message), "600, and what the test has taken itself"
    await conn.execute("update mainspring.queue_count set counted_at = counted_at - interval '10 minutes'")
    assert await find(conn, "queue_age", after="5m") == {}, "an old count says nothing about now"


async def test_queue_full_finds_jobs_at_their_bound_and_all_together(conn: Connection) -> None:
    for job, bound in (("full", 7), ("roomy", 100), ("free", None)):
        await queue(conn, job, 7, timedelta(seconds=1))
        if bound is not None:
            await conn.execute(
                "update mainspring.job set definition = definition || jsonb_build_object('max_queued', $2::integer)"
                " where name = $1",
                job,
                bound,
            )
    found = await find(conn, "queue_full")
    assert {name: one.details for name, one in found.items()} == {"job:full": {"waiting": 7, "limit": 7}}
    assert found["job:full"].message.endswith("refused; start more agents, or raise max_queued")
    assert await find(conn, "queue_full", names=["r*"]) == {}
    await conn.execute(
        "insert into mainspring.hold (job_id, held_at, held_by, skips)"
        " select id, now(), 'alice', false from mainspring.job where name = 'full'"
    )
    assert "because of a hold: `mainspring hold --list`" in (await find(conn, "queue_full"))["job:full"].message
    await conn.execute("insert into mainspring.setting (name, value) values ('max_queued', '20')")
    assert (await find(conn, "queue_full"))["cluster"].details == {"waiting": 21, "limit": 20}


async def test_unrunnable_finds_jobs_that_no_agent_can_run(conn: Connection, make_task: Any) -> None:
    await make_task(run_at=await now(conn) - MINUTE)
    assert await find(conn, "unrunnable") == {}, "without agents it is no_agents"
    await conn.execute("""insert into mainspring.agent (name, slots, lease_until, labels)
                          values ('web-1', 4, mainspring.now() + interval '1 minute', '{}')""")
    assert await find(conn, "unrunnable") == {}
    await conn.execute("""update mainspring.pool set requirements = requirements || '{"gpu": "yes"}'""")
    found = await find(conn, "unrunnable")
    assert found["job:job"].details == {"code": "no_labels"}
    assert await find(conn, "unrunnable", names=["other*"]) == {}


# ── fleet ───────────────────────────────────────────────────────────────────────────────────────


async def add_agent(conn: Connection, name: str, lease: str, **columns: Any) -> int:
    names = ["name", *columns]
    values = ", ".join(f"${number}" for number in range(2, len(names) + 2))
    session: int = await conn.fetchval(
        f"""insert into mainspring.agent (lease_until, slots, {", ".join(names)})
            values (mainspring.now() + $1::text::interval, 4, {values}) returning session""",
        lease, name, *columns.values(),
    )  # fmt: skip
    return session


async def test_no_agents_is_found_without_agents(conn: Connection) -> None:
    assert list(await find(conn, "no_agents")) == ["cluster"]
    await add_agent(conn, "web-1", "1 minute")
    assert await find(conn, "no_agents") == {}


async def test_agent_lost_finds_those_whose_lease_ran_out_and_that_are_not_back(conn: Connection) -> None:
    at = await now(conn)
    await add_agent(conn, "lost", "-5 minutes")
    await add_agent(conn, "noticed", "-5 minutes", ended_at=at)
    await add_agent(conn, "stopped", "-5 minutes", ended_at=at - 6 * MINUTE)
    await add_agent(conn, "back", "-5 minutes")
    await add_agent(conn, "back", "1 minute")
    await add_agent(conn, "long-ago", "-5 hours")
    assert list(await find(conn, "agent_lost")) == ["agent:lost", "agent:noticed"]


async def test_clock_skew_finds_agents_with_wrong_clocks(conn: Connection) -> None:
    await add_agent(conn, "right", "1 minute", skew=0.01)
    await add_agent(conn, "wrong", "1 minute", skew=-30.0)
    await add_agent(conn, "gone", "-1 minute", skew=30.0)
    found = await find(conn, "clock_skew", limit=2)
    assert list(found) == ["agent:wrong"]
    assert "30.0 s behind" in found["agent:wrong"].message


async def test_server_dead_finds_those_that_no_successor_replaces(conn: Connection) -> None:
    at = await now(conn)
    await add_server(conn, "dead", status="dead", ended_at=at)
    await add_server(conn, "back", status="dead", ended_at=at)
    await add_server(conn, "back")
    await add_server(conn, "stopped", status="stopped", ended_at=at)
    await add_server(conn, "long-ago", status="dead", ended_at=at - timedelta(hours=3))
    assert list(await find(conn, "server_dead")) == ["server:dead"]


async def add_schedule(conn: Connection, name: str, kind: str = "cron", expression: str = "@daily", **more: Any) -> int:
    names = ["name", "kind", "expression", *more]
    values = ", ".join(f"${number}" for number in range(2, len(names) + 2))
    id: int = await conn.fetchval(
        f"insert into mainspring.schedule (job_id, segment, {', '.join(names)}) values ($1, 0, {values}) returning id",
        await job_id(conn, "job"), name, kind, expression, *more.values(),
    )  # fmt: skip
    return id


async def test_schedule_problem_finds_what_cannot_be_planned(conn: Connection) -> None:
    await add_schedule(conn, "fine")
    await add_schedule(conn, "broken", problem="no such timezone")
    found = await find(conn, "schedule_problem")
    assert list(found) == ["schedule:broken"]
    assert (found["schedule:broken"].job, "no such timezone" in found["schedule:broken"].message) == ("job", True)


@pytest.mark.parametrize(
    ("state", "healthy", "is_down"), [(TaskState.RUNNING, None, False), (TaskState.PENDING, None, True)]
)
async def test_daemon_down_finds_daemons_with_too_few_replicas(
    conn: Connection, make_task: Any, state: TaskState, healthy: bool | None, is_down: bool
) -> None:
    id = await add_schedule(conn, "mail", "daemon", "1", enabled=True)
    await add_schedule(conn, "off", "daemon", "1", enabled=False)
    await make_task(state, schedule_id=id, origin="daemon", scope="1", pool=0, healthy=healthy)
    assert list(await find(conn, "daemon_down")) == ["daemon:mail"] * is_down
