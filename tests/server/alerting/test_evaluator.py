"""Evaluator, on a real database with a clock that the test sets: what is found is noted and told once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
from tests.alerting import Time, add_channel, add_rule, end_tasks, job_id, only_rule

from mainspring.errors import StoreUnavailable
from mainspring.model.alerts.findings import Finding, Found, Look
from mainspring.operations.alerting import kinds
from mainspring.server.alerting import evaluator as evaluator_module
from mainspring.server.alerting import notifier
from mainspring.server.alerting.evaluator import SUBJECTS, Evaluator, folded
from mainspring.server.cluster.clock import measure
from mainspring.store.alerts import mutes, rules
from mainspring.store.alerts.kinds import tasks
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import calendars
from mainspring.wire.clock import Clock

NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture
async def time(conn: Connection) -> Time:
    return Time(conn)


@pytest.fixture
def evaluator(database: Database) -> Evaluator:
    return Evaluator(database)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Subjects that a rule of kind unrunnable finds, with their messages."""
    found: dict[str, str] = {}

    async def find(conn: Connection, look: Look[Any]) -> Found:
        return Found(
            [Finding(subject=name, job="report", message=message, since=look.until) for name, message in found.items()]
        )

    monkeypatch.setitem(kinds.FIND, "unrunnable", find)
    return found


async def messages(conn: Connection) -> list[Any]:
    rows = await conn.fetch("select message::text from mainspring.alert_delivery order by created_at, id")
    return [msgspec.json.decode(row["message"]) for row in rows]


async def told(conn: Connection) -> list[tuple[str, str, int]]:
    """The alerts of all messages: subject, state, new events."""
    return [(a["subject"], a["state"], a["new"]) for message in await messages(conn) for a in message["alerts"]]


async def states(conn: Connection) -> dict[str, str]:
    return dict(await conn.fetch("select subject, state from mainspring.alert order by id"))


# ── conditions ──────────────────────────────────────────────────────────────────────────────────


async def test_a_condition_fires_after_its_time_and_both_ends_are_told_once(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable", **{"for": "1m"})
    await add_channel(conn, NOWHERE)
    wrong["job:report"] = "nobody can run it"
    await evaluator.step()
    assert await states(conn) == {"job:report": "pending"}
    for _ in range(7):
        await time.go(10)
        await evaluator.step()
    assert await states(conn) == {"job:report": "firing"}
    assert await told(conn) == [], "it waits for others"
    for _ in range(10):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 0)]
    wrong.clear()
    for _ in range(10):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 0), ("job:report", "resolved", 0)]
    assert await states(conn) == {"job:report": "resolved"}


