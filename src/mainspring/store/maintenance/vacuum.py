"""Vacuum: statistics and dead rows of the hot tables, and the transaction that blocks vacuum.

Autovacuum does the work; this checks that it can. Times here are PostgreSQL's own, not mainspring.now().
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.store.postgres.database import Connection

HOT = (
    "task", "claim", "agent", "server", "segment", "task_key", "dependency", "dependent", "schedule", "stop_order",
    "chore", "submission",
    "agent_process", "figure", "queue_figure",
)  # fmt: skip

# More than a tenth of the rows and a thousand have changed since the last analyze, an hour ago or more.
_STALE = """
    select relname from pg_stat_user_tables
     where schemaname = 'mainspring' and relname = any($1::text[])
       and n_mod_since_analyze > 1000 + n_live_tup / 10
       and coalesce(greatest(last_analyze, last_autoanalyze), '-infinity') < clock_timestamp() - interval '1 hour'
     order by n_mod_since_analyze desc limit $2
"""


async def analyze(conn: Connection, limit: int) -> int:
    """Analyze up to `limit` hot tables with stale statistics, skipping locked ones; returns how many."""
    stale = [row["relname"] for row in await conn.fetch(_STALE, list(HOT), limit)]
    for table in stale:
        await conn.execute("select mainspring.analyze_table($1)", table)
    return len(stale)


class TableView(msgspec.Struct, frozen=True):
    """PostgreSQL's counters of a table."""

    table: str
    live: int
    dead: int
    updates: int
    in_page: float | None  # share of updates that touched no index
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


_TABLES = """
    select relname, n_live_tup, n_dead_tup, n_tup_upd,
           round(n_tup_hot_upd::numeric / nullif(n_tup_upd, 0), 3)::float8,
           greatest(last_vacuum, last_autovacuum), greatest(last_analyze, last_autoanalyze)
      from pg_stat_user_tables
     where schemaname = 'mainspring' and relname = any($1::text[])
     order by relname
"""


async def tables(conn: Connection) -> list[TableView]:
    """The hot tables."""
    return [TableView(*row) for row in await conn.fetch(_TABLES, list(HOT))]


class Blocker(NamedTuple):
    """A transaction that keeps dead rows from being vacuumed."""

    what: str
    since: datetime


# A role sees its own transactions; with pg_read_all_stats, those of all roles. A transaction in another database keeps
# none of our rows; a standby with feedback, which has no database, does.
_BLOCKER = """
    select what, since from (
        select format('a transaction of %s, process %s (%s)', usename, pid, coalesce(nullif(application_name, ''), '?'))
                   as what, xact_start as since
          from pg_stat_activity
         where (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
           and (datname is null or datname = current_database())
        union all
        select format('the prepared transaction %L of %s', gid, owner), prepared from pg_prepared_xacts
         where database = current_database()
    ) open
     where since < clock_timestamp() - make_interval(secs => $1)
     order by since limit 1
"""


async def blocker(conn: Connection, longer_than: float) -> Blocker | None:
    """The transaction that has been open longest, if for more than so many seconds."""
    row = await conn.fetchrow(_BLOCKER, longer_than)
    return None if row is None else Blocker(*row)
