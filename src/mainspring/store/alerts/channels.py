"""Channels: where messages go. What people see of one has neither its URL nor its secret.

Next: store/alerts/deliveries.py
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.model.alerts.channels import shown_url
from mainspring.model.alerts.messages import Kind
from mainspring.model.secrets.references import SecretReference, Value
from mainspring.store.alerts.deliveries import TRIED_FOR
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import Batch, views


class ChannelView(msgspec.Struct, frozen=True):
    name: str
    version: int
    kind: Kind
    url: str  # without what is secret in it
    is_signed: bool
    enabled: bool
    delivered_at: datetime | None  # the last time that the receiver took a message
    failing_since: datetime | None  # since when it has refused all
    last_error: str | None
    namespace: str = "default"


class Stored(NamedTuple):
    """With its secrets."""

    kind: Kind
    url: Value
    secret: Value | None
    enabled: bool
    version: int


_VIEW = "name, version, kind, shown_url as url, is_signed, enabled, delivered_at, failing_since, last_error"
_LIST = f"select {_VIEW} from mainspring.channel where $1::text is null or name > $1 order by name limit $2"


async def listing(conn: Connection, *, after: str | None = None, limit: int = 1_000_000) -> Batch[ChannelView]:
    rows = await conn.fetch(_LIST, after, limit)
    return Batch(views(ChannelView, rows), rows[-1]["name"] if len(rows) == limit else None)


async def find(conn: Connection, name: str) -> ChannelView | None:
    found = await conn.fetch(f"select {_VIEW} from mainspring.channel where name = $1", name)
    return next(iter(views(ChannelView, found)), None)


async def lock(conn: Connection, name: str) -> Stored | None:
    """With its secrets, for a change."""
    row = await conn.fetchrow(
        "select kind, url, url_from, secret, secret_from, enabled, version from mainspring.channel"
        " where name = $1 for update",
        name,
    )
    if row is None:
        return None
    kind, url, url_from, secret, secret_from, enabled, version = row
    address = url if url_from is None else SecretReference(url_from)
    return Stored(kind, address, secret if secret_from is None else SecretReference(secret_from), enabled, version)


# Whether the receiver takes what is sent is to be seen anew.
_PUT = """
    insert into mainspring.channel as c (name, kind, url, url_from, secret, secret_from, enabled, shown_url)
    values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (name) do update
       set kind = excluded.kind, url = excluded.url, url_from = excluded.url_from, secret = excluded.secret,
           secret_from = excluded.secret_from, enabled = excluded.enabled, shown_url = excluded.shown_url,
           version = c.version + 1, updated_at = mainspring.now(),
           failing_since = null, last_error = null
"""


# What a disabled channel has kept is news no longer once it is enabled.
_GIVE_UP = """
    update mainspring.alert_delivery
       set state = 'given_up', ended_at = mainspring.now(),
           last_error = coalesce(last_error, 'its channel was disabled')
     where channel = $1 and state = 'pending' and created_at < mainspring.now() - $2::interval
"""


async def put(conn: Connection, name: str, kind: Kind, url: Value, secret: Value | None, enabled: bool) -> None:
    """Create a channel or change it. What waits for it is tried again at once, or given up if it is old."""
    await conn.execute(_PUT, name, kind, *_parted(url), *_parted(secret), enabled, shown_url(kind, url))
    await conn.execute(_GIVE_UP, name, TRIED_FOR)
    await conn.execute(
        """update mainspring.alert_delivery set next_try_at = mainspring.now()
            where channel = $1 and state = 'pending' and next_try_at > mainspring.now()""",
        name,
    )


def _parted(value: Value | None) -> tuple[str | None, str | None]:
    """The text itself, or the name of the secret that holds it."""
    return (None, value.secret) if isinstance(value, SecretReference) else (value, None)


_DELETE = """
    with gone as (
        delete from mainspring.channel where name = $1 returning name
    ), given_up as (
        update mainspring.alert_delivery d
           set state = 'given_up', ended_at = mainspring.now(), last_error = 'its channel was deleted'
          from gone where d.channel = gone.name and d.state = 'pending'
    )
    select 1 from gone
"""


async def delete(conn: Connection, name: str) -> bool:
    """Remove a channel, and what waits for it."""
    return await conn.fetchval(_DELETE, name) is not None


async def names(conn: Connection, wanted: list[str]) -> list[str]:
    """The enabled channels of these names; of no names: all."""
    rows = await conn.fetch(
        "select name from mainspring.channel where enabled and ($1::text[] = '{}' or name = any($1)) order by name",
        wanted,
    )
    return [row["name"] for row in rows]


async def hint(conn: Connection) -> None:
    """A rule, a channel or a mute was changed: the leader looks at once."""
    await conn.execute("select pg_notify('mainspring', 'alert')")
