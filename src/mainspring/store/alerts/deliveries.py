"""Deliveries: messages on their way to channels.

    pending → delivered | given_up

A try is noted before it is made: `claim` counts it and sets when the next one may be. A leader that dies between
sending and noting the outcome leaves the delivery pending, and the next leader sends the same message with the same id.
Writes  mainspring.alert_delivery, mainspring.channel   (whether it works)
Next:   server/alerting/sender.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from mainspring.model.alerts.messages import Kind
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import views

State = Literal["pending", "delivered", "given_up"]

TRIED_FOR = timedelta(hours=24)  # then it is given up
IN_ORDER_FOR = timedelta(minutes=5)  # that a message waits for an earlier one of its rule
UNDELIVERED = timedelta(minutes=2)  # after which people want to know
LONGEST_WAIT = 600.0  # seconds until the next try, about
LONGEST_ERROR = 500


class New(NamedTuple):
    """A message as JSON, to a channel."""

    id: UUID
    channel: str
    message: str


_ADD = """
    insert into mainspring.alert_delivery (id, channel, rule, message, created_at, next_try_at)
    select id, channel, $4, message::json, $5, $5
      from unnest($1::uuid[], $2::text[], $3::text[]) as given(id, channel, message)
"""


async def add(conn: Connection, rule: str | None, made: Sequence[New], at: datetime) -> None:
    columns = ([one.id for one in made], [one.channel for one in made], [one.message for one in made])
    await conn.execute(_ADD, *columns, rule, at)


# ── sending ─────────────────────────────────────────────────────────────────────────────────────


class Claimed(NamedTuple):
    """A message that the caller sends now."""

    id: UUID
    channel: str
    message: str
    attempt: int
    kind: Kind
    url: str | None
    url_from: str | None  # the secret that holds it
    secret: str | None
    secret_from: str | None
    now: datetime


# Messages of one rule go out in order, unless an earlier one has been refused for long. A try further ahead than any
# wait is from before the clock was set back.
_CLAIM = """
    with due as (
        select d.id, c.kind, c.url, c.url_from, c.secret, c.secret_from
          from mainspring.alert_delivery d join mainspring.channel c on c.name = d.channel and c.enabled
         where d.state = 'pending'
           and (d.next_try_at <= (select mainspring.now()) or d.next_try_at > (select mainspring.now()) + $4::interval)
           and not exists (
               select from mainspring.alert_delivery e
                where e.state = 'pending' and e.channel = d.channel and e.rule = d.rule and e.created_at < d.created_at
                  and e.created_at > (select mainspring.now()) - $2::interval)
         order by d.next_try_at limit $1
           for update of d skip locked
    )
    update mainspring.alert_delivery d
       set attempts = d.attempts + 1, next_try_at = (select mainspring.now()) + $3::interval
      from due where d.id = due.id and d.state = 'pending'
    returning d.id, d.channel, d.message::text, d.attempts, due.kind, due.url, due.url_from, due.secret,
              due.secret_from, mainspring.now()
"""


async def claim(conn: Connection, limit: int, lease: float) -> list[Claimed]:
    """Messages to send now. The claim lasts `lease` seconds; then another leader may send them."""
    rows = await conn.fetch(_CLAIM, limit, IN_ORDER_FOR, timedelta(seconds=lease), timedelta(seconds=2 * LONGEST_WAIT))
    return [Claimed(*row) for row in rows]


_DELIVERED = """
    with done as (
        update mainspring.alert_delivery set state = 'delivered', ended_at = mainspring.now(), last_error = null
         where id = $1 and state = 'pending' returning channel
    )
    update mainspring.channel c set delivered_at = mainspring.now(), failing_since = null, last_error = null
      from done where c.name = done.channel
