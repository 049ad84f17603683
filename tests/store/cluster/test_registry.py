"""Roster: who is there, who takes nothing new, what waits; and the settings of the whole."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cluster import OWNER, add_server, lead, own

from mainspring.errors import NotFound
from mainspring.model.messages import Ending
from mainspring.model.settings import DEFAULTS, SETTINGS
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Placement, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.cluster import registry, settings
from mainspring.store.limits import waits
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, jobs, transitions

MakeTask = Callable[..., Awaitable[int]]


async def connect(conn: Connection, name: str, *, lease: str = "1 min", slots: int = 10, **facts: Any) -> int:
    labels = {key: value for key, value in facts.items() if isinstance(value, str)}
    offers = {key: value for key, value in facts.items() if not isinstance(value, str)}
    session: int = await conn.fetchval(
        """insert into mainspring.agent (name, slots, labels, offers, lease_until)
           values ($1, $2, $3, $4, mainspring.now() + $5::text::interval) returning session""",
        name,
        slots,
        json.dumps(labels),
        json.dumps(offers),
        lease,
    )
    return session


async def serve_all(conn: Connection) -> None:
    """The owner of all segments lives."""
    lease = "mainspring.now() + interval '1 min'"
    await conn.execute(f"update mainspring.server set status = 'active', lease_until = {lease} where id = $1", OWNER)


async def claim(conn: Connection, session: int, job: str, count: int) -> None:
    pool = await conn.fetchval("select pool from mainspring.job where name = $1", job)
    assert (await claims.claim(conn, OWNER, pool, [session], count, [BOTTOM] * 10, ahead=0.0)).size == count


async def enqueue(conn: Connection, job: str, count: int = 1, *, delay: str = "0") -> list[int]:
    ids: list[int] = await conn.fetchval(
        "select mainspring.enqueue_many($1, array_fill('{}'::jsonb, array[$2::int]), delay => $3::text::interval)",
        job,
        count,
        delay,
    )
    return ids


# ── who is there ────────────────────────────────────────────────────────────────────────────────


async def test_agents_with_a_lease_are_there(conn: Connection) -> None:
    session = await connect(conn, "alpha", zone="b", gpu=2)
    await connect(conn, "over", lease="-1 s")
    replaced = await connect(conn, "beta")
    await conn.execute("update mainspring.agent set successor = $1 where session = $2", session, replaced)
    [known] = await registry.living(conn)
    assert (known.session, known.name, known.slots) == (session, "alpha", 10)
    assert (known.labels, known.offers, known.draining) == ({"zone": "b"}, {"gpu": 2.0}, False)


async def test_what_agents_hold_counts_with_its_amounts(conn: Connection) -> None:
    await jobs.register(
        conn,
        {"job": Definition(Python("job")), "train": Definition(Python("x"), placement=Placement(needs={"gpu": 2.0}))},
    )
    alpha, beta = await connect(conn, "alpha", gpu=8), await connect(conn, "beta")
    await enqueue(conn, "job", 3)
    await enqueue(conn, "train", 2)
    await claim(conn, alpha, "job", 3)
    await claim(conn, alpha, "train", 2)
    await conn.execute("insert into mainspring.claim select session, batch + 1000, tasks from mainspring.claim")
    await conn.execute("update mainspring.task set state = 3 where id = (select min(id) from mainspring.task)")
    first, second = await registry.loaded(conn)
    assert (first.session, first.due, first.used) == (alpha, 5, {"gpu": 4.0}), "noted twice, counted once"
    assert (second.session, second.due, second.used) == (beta, 0, {})
    view = (await registry.listing(conn))[0]
    assert (view.holds, view.running, view.used) == (5, 1, {"gpu": 4.0})


async def test_the_listing_shows_who_lives_and_who_was_lost_within_the_hour(conn: Connection) -> None:
    await connect(conn, "alpha", lease="-10 min")
    await connect(conn, "alpha")
    await connect(conn, "beta", lease="-10 min")
    await connect(conn, "beta", lease="-5 min")
    await connect(conn, "gamma")
    await connect(conn, "long ago", lease="-2 h")
    await registry.drain(conn, "gamma")
    views = await registry.listing(conn)
    assert [(view.name, view.status) for view in views] == [
        ("alpha", "active"),
        ("beta", "lost"),
        ("gamma", "draining"),
    ]
    assert views[1].session == max(
        row["session"] for row in await conn.fetch("select session from mainspring.agent where name = 'beta'")
    )
    [old] = await registry.listing(conn, "long ago")
    assert old.status == "lost"
    with pytest.raises(NotFound, match="no agent named 'nobody'"):
        await registry.listing(conn, "nobody")


@pytest.mark.parametrize(
    "gone",
    [
        "update mainspring.agent set disconnected_at = mainspring.now()",
        "update mainspring.server set lease_until = mainspring.now()",
        "update mainspring.server set status = 'stopped'",
        "update mainspring.agent set heard_at = mainspring.now() - interval '5 min'",
    ],
)
async def test_an_agent_without_a_connection_says_so_while_its_lease_runs(conn: Connection, gone: str) -> None:
    session, server = await connect(conn, "alpha"), await add_server(conn, "east")
    await conn.execute("update mainspring.agent set server = $1, heard_at = mainspring.now()", server)
    await registry.drain(conn, "alpha")
    assert [view.status for view in await registry.listing(conn)] == ["draining"]
    await conn.execute(gone)
    assert [view.status for view in await registry.listing(conn)] == ["disconnected"]
    assert await registry.loaded(conn) == [], "it takes no task"
    assert [known.session for known in await registry.living(conn)] == [session], "its lease runs"
    await conn.execute("update mainspring.agent set lease_until = mainspring.now()")
    assert [view.status for view in await registry.listing(conn)] == ["lost"]


# ── draining ────────────────────────────────────────────────────────────────────────────────────


async def test_draining_is_kept_by_name_until_it_is_undone(conn: Connection) -> None:
    await connect(conn, "alpha")
    assert await registry.drain(conn, "alpha") is True
    assert await registry.drain(conn, "alpha") is False
    await conn.execute("update mainspring.agent set ended_at = mainspring.now()")
    await connect(conn, "alpha")
    assert [known.draining for known in await registry.living(conn)] == [True], "also when it comes again"
    assert await registry.drained(conn) == {"alpha"}
    assert await registry.undrain(conn, "alpha") is True
    assert await registry.undrain(conn, "alpha") is False
    assert await registry.drained(conn) == frozenset()


async def test_only_who_has_been_here_can_be_drained(conn: Connection) -> None:
    for act in (registry.drain, registry.undrain):
        with pytest.raises(NotFound):
            await act(conn, "nobody")


async def test_servers_are_told_of_a_drain_and_of_a_strategy(dsn: str, conn: Connection, eventually: Any) -> None:
    heard: list[object] = []
    listening = await Database(dsn).connect()
    await listening.add_listener("mainspring", lambda _conn, _pid, _channel, payload: heard.append(payload))
    await connect(conn, "alpha")
    await registry.drain(conn, "alpha")
    await registry.drain(conn, "alpha")
    await registry.undrain(conn, "alpha")
    await settings.put(conn, "placement", "resources")

    async def all_heard() -> bool:
        return heard == ["agent", "agent", "job"]

    await eventually(all_heard)
    await listening.close()


# ── what waits ──────────────────────────────────────────────────────────────────────────────────


async def test_due_tasks_say_what_they_wait_for(conn: Connection) -> None:
    await serve_all(conn)
    await jobs.register(
        conn, {"job": Definition(Python("job")), "train": Definition(Python("x"), requires={"gpu": "a100"})}
    )
    alpha = await connect(conn, "alpha", slots=2)
    [able] = await enqueue(conn, "job")
    [unable] = await enqueue(conn, "train")
    [later] = await enqueue(conn, "train", delay="1 h")
    found = await waits.waits(conn, [able, unable, later])
    assert {id: wait.code for id, wait in found.items()} == {unable: "no_labels"}
    await enqueue(conn, "job", 2)
    await claim(conn, alpha, "job", 2)
    [last] = await enqueue(conn, "job")
    assert (await waits.waits(conn, [last]))[last].code == "all_busy"


async def test_a_due_task_without_a_server_for_its_segment_says_so(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await connect(conn, "alpha")
    [task] = await enqueue(conn, "job")
    east, west = await add_server(conn, "east"), await add_server(conn, "west", lease="-1 s")
    await lead(conn, east)
    await own(conn, west, [task % 100])
    wait = (await waits.waits(conn, [task]))[task]
    problem = "the owner, west, is silent, and the leader, east, has assigned no other yet"
    assert (wait.code, wait.what) == ("no_owner", f"no server serves segment {task % 100}: {problem}")
    await own(conn, east, [task % 100])
    assert await waits.waits(conn, [task]) == {}


async def test_a_failed_task_says_when_and_why_it_runs_again(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"), retry=Retry(retries=2))})
    [task] = await enqueue(conn, "job")
    await conn.execute("update mainspring.task set state = 3, token = 5, session = 1, attempt = 1 where id = $1", task)
    failed = Ending(task, 5, 1, 1, TaskState.FAILED, 1.0, 2.0, code="exit_code", error="exit code 3\n\nmore of it")
    await transitions.retry(conn, [Again(failed, 8.0, costs=True)])
    wait = (await waits.waits(conn, [task]))[task]
    assert (wait.code, wait.is_unrunnable) == ("retry", False)
    assert re.fullmatch(r"retry in [78]\.\d s, attempt 2 of 3, after: exit code 3", wait.what)
    await conn.execute("update mainspring.task set state = 2, attempt = attempt + 1 where id = $1", task)  # armed ahead
    assert "attempt 2 of 3" in (await waits.waits(conn, [task]))[task].what
    await settings.put(conn, "default_retries", 5, by="ops")
    assert "attempt 2 of 3" in (await waits.waits(conn, [task]))[task].what, "the job names its retries"
    by_default = Definition(Python("job"), retry=Retry(retries=2), retries_by_default=True)
    await jobs.register(conn, {"job": by_default})
    assert "attempt 2 of 6" in (await waits.waits(conn, [task]))[task].what
    await conn.execute("update mainspring.task set state = 1, attempt = attempt - 1 where id = $1", task)
    await conn.execute("update mainspring.task set run_at = mainspring.now() where id = $1", task)
    assert (await waits.waits(conn, [task]))[task].code == "no_agents"


async def test_what_is_armed_ahead_does_not_make_an_agent_busy(conn: Connection) -> None:
    await serve_all(conn)
    await jobs.register(conn, {"job": Definition(Python("job"))})
    alpha = await connect(conn, "alpha", slots=1)
    await enqueue(conn, "job", 5, delay="1 h")
    pool = await conn.fetchval("select pool from mainspring.job")
    assert (await claims.claim(conn, OWNER, pool, [alpha], 5, [BOTTOM] * 10, ahead=7200.0)).size == 5
    [task] = await enqueue(conn, "job")
    assert await waits.waits(conn, [task]) == {}


async def test_pools_with_waiting_tasks_are_counted(conn: Connection) -> None:
    await jobs.register(
        conn,
        {
            "a": Definition(Python("a"), requires={"gpu": "a100"}),
            "b": Definition(Python("b"), requires={"gpu": "a100"}),
            "c": Definition(Python("c")),
        },
    )
    await enqueue(conn, "a", 2)
    await enqueue(conn, "b", 1)
    await enqueue(conn, "c", 1, delay="1 h")
    [waiting] = await waits.waiting_pools(conn)
    assert (waiting.tasks, waiting.jobs, waiting.requirements.labels) == (3, ["a", "b"], {"gpu": "a100"})
    assert await waits.waiting_pools(conn, [waiting.pool]) == [waiting]
    assert await waits.waiting_pools(conn, [waiting.pool + 100]) == []


# ── settings, pools ─────────────────────────────────────────────────────────────────────────────


async def test_the_strategy_of_the_whole_is_kept(conn: Connection) -> None:
    assert (await settings.load(conn)).placement is None
    for name in ("capability", "resources"):
        await settings.put(conn, "placement", name)
        assert (await settings.load(conn)).placement == name


@pytest.mark.parametrize("odd", ['"of a later version"', "[1]", "null"])
async def test_a_value_that_this_version_cannot_read_counts_as_none(conn: Connection, odd: str) -> None:
    for name in (*SETTINGS, "of_a_later_version"):
        await conn.execute("insert into mainspring.setting (name, value) values ($1, $2)", name, odd)
    assert await settings.load(conn) == DEFAULTS


async def test_a_pool_is_labels_and_placement_together(conn: Connection) -> None:
    await conn.execute("""insert into mainspring.pool (requirements) values ('{"zone": "b"}')""")  # by an older version
    needs = Placement(needs={"gpu": 1.0})
    await jobs.register(
        conn,
        {
            "plain": Definition(Python("x"), requires={"zone": "b"}),
            "needs": Definition(Python("x"), requires={"zone": "b"}, placement=needs),
            "same": Definition(Python("y"), requires={"zone": "b"}, placement=needs),
            "sticky": Definition(Python("x"), requires={"zone": "b"}, placement=Placement(sticky="customer")),
        },
    )
    pools = {job.name: job.pool for job in (await jobs.load(conn))[0]}
    assert pools["needs"] == pools["same"]
    assert len(set(pools.values())) == 3 == await conn.fetchval("select count(*) from mainspring.pool")
    known = await jobs.pools(conn)
    assert known[pools["plain"]].labels == known[pools["needs"]].labels == {"zone": "b"}
    assert known[pools["needs"]].placement == needs
