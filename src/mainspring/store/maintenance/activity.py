"""Activity: PostgreSQL as our database sees it: connections by what they are for, and the oldest transactions.

Reads   pg_stat_activity, pg_prepared_xacts; nothing of ours. Times are PostgreSQL's own, not mainspring.now().
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

APPLICATIONS = 12  # that are listed one by one
TRANSACTIONS = 5


class Application(msgspec.Struct, frozen=True):
    """Connections to our database that give one name."""

    name: str  # empty: they give none
    connections: int
    active: int
    idle_in_transaction: int


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that is open. While it is, no row that it could see is vacuumed."""

    name: str  # of its application; the id of a prepared one
    user: str
    process: int | None  # None: it is prepared
    state: str  # active, idle in transaction, prepared, …
    since: datetime
    age: float  # seconds
    waits_for: str | None  # such as Lock: it waits within PostgreSQL


class PostgresqlView(msgspec.Struct, frozen=True):
    version: str
    started_at: datetime
    sees_all: bool  # the role of the server may see what others do: pg_read_all_stats
    max_connections: int
    connections: int  # to all databases
    here: int  # to ours
    applications: list[Application]  # those with most connections to our database first
    transactions: list[OpenTransaction]  # the oldest first


_WHOLE = """
    select current_setting('server_version') as version, pg_postmaster_start_time() as started_at,
           pg_has_role('pg_read_all_stats', 'usage') as sees_all,
           current_setting('max_connections')::integer as max_connections,
           count(*) as connections, count(*) filter (where datname = current_database()) as here
      from pg_stat_activity where backend_type = 'client backend'
"""
_APPLICATIONS = f"""
    select coalesce(application_name, '') as name, count(*) as connections,
           count(*) filter (where state = 'active') as active,
           count(*) filter (where state like 'idle in transaction%') as idle_in_transaction
      from pg_stat_activity
     where backend_type = 'client backend' and datname = current_database()
     group by 1 order by count(*) desc, 1 limit {APPLICATIONS}
"""
# A transaction in another database keeps none of our rows; a standby with feedback, which has no database, does.
_TRANSACTIONS = f"""
    select name, "user", process, state, since, waits_for,
           extract(epoch from clock_timestamp() - since)::float8 as age
      from (
        select coalesce(application_name, '') as name, coalesce(usename, '') as "user", pid as process,
               coalesce(state, backend_type) as state, xact_start as since,
               case when state = 'active' and wait_event_type <> 'Client' then wait_event_type end as waits_for
          from pg_stat_activity
         where xact_start is not null and pid <> pg_backend_pid() and (datname is null or datname = current_database())
           and backend_type <> 'autovacuum worker'
        union all
        select gid, owner, null, 'prepared', prepared, null from pg_prepared_xacts where database = current_database()
      ) open
     order by since limit {TRANSACTIONS}
"""


async def view(conn: Connection) -> PostgresqlView:
    whole = await conn.fetchrow(_WHOLE)
    return PostgresqlView(
        **whole,
        applications=views(Application, await conn.fetch(_APPLICATIONS)),
        transactions=views(OpenTransaction, await conn.fetch(_TRANSACTIONS)),
    )