"""
# The attempt is the fence: a late sender must not postpone the attempt of another.
_FAILED = """
    with failed as (
        update mainspring.alert_delivery
           set last_error = $3, next_try_at = mainspring.now() + make_interval(secs => $4),
               state = case when created_at < mainspring.now() - $5::interval then 'given_up' else state end,
               ended_at = case when created_at < mainspring.now() - $5::interval then mainspring.now() end
         where id = $1 and state = 'pending' and attempts = $2
        returning channel
    )
    update mainspring.channel c
       set last_error = $3, failing_since = coalesce(c.failing_since, mainspring.now())
      from failed where c.name = failed.channel
"""


async def delivered(conn: Connection, id: UUID) -> None:
    await conn.execute(_DELIVERED, id)


async def failed(conn: Connection, id: UUID, attempt: int, error: str, wait: float) -> None:
    """The receiver did not take it; the next try is so many seconds from now, unless that has gone on for a day."""
    await conn.execute(_FAILED, id, attempt, error[:LONGEST_ERROR], wait, TRIED_FOR)


async def next_try(conn: Connection) -> float | None:
    """Seconds until the next try of a message; None: none has a time. What is due and was not claimed waits for
    something else: its channel is disabled, or an earlier message of its rule comes first."""
    found: float | None = await conn.fetchval("""
        select extract(epoch from min(next_try_at) - mainspring.now())::float8
          from mainspring.alert_delivery where state = 'pending' and next_try_at > mainspring.now()
    """)
    return found


# ── for people ──────────────────────────────────────────────────────────────────────────────────


class DeliveryView(msgspec.Struct, frozen=True):
    id: UUID
    channel: str
    rule: str | None  # None: a test of the channel
    title: str | None  # of the message
    state: State
    attempts: int
    created_at: datetime
    next_try_at: datetime | None  # while it is pending
    ended_at: datetime | None  # delivered, or given up
    last_error: str | None


_VIEW = """
    id, channel, rule, message->>'title' as title, state, attempts, created_at,
    case when state = 'pending' then next_try_at end as next_try_at, ended_at, last_error
"""
_LIST = f"""
    select {_VIEW} from mainspring.alert_delivery
     where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid))
       and ($3::text[] is null or channel like any ($3)) and ($4::text[] is null or state = any($4))
     order by created_at desc, id desc limit $5
"""


async def listing(
    conn: Connection,
    *,
    channel: list[str] | None,  # for `like`
    state: list[str] | None,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> list[DeliveryView]:
    """The newest first."""
    rows = await conn.fetch(_LIST, *(before or (None, None)), channel, state, limit)
    return views(DeliveryView, rows)


async def named(conn: Connection, channel: str) -> bool:
    """Whether a message that is kept was for this channel, which may be gone."""
    return bool(
        await conn.fetchval("select exists (select from mainspring.alert_delivery where channel = $1)", channel)
    )


async def find(conn: Connection, id: UUID) -> DeliveryView | None:
    rows = await conn.fetch(f"select {_VIEW} from mainspring.alert_delivery where id = $1", id)
    return next(iter(views(DeliveryView, rows)), None)


class Undelivered(msgspec.Struct, frozen=True):
    messages: int
    since: datetime
    channels: list[str]
    error: str | None  # of one of them


_UNDELIVERED = """
    select count(*) as messages, min(created_at) as since, array_agg(distinct channel) as channels,
           max(last_error) as error
      from mainspring.alert_delivery
     where (state = 'pending' and created_at < mainspring.now() - $1::interval
            and exists (select from mainspring.channel c where c.name = channel and c.enabled))
        or (state = 'given_up' and created_at > mainspring.now() - $2::interval
            and ended_at > mainspring.now() - interval '1 hour'
            and exists (select from mainspring.channel c where c.name = channel))      -- else it was deleted on purpose
    having count(*) > 0
"""


async def undelivered(conn: Connection) -> Undelivered | None:
    """Messages that wait for longer than they should, or were given up within the hour."""
    rows = await conn.fetch(_UNDELIVERED, UNDELIVERED, TRIED_FOR + timedelta(hours=2))
    return next(iter(views(Undelivered, rows)), None)