async def test_a_condition_that_passes_before_its_time_is_not_kept(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable", **{"for": "1m"})
    wrong["job:report"] = "…"
    await evaluator.step()
    wrong.clear()
    await time.go(10)
    await evaluator.step()
    assert await states(conn) == {}


async def test_a_condition_begins_anew_after_a_time_without_a_leader(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable", **{"for": "1m"})
    wrong["job:report"] = "…"
    await evaluator.step()
    await time.go(3600)
    await evaluator.step()
    assert await states(conn) == {"job:report": "pending"}, "what was an hour ago says nothing about the minute"


async def test_what_flaps_is_one_alert_and_at_most_one_message_a_minute(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable")
    await add_channel(conn, NOWHERE)
    for number in range(60):  # ten minutes
        wrong.clear()
        if number % 2 == 0:
            wrong["job:report"] = "…"
        await evaluator.step()
        await time.go(10)
    assert await conn.fetchval("select count(*) from mainspring.alert") <= 11
    sent = [
        row["created_at"] for row in await conn.fetch("select created_at from mainspring.alert_delivery order by 1")
    ]
    assert 0 < len(sent) <= 10
    assert all(after - before >= notifier.EVERY for before, after in pairwise(sent))


async def test_a_rule_that_is_changed_is_not_moved_by_what_was_found_before(
    conn: Connection, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable")

    async def find(_: Connection, look: Look[Any]) -> Found:
        await add_rule(conn, "stuck", kind="unrunnable", enabled=False)
        return Found([Finding(subject="job:report", message="…", since=look.until)])

    monkeypatch.setitem(kinds.FIND, "unrunnable", find)
    await evaluator.step()
    assert await states(conn) == {}


async def test_it_is_told_again_while_it_lasts_if_the_rule_says_so(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable", repeat="10m")
    await add_channel(conn, NOWHERE)
    wrong["job:report"] = "…"
    for _ in range(25):
        await evaluator.step()
        await time.go(60)
    assert len(await told(conn)) == 3


async def test_an_agent_with_two_sessions_is_one_alert(conn: Connection, time: Time, evaluator: Evaluator) -> None:
    """For as long as a lease, one that was killed and started again has both."""
    await only_rule(conn, "clocks", kind="clock_skew", parameters={"limit": 5})
    for skew in (3600.0, -60.0):
        await conn.execute(
            """insert into mainspring.agent (name, slots, skew, lease_until)
               values ('eve', 1, $1, mainspring.now() + interval '1 hour')""",
            skew,
        )
    await evaluator.step()
    [(subject, message)] = await conn.fetch("select subject, message from mainspring.alert where rule = 'clocks'")
    assert subject == "agent:eve"
    assert message.startswith("the clock of agent eve is 60.0 s behind"), "that of its last session"


async def test_a_kind_that_finds_a_subject_twice_does_not_end_the_server(
    conn: Connection, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def twice(conn: Connection, look: Any) -> Found:
        return Found([Finding(subject="agent:eve", message=text, since=look.until) for text in ("one", "two")])

    monkeypatch.setitem(kinds.FIND, "clock_skew", twice)
    await only_rule(conn, "clocks", kind="clock_skew")
    await evaluator.step()
    assert await conn.fetchval("select message from mainspring.alert where rule = 'clocks'") == "two"


async def test_two_leaders_note_and_tell_once(conn: Connection, database: Database, time: Time) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_rule(conn, "no-agents", kind="no_agents")
    await add_channel(conn, NOWHERE)
    both = Evaluator(database), Evaluator(database)
    for one in both:
        await one.step()
    for _ in range(20):
        await end_tasks(conn, "report", 3)
        await time.go(10)
        await asyncio.gather(*(one.step() for one in both))
    await time.go(120)
    await asyncio.gather(*(one.step() for one in both))
    found = await told(conn)
    assert sum(new for subject, _, new in found if subject == "job:report") == 60
    assert [one for one in found if one[0] == "cluster"] == [("cluster", "firing", 0)]


# ── events ──────────────────────────────────────────────────────────────────────────────────────


async def test_ten_thousand_failures_in_a_minute_are_a_handful_of_messages(
    conn: Connection, time: Time, evaluator: Evaluator
) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await evaluator.step()
    for number in range(6):
        await end_tasks(conn, f"report{number % 3}", 1700 if number else 1500)
        await time.go(10)
        await evaluator.step()
    for _ in range(20):
        await time.go(10)
        await evaluator.step()
    sent = await messages(conn)
    assert len(sent) <= 3
    assert sum(new for _, _, new in await told(conn)) == 10_000, "each of them was told of, once"
    [first, *_] = sent[0]["alerts"]
    assert len(first["events"]) == 100
    assert first["events"][0]["error"] == "ValueError: no such day"
    assert max(len(msgspec.json.encode(message)) for message in sent) < 200_000


async def test_events_of_an_hour_without_a_leader_are_told_once(
    conn: Connection, database: Database, time: Time, evaluator: Evaluator
) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await evaluator.step()
    for _ in range(60):
        await end_tasks(conn, "report")
        await time.go(60)
    successor = Evaluator(database)
    for _ in range(12):
        await successor.step()
        await time.go(10)
    assert sum(new for _, _, new in await told(conn)) == 60
    [message] = await messages(conn)
    assert len({event["task"] for event in message["alerts"][0]["events"]}) == 60


async def test_events_that_were_noted_before_an_outage_are_told_after_it(
    conn: Connection, database: Database, time: Time, evaluator: Evaluator
) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await evaluator.step()
    await end_tasks(conn, "report")
    await time.go(10)
    await evaluator.step()
    assert await told(conn) == [], "it waits for others of the same half minute"
    await time.go(3600)
    successor = Evaluator(database)
    for _ in range(3):
        await successor.step()
        await time.go(10)
    assert await told(conn) == [("job:report", "firing", 1)]
    assert await states(conn) == {"job:report": "resolved"}


async def test_a_leader_that_dies_before_its_commit_has_told_nothing(
    conn: Connection, time: Time, evaluator: Evaluator, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await evaluator.step()
    await end_tasks(conn, "report", 7)
    await time.go(10)
    await evaluator.step()
    await time.go(40)

    async def die(*_: object) -> None:
        raise ZeroDivisionError("dead")

    with monkeypatch.context() as patched:
        patched.setattr(rules, "evaluated", die)  # after the messages were written
        with pytest.raises(ZeroDivisionError):
            await evaluator.step()
    assert await told(conn) == []
    await Evaluator(database).step()
    assert await told(conn) == [("job:report", "firing", 7)]


async def test_a_task_that_is_recorded_late_is_told_too(
    conn: Connection, database: Database, time: Time, evaluator: Evaluator
) -> None:
    """A row has the instant at which it was written, and is seen when its transaction commits."""
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await job_id(conn, "report")
    await evaluator.step()
    async with database.acquire() as slow, slow.transaction():
        await end_tasks(slow, "report")
        await slow.execute("select pg_sleep(1.2)")
        await evaluator.step()
    for _ in range(8):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 1)]


async def test_a_new_rule_tells_nothing_of_the_past(conn: Connection, time: Time, evaluator: Evaluator) -> None:
    await end_tasks(conn, "report", 5)
    await time.go(10)
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    for _ in range(8):
        await evaluator.step()
        await time.go(10)
    assert await told(conn) == []


async def test_events_are_found_after_the_clock_was_set_back(
    conn: Connection, time: Time, evaluator: Evaluator
) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await time.go(3600)
    await evaluator.step()
    await time.go(-3600)
    for _ in range(3):
        await time.go(10)
        await evaluator.step()
    await end_tasks(conn, "report", 2)
    for _ in range(8):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 2)]


@pytest.mark.parametrize("back", [4, 30])
@pytest.mark.parametrize("is_elected", [False, True])
async def test_what_is_recorded_while_the_clock_repeats_itself_is_found(
    conn: Connection, database: Database, time: Time, back: int, is_elected: bool
) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    clock = Clock()
    before = Evaluator(database, clock)
    for _ in range(8):
        await before.step()
        await time.go(10)
    await before.step()
    await time.go(-back)
    await measure(conn, clock)  # as each server does all the time
    await end_tasks(conn, "report", 2)
    evaluator = Evaluator(database, clock) if is_elected else before
    for _ in range(12):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 2)]


async def test_an_alert_of_events_closes_without_a_word(conn: Connection, time: Time, evaluator: Evaluator) -> None:
    await only_rule(conn, "failed", kind="failed")
    await add_channel(conn, NOWHERE)
    await evaluator.step()
    await end_tasks(conn, "report")
    for _ in range(80):
        await time.go(10)
        await evaluator.step()
    assert await states(conn) == {"job:report": "resolved"}
    assert await told(conn) == [("job:report", "firing", 1)]


# ── whom it is told ─────────────────────────────────────────────────────────────────────────────


async def test_what_fires_is_told_as_soon_as_there_is_a_channel(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable")
    wrong["job:report"] = "…"
    for _ in range(10):
        await evaluator.step()
        await time.go(10)
    await add_channel(conn, NOWHERE)
    await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 0)]


