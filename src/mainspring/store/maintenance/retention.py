"""Forgetting: rows that have served their time, at most so many at once. What is in partitions is dropped with them.

Each function deletes up to `limit` rows and returns how many; two who do it at once share the work.
Next: server/cluster/janitor.py
"""

from __future__ import annotations

from datetime import timedelta

from mainspring.store.postgres.database import Connection


async def _deleted(conn: Connection, statement: str, *args: object) -> int:
    return int((await conn.execute(statement, *args)).rpartition(" ")[2])


_KEYS = """
    delete from mainspring.task_key where (job_id, key) in (
        select job_id, key from mainspring.task_key where expires_at <= mainspring.now()
         order by expires_at limit $1 for update skip locked)
"""


async def keys(conn: Connection, limit: int) -> int:
    """Idempotency keys that have expired."""
    return await _deleted(conn, _KEYS, limit)


_SUBMISSIONS = """
    delete from mainspring.submission where id in (
        select id from mainspring.submission where at < mainspring.now() - $1::interval
         order by at limit $2 for update skip locked)
"""


async def submissions(conn: Connection, older_than: timedelta, limit: int) -> int:
    """Submissions through servers that no agent can ask for again."""
    return await _deleted(conn, _SUBMISSIONS, older_than, limit)


_FIRES = """
    delete from mainspring.fire_default where ctid = any (array(
        select ctid from mainspring.fire_default where plan_time < mainspring.now() - $1::interval
           and decided_at < mainspring.now() - $1::interval limit $2))
"""


async def fires(conn: Connection, older_than: timedelta, limit: int) -> int:
    """What the default partition of the ledger has of days past retention."""
    return await _deleted(conn, _FIRES, older_than, limit)


_VERSIONS = """
    delete from mainspring.schedule_version where ctid = any (array(
        select ctid from mainspring.schedule_version where until < mainspring.now() - $1::interval limit $2))
"""


async def versions(conn: Connection, older_than: timedelta, limit: int) -> int:
    """Versions of schedules that were replaced before that."""
    return await _deleted(conn, _VERSIONS, older_than, limit)


# One whose claims are still there may hold a task that could not be rescued: it must be found again.
_SESSIONS = """
    delete from mainspring.agent where session in (
        select session from mainspring.agent a
         where ended_at < mainspring.now() - $1::interval
           and not exists (select from mainspring.claim c where c.session = a.session)
         limit $2 for update skip locked)
"""


async def sessions(conn: Connection, older_than: timedelta, limit: int) -> int:
    """Agent sessions that ended before that and left nothing behind."""
    return await _deleted(conn, _SESSIONS, older_than, limit)


_CLAIMS = """
    delete from mainspring.claim where (session, batch) in (
        select session, batch from mainspring.claim c
         where not exists (select from mainspring.agent a where a.session = c.session)
           and not exists (select from unnest(c.tasks) as claimed(id)
                             join mainspring.task t on t.id = any (array[claimed.id])
                            where t.session = c.session and t.state in (2, 3))
         limit $1 for update skip locked)
"""


async def claims(conn: Connection, limit: int) -> int:
    """What is noted of sessions that no longer exist and hold nothing."""
    return await _deleted(conn, _CLAIMS, limit)


_ORDERS = """
    delete from mainspring.stop_order where (session, token) in (
        select session, token from mainspring.stop_order o
         where not exists (select from mainspring.agent a
                            where a.session = o.session and a.ended_at is null and a.lease_until > mainspring.now())
         limit $1 for update skip locked)
"""


async def stop_orders(conn: Connection, limit: int) -> int:
    """Orders to sessions that are over: who comes back in another is told by what it may keep."""
    return await _deleted(conn, _ORDERS, limit)


_SERVERS = """
    delete from mainspring.server where id in (
        select id from mainspring.server s
         where status in ('stopped', 'dead') and ended_at < mainspring.now() - $1::interval
           and not exists (select from mainspring.segment g where g.owner = s.id)
         limit $2 for update skip locked)
"""


async def servers(conn: Connection, older_than: timedelta, limit: int) -> int:
    """Servers that ended before that, and own nothing."""
    return await _deleted(conn, _SERVERS, older_than, limit)


_MOVES = """
    delete from mainspring.segment_move where id in (
        select id from mainspring.segment_move where at < mainspring.now() - $1::interval
         order by at limit $2 for update skip locked)
"""


async def moves(conn: Connection, older_than: timedelta, limit: int) -> int:
    """How segments changed hands before that."""
    return await _deleted(conn, _MOVES, older_than, limit)


_RATES = """
    delete from mainspring.throttle th
     where (th.job_id, th.key) in (
               select job_id, key from mainspring.throttle
                where wake_at is null and until < (select mainspring.now()) - interval '1 minute'
                limit $1 for update skip locked)
       and th.wake_at is null and th.until < (select mainspring.now()) - interval '1 minute'
"""


async def rates(conn: Connection, limit: int) -> int:
    """Rates that nobody has used for a while: they are as good as new."""
    return await _deleted(conn, _RATES, limit)
