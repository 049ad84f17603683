"""A database in which every operation finds something, for callers that try everything; and its digest."""

from __future__ import annotations

from typing import NamedTuple

from mainspring.model.access.actors import Actor, Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import access
from mainspring.operations.definitions import calendars, daemons, jobs, schedules
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection

ACTOR = Actor("test")


class World(NamedTuple):
    secret: str  # of an admin
    tasks: list[int]
    token: int  # to be revoked
    session: int
    job: str = "hello"
    schedule: str = "nightly"
    calendar: str = "holidays"
    daemon: str = "forever"
    agent: str = "eve"


async def make_world(conn: Connection) -> World:
    echo = define(command(["echo", "hello"]), {})
    await jobs.put(conn, ACTOR, "hello", echo)
    await jobs.put(conn, ACTOR, "idle", echo)
    await schedules.put(conn, ACTOR, "nightly", ScheduleSpec(job="hello", cron="0 2 * * *", enabled=True))
    await schedules.put(conn, ACTOR, "off", ScheduleSpec(job="hello", every="1h", enabled=False))
    await calendars.put(conn, ACTOR, "holidays", ["12-25"])
    await daemons.put(conn, ACTOR, "forever", echo)
    await conn.execute(
        """
        insert into mainspring.agent (session, name, slots, lease_until)
        values (7, 'eve', 1, mainspring.now() + interval '1 hour')
        """
    )
    made = [(await tasks.submit(conn, ACTOR, NewTask(job="hello", args={"n": n}))).id for n in range(4)]
    await tasks.cancel(conn, ACTOR, made[0])
    await conn.execute(
        """
        update mainspring.task
           set state = 3, token = 5, session = 7, attempt = 1, started_at = mainspring.now() where id = $1
        """,
        made[1],
    )
    token = (await access.create_token(conn, ACTOR, "ci", role=Role.VIEWER)).id
    code = (await access.create_login(conn, ACTOR)).code
    session = (await access.exchange_login(conn, ACTOR, code=code)).session.id
    _, secret = await tokens.create(conn, "everything", role=Role.ADMIN)
    return World(secret, made, token, session)


# What a refused request may change: when its token or session was used last. Its refusal is in the audit.
_TOUCHED = ("last_used_at", "last_seen_at")


async def digest_query(conn: Connection) -> str:
    """A query for one text that differs if any row of any table does."""
    columns = await conn.fetch(
        """
        select c.relname as table, array_agg(quote_ident(a.attname) order by a.attnum) as columns
          from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where c.relnamespace = 'mainspring'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           and c.relname not in ('audit', 'pool')
         group by c.relname order by c.relname
        """
    )
    parts = []
    for row in columns:
        kept = [name for name in row["columns"] if name not in _TOUCHED]
        whole = f"row({', '.join(f't.{name}' for name in kept)})::text"
        parts.append(
            f"select '{row['table']}' || md5(coalesce(string_agg({whole}, '|' order by {whole}), '')) as part "
            f"from mainspring.{row['table']} t"
        )
    return f"select string_agg(part, ' ' order by part) from ({' union all '.join(parts)}) parts"