async def test_a_rule_tells_its_channels_only(conn: Connection, time: Time, evaluator: Evaluator) -> None:
    await only_rule(conn, "failed", kind="failed", channels=["team"])
    for name in ("ops", "team"):
        await add_channel(conn, NOWHERE, name)
    await evaluator.step()
    await end_tasks(conn, "report")
    for _ in range(5):
        await time.go(10)
        await evaluator.step()
    assert [row["channel"] for row in await conn.fetch("select channel from mainspring.alert_delivery")] == ["team"]


async def mute(conn: Connection, seconds: float, **which: list[str]) -> None:
    until = await conn.fetchval("select mainspring.now()") + timedelta(seconds=seconds)
    await mutes.add(conn, which.get("rules", []), which.get("subjects", []), until, "repairs", "os:test")


async def test_what_is_muted_is_told_when_the_mute_ends_and_it_still_fires(
    conn: Connection, time: Time, evaluator: Evaluator, wrong: dict[str, str]
) -> None:
    await only_rule(conn, "stuck", kind="unrunnable")
    await add_channel(conn, NOWHERE)
    await mute(conn, 300, rules=["stu*"], subjects=["job:re*"])
    wrong.update({"job:report": "…", "job:other": "…", "job:rest": "…"})
    for number in range(60):
        await evaluator.step()
        await time.go(10)
        if number == 10:
            del wrong["job:rest"]
    assert await told(conn) == [("job:other", "firing", 0), ("job:report", "firing", 0)], "the rest was over by then"
    first, second = await conn.fetch("select created_at from mainspring.alert_delivery order by 1")
    assert second["created_at"] - first["created_at"] > timedelta(seconds=200)


