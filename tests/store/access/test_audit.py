"""Audit: what changed, masked and bounded; found by any filter in a bounded number of rows; never rewritten."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from mainspring.model.access.actors import Actor, Role
from mainspring.store.access import audit
from mainspring.store.access.audit import Difference, differences
from mainspring.store.postgres.database import Connection

ALICE = Actor("token:alice", Role.OPERATOR, ("report*",), "10.0.0.7", "r-1", token=3)
DAY = timedelta(days=1)


async def entries(conn: Connection, **filters: Any) -> list[audit.Entry]:
    return (await audit.search(conn, **filters)).entries


async def test_an_entry_says_who_did_what_to_what_from_where(conn: Connection) -> None:
    await audit.record(conn, ALICE, "task.cancel", "task:17", {"kill": True})
    [entry] = await entries(conn)
    assert (entry.actor, entry.role, entry.token) == ("token:alice", "operator", 3)
    assert (entry.action, entry.subject, entry.detail) == ("task.cancel", "task:17", {"kill": True})
    assert (entry.address, entry.request_id, entry.refused, entry.changes) == ("10.0.0.7", "r-1", None, None)
    assert abs(entry.at - await conn.fetchval("select mainspring.now()")) < timedelta(minutes=1)


async def test_a_change_has_the_old_and_the_new_value_of_what_differs(conn: Connection) -> None:
    old = {"retry": {"retries": 0, "delay": 1.0}, "timeout": None, "requires": {}}
    new = {"retry": {"retries": 2, "delay": 1.0}, "timeout": 60.0, "requires": {}, "description": "x"}
    await audit.changed(conn, ALICE, "job.change", "job:report", old, new)
    [entry] = await entries(conn)
    assert entry.changes == {
        "retry.retries": Difference(0, 2),
        "timeout": Difference(None, 60.0),
        "description": Difference(None, "x"),
    }


async def test_what_is_the_same_is_no_change(conn: Connection) -> None:
    await audit.changed(conn, ALICE, "job.change", "job:report", {"a": [1, 2]}, {"a": (1, 2)})
    assert await entries(conn) == []
    await audit.changed(conn, ALICE, "job.delete", "job:report", {}, None)
    assert len(await entries(conn)) == 1


def test_a_secret_that_changed_is_told_without_its_value() -> None:
    old, new = ({"env": {"TOKEN": value, "REGION": value}} for value in ("hunter2", "hunter3"))
    assert differences(old, new) == {
        "env.TOKEN": Difference("***", "***"),
        "env.REGION": Difference("hunter2", "hunter3"),
    }
    assert differences(None, old)["env"] == Difference(None, {"TOKEN": "***", "REGION": "hunter2"})


async def test_no_secret_reaches_the_table(conn: Connection) -> None:
    definition = {"headers": {"Authorization": "Bearer hunter2"}, "argv": ["psql", "postgres://u:hunter2@db/x"]}
    await audit.changed(conn, ALICE, "job.create", "job:report", None, definition)
    await audit.record(conn, ALICE, "daemon.create", "daemon:report", {"definition": definition})
    assert "hunter2" not in await conn.fetchval("select string_agg(a::text, ' ') from mainspring.audit a")


def test_a_large_change_is_cut() -> None:
    found = differences({"body": "x"}, {"body": "é" * 1_000_000, **{f"m{n}": n for n in range(1000)}})
    assert len(found) == audit.MOST_MEMBERS + 1
    assert len(found["body"].new) < audit.MOST_BYTES + 100
    assert found["body"].new.endswith("… (2,000,002 bytes)")


@pytest.mark.parametrize("text", ["a\x00b", "\udcff", "x" * 10_000])
async def test_whatever_a_caller_sent_can_be_noted(conn: Connection, text: str) -> None:
    await audit.refused(conn, Actor(text, Role.VIEWER, (), text, text), "job.delete", text, text)
    [entry] = await entries(conn)
    assert entry.refused
    assert len(entry.refused) <= audit.MOST_TEXT


async def test_every_filter_finds_its_entries_the_newest_first(conn: Connection) -> None:
    for number, (actor, action) in enumerate([("os:a%b", "task.cancel"), ("os:aXb", "task.retry"), ("x", "job.show")]):
        await audit.record(conn, Actor(actor), action, f"task:{number}")

    async def subjects(**filters: Any) -> list[str | None]:
        return [entry.subject for entry in await entries(conn, **filters)]

    assert await subjects() == ["task:2", "task:1", "task:0"]
    assert await subjects(actor="os:*") == ["task:1", "task:0"]
    assert await subjects(actor="os:a%b") == ["task:0"], "only * is a wildcard"
    assert await subjects(actor="os:a_b") == []
    assert await subjects(action="task.*") == ["task:1", "task:0"]
    assert await subjects(action="task.*", subject="task:1") == ["task:1"]
    now: datetime = await conn.fetchval("select mainspring.now()")
    assert await subjects(since=now - DAY) == ["task:2", "task:1", "task:0"]
    assert await subjects(since=now + DAY) == []


_MANY = """
    insert into mainspring.audit (actor, role, action, subject, at)
    select case when n = 1 then 'rare' else 'busy' end, 'admin', 'task.cancel', 'task:' || n,
           mainspring.now() - (200000 - n) * interval '1 second'
      from generate_series(1, $1::integer) n
"""


async def test_a_search_reads_a_bounded_number_of_rows_and_says_how_far_it_got(conn: Connection) -> None:
    most = audit.WINDOW * audit.WINDOWS
    await conn.execute(_MANY, most + 100)
    found = await audit.search(conn, actor="rare")
    assert found.entries == []
    assert found.before is not None
    assert found.searched_to is not None
    found = await audit.search(conn, actor="rare", before=found.before)
    assert ([entry.subject for entry in found.entries], found.before) == (["task:1"], None)


async def test_pages_have_every_entry_once(conn: Connection) -> None:
    await conn.execute(_MANY, 23)
    seen: list[str | None] = []
    before = None
    while True:
        found = await audit.search(conn, before=before, limit=5)
        seen += [entry.subject for entry in found.entries]
        if (before := found.before) is None:
            break
    assert seen == [f"task:{n}" for n in range(23, 0, -1)]


async def test_retention_deletes_the_oldest_and_nothing_of_the_last_day(conn: Connection) -> None:
    await conn.execute("""
        insert into mainspring.audit (actor, role, action, at)
        select 'a', 'admin', 'x', mainspring.now() - n * interval '6 hours' from generate_series(0, 39) n
    """)
    assert await audit.forget(conn, 5 * DAY, 7) == 7
    assert await audit.forget(conn, 5 * DAY, 100) == 13
    assert await audit.forget(conn, 5 * DAY, 100) == 0
    assert await audit.forget(conn, timedelta(0), 100) > 0
    assert await audit.forget(conn, -5 * DAY, 100) == 0
    assert len(await entries(conn)) == 4
