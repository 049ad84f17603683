"""Leader: one row with a term, and an advisory lock that the leader's connection holds.

The holder of the lock may begin a term; a leader's writes check the term. A frozen holder loses the lock once its
lease has expired. The lock only makes an election quick: any role can take an advisory lock, so an expired lease can be
taken without it.
"""

from __future__ import annotations

from uuid import UUID

from mainspring.store.postgres.database import Connection

_LOCK = (0x6D61696E, 1)  # "main"

# A leader's lease lasts seconds: one that ends much later was written before the clock was set back.
_EXPIRED = "not lease_until between mainspring.now() and mainspring.now() + interval '10 seconds'"

# Whether to stand for election: the lock is free, or its holder has not renewed its lease.
_IS_VACANT = f"""
    select {_EXPIRED}
           or not exists (select from pg_locks
                           where locktype = 'advisory' and classid = $1 and objid = $2 and objsubid = 2 and granted
                             and database = (select oid from pg_database where datname = current_database()))
      from mainspring.leader
"""


async def is_vacant(conn: Connection) -> bool:
    return bool(await conn.fetchval(_IS_VACANT, *_LOCK))


_BEGIN_TERM = """
    update mainspring.leader
       set owner = $1, term = term + 1, backend = pg_backend_pid(), elected_at = mainspring.now(),
           lease_until = mainspring.now() + make_interval(secs => $2)
"""
# One statement: the row names the holder of the lock, or is about to.
_ELECT = f"{_BEGIN_TERM} where (select pg_try_advisory_lock($3, $4)) returning term"
_ELECT_WITHOUT_LOCK = f"{_BEGIN_TERM} where {_EXPIRED} returning term"


async def elect(conn: Connection, server: UUID, lease: float) -> int | None:
    """Begin a term on this connection, which then belongs to the leader. None: another connection holds the lock."""
    term: int | None = await conn.fetchval(_ELECT, server, lease, *_LOCK)
    return term


# A frozen or unreachable holder keeps its connection, and with it the lock. Only the backend in the row is terminated:
# another leader may have been elected in this moment. PostgreSQL does not allow it to another role.
_UNSEAT = f"""
    select pg_terminate_backend(l.pid)
      from mainspring.leader, pg_locks l join pg_stat_activity a on a.pid = l.pid and pg_has_role(a.usesysid, 'usage')
     where {_EXPIRED} and l.pid = backend
       and l.locktype = 'advisory' and l.classid = $1 and l.objid = $2 and l.objsubid = 2 and l.granted
       and l.database = (select oid from pg_database where datname = current_database())
"""


async def unseat(conn: Connection) -> bool:
    """Take the lock from a holder with an expired lease. True: it is free now, or will be in a moment."""
    return bool(await conn.fetchval(_UNSEAT, *_LOCK))


async def elect_without_lock(conn: Connection, server: UUID, lease: float) -> int | None:
    """Begin a term though a connection that is no leader's holds the lock. None: the lease of a leader has not expired.

    A server that gets the lock in this moment begins the next term: the row has one owner at any time.
    """
    term: int | None = await conn.fetchval(_ELECT_WITHOUT_LOCK, server, lease)
    return term


_RENEW = """
    update mainspring.leader set lease_until = mainspring.now() + make_interval(secs => $3)
     where owner = $1 and term = $2 and backend = pg_backend_pid()
    returning term
"""


async def renew(conn: Connection, server: UUID, term: int, lease: float) -> bool:
    """Check the connection and renew the lease of the term. False: the term is over."""
    return await conn.fetchval(_RENEW, server, term, lease) is not None


_RESIGN = "update mainspring.leader set lease_until = mainspring.now() where owner = $1 and term = $2"


async def resign(conn: Connection, server: UUID, term: int) -> None:
    """Release the lock and notify the others."""
    await conn.execute(_RESIGN, server, term)
    await conn.execute("select pg_advisory_unlock($1, $2)", *_LOCK)
    await conn.execute("select pg_notify('mainspring', 'leader')")