async def test_events_of_a_mute_or_a_quiet_day_are_not_told(conn: Connection, time: Time, evaluator: Evaluator) -> None:
    await only_rule(conn, "failed", kind="failed")
    now = await conn.fetchval("select mainspring.now()")  # it may be shortly before midnight
    await calendars.put(conn, "holidays", [f"{day:%Y-%m-%d}" for day in (now, now + timedelta(days=1))])
    await add_rule(conn, "quiet", kind="failed", calendar="holidays")
    await add_channel(conn, NOWHERE)
    await mute(conn, 100, rules=["failed"])
    await evaluator.step()
    await end_tasks(conn, "report", 5)
    for _ in range(20):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == []
    await end_tasks(conn, "report", 2)
    for _ in range(10):
        await time.go(10)
        await evaluator.step()
    assert await told(conn) == [("job:report", "firing", 2)]
    assert [message["rule"] for message in await messages(conn)] == ["failed"]


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_rule_that_takes_too_long_fails_alone_and_says_so(
    conn: Connection, time: Time, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(conn: Connection, look: Look[Any]) -> Found:
        await conn.fetch("select pg_sleep(30)")
        return Found([])

    monkeypatch.setattr(evaluator_module, "WITHIN", 0.05)
    monkeypatch.setitem(kinds.FIND, "late", slow)
    await only_rule(conn, "a", kind="late")
    await add_rule(conn, "b", kind="no_agents")
    await evaluator.step()
    assert await states(conn) == {"cluster": "firing"}
    assert "takes longer" in await conn.fetchval("select problem from mainspring.alert_rule where name = 'a'")
    monkeypatch.setitem(kinds.FIND, "late", tasks.late)
    await time.go(60)
    await evaluator.step()
    assert await conn.fetchval("select problem from mainspring.alert_rule where name = 'a'") is None


async def test_parameters_that_make_no_sense_fail_their_rule_alone(conn: Connection, evaluator: Evaluator) -> None:
    await only_rule(conn, "a", kind="late")
    await add_rule(conn, "b", kind="no_agents")
    await conn.execute("""update mainspring.alert_rule set parameters = '{"after": "soon"}' where name = 'a'""")
    await evaluator.step()
    assert await states(conn) == {"cluster": "firing"}
    assert "after" in await conn.fetchval("select problem from mainspring.alert_rule where name = 'a'")


@pytest.mark.parametrize("when", ["in the middle of a look", "before the commit"])
async def test_a_connection_that_is_cut_fails_the_pass_and_no_rule(
    conn: Connection,
    dsn: str,
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    async def cut(looking: Connection, look: Look[Any]) -> Found:
        if when == "in the middle of a look":  # as the driver raises it if the rollback still finds an open socket
            raise asyncpg.exceptions.AdminShutdownError("terminating connection due to administrator command")
        pid = await looking.fetchval("select pg_backend_pid()")
        # It blocks the event loop, so the driver learns of it with its next statement.
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 20000)", (pid,))
        return Found([])

    monkeypatch.setitem(kinds.FIND, "late", cut)
    await only_rule(conn, "a", kind="late")
    with pytest.raises(StoreUnavailable):
        await evaluator.step()
    assert "cannot be evaluated" not in caplog.text
    assert await conn.fetchval("select problem from mainspring.alert_rule where name = 'a'") is None
    monkeypatch.setitem(kinds.FIND, "late", tasks.late)
    assert await evaluator.step() == 0, "the next pass has a new connection"


async def test_an_idle_pass_writes_nothing(conn: Connection, time: Time, evaluator: Evaluator) -> None:
    await conn.execute("delete from mainspring.alert_rule where kind = 'no_agents'")
    await evaluator.step()
    before = await written(conn)
    for _ in range(3):
        await time.go(1)
        await evaluator.step()
    assert await written(conn) == before


async def written(conn: Connection) -> dict[str, tuple[int, int]]:
    """How many rows each table of the scheduler has, and the transaction that wrote the last of them."""
    tables = await conn.fetch("""
        select relname from pg_class
         where relnamespace = 'mainspring'::regnamespace and relkind = 'r' and relname not like 'clock%'
    """)
    found = {}
    for (name,) in tables:
        row = await conn.fetchrow(f"select count(*), max(xmin::text::bigint) from mainspring.{name}")
        found[name] = (row[0], row[1] or 0)
    return found


def test_what_is_found_of_very_many__together(time: Time) -> None:
    at = datetime(2026, 11, 15, tzinfo=UTC)
    found = [Finding(subject=f"job:{n}", message="…", since=at, count=2) for n in range(SUBJECTS + 10)]
    kept = folded(found)
    assert len(kept) == SUBJECTS
    assert sum(finding.count for finding in kept) == 2 * (SUBJECTS + 10)
