"""The leader: one row with a term, and an advisory lock that its connection holds.

The lock decides who may begin a term; the term is what a leader's writes check. A lock whose holder is frozen is
taken from it once its lease is over.
Next: server/cluster/leader.py
"""

from __future__ import annotations

from uuid import UUID

from mainspring.store.postgres.database import Connection

_LOCK = (0x6D61696E, 1)  # "main"

# A leader's lease is of seconds: one that ends much later was written before the clock was set back.
_IS_OVER = "not lease_until between mainspring.now() and mainspring.now() + interval '10 seconds'"

# Whether to run for it: nobody has the lock, or who has it has not renewed its lease.
_IS_VACANT = f"""
    select {_IS_OVER}
           or not exists (select from pg_locks
                           where locktype = 'advisory' and classid = $1 and objid = $2 and objsubid = 2 and granted
                             and database = (select oid from pg_database where datname = current_database()))
      from mainspring.leader
"""


async def is_vacant(conn: Connection) -> bool:
    return bool(await conn.fetchval(_IS_VACANT, *_LOCK))


# One statement: whoever has the lock has its name in the row too, or is about to have.
_RUN = """
    update mainspring.leader
       set owner = $1, term = term + 1, backend = pg_backend_pid(), elected_at = mainspring.now(),
           lease_until = mainspring.now() + make_interval(secs => $2)
     where (select pg_try_advisory_lock($3, $4))
    returning term
"""


async def run(conn: Connection, server: UUID, lease: float) -> int | None:
    """Begin a term on this connection, which is then the leader's own. None: another has the lock."""
    term: int | None = await conn.fetchval(_RUN, server, lease, *_LOCK)
    return term


# A holder that is frozen, or cut off without a word, keeps its connection, and the lock with it. Only one whose term we
# know of: another may have been elected this very moment.
_UNSEAT = f"""
    select pg_terminate_backend(l.pid)
      from mainspring.leader, pg_locks l
     where {_IS_OVER} and l.pid = backend
       and l.locktype = 'advisory' and l.classid = $1 and l.objid = $2 and l.objsubid = 2 and l.granted
       and l.database = (select oid from pg_database where datname = current_database())
"""


async def unseat(conn: Connection) -> bool:
    """Take the lock from who has not renewed its lease. True: it is free now, or will be in a moment."""
    return bool(await conn.fetchval(_UNSEAT, *_LOCK))


_RENEW = """
    update mainspring.leader set lease_until = mainspring.now() + make_interval(secs => $3)
     where owner = $1 and term = $2 and backend = pg_backend_pid()
    returning term
"""


async def renew(conn: Connection, server: UUID, term: int, lease: float) -> bool:
    """See that the connection is there, and the term still ours. False: it is over."""
    return await conn.fetchval(_RENEW, server, term, lease) is not None


_RESIGN = "update mainspring.leader set lease_until = mainspring.now() where owner = $1 and term = $2"


async def resign(conn: Connection, server: UUID, term: int) -> None:
    """Let go of the lock, and tell the others."""
    await conn.execute(_RESIGN, server, term)
    await conn.execute("select pg_advisory_unlock($1, $2)", *_LOCK)
    await conn.execute("select pg_notify('mainspring', 'leader')")
