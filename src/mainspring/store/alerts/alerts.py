"""Alerts: what rules have found, and what of it has been told.

    (found)  → pending → firing → resolved        a condition: it lasts, for as long as `for` first
    (found)  →           firing → resolved        an event: closed without a word, once no more come

The evaluator moves them while it holds the row of their rule, so two leaders take turns. `untold_since` marks what is
to be sent; `take` reads it and `told` clears it, in the transaction that writes the message: each is sent once.
Writes  mainspring.alert
Next:   store/alerts/deliveries.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from mainspring.model.alerts.findings import EVENTS, Finding
from mainspring.model.alerts.messages import Told
from mainspring.model.alerts.rules import Severity
from mainspring.store.alerts.rules import StoredRule
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import readable, views

State = Literal["pending", "firing", "resolved"]

GAP = timedelta(minutes=1)  # without a look after which a condition has to last anew before it fires
REOPENS = timedelta(minutes=5)  # a condition that returns within this, before its end was told, has not ended
CLOSED_AFTER = timedelta(minutes=10)  # without another event


# ── what was found ──────────────────────────────────────────────────────────────────────────────

_GIVEN = """
    given as (
        select subject, job, left(message, 2000) as message, details::jsonb as details, since, count,
               events::jsonb as events
          from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::bigint[], $8::text[])
            as given(subject, job, message, details, since, count, events)
    )
"""
# An alert whose beginning was never sent leaves no end either: flapping must not fill the table.
_REOPEN = """
    update mainspring.alert a
       set state = 'firing', resolved_at = null, seen_at = $3, changed_at = $3,
           untold_since = case when a.told is null then a.untold_since end
     where a.rule = $1 and a.subject = any($2::text[]) and a.state = 'resolved' and not a.is_event
       and a.told is distinct from 'resolved' and a.untold_since is not null
       and a.resolved_at > $3::timestamptz - $4::interval
       and not exists (select from mainspring.alert o
                        where o.rule = a.rule and o.subject = a.subject
                          and (o.state <> 'resolved' or o.id > a.id))
"""
_SEE = f"""
    with {_GIVEN}
    insert into mainspring.alert as a
        (rule, kind, severity, subject, job, state, is_event, message, details, since, pending_at, seen_at, fired_at,
         count, untold, events, untold_since, changed_at)
    select $1, $10, $11, subject, job, case when $12 then 'pending' else 'firing' end, $13, message, details, since,
           at, at, case when not $12 then at end, case when $13 then count else 1 end,
           case when $13 then count else 0 end, events, case when not $12 then at end, at
      from given cross join (select $9::timestamptz as at) look order by subject
    on conflict (rule, subject) where state <> 'resolved' do update
       set message = excluded.message, details = excluded.details, job = excluded.job, severity = excluded.severity,
           kind = excluded.kind, seen_at = excluded.seen_at,
           pending_at = case when a.state = 'pending' and a.seen_at < excluded.seen_at - $14::interval
                             then excluded.seen_at else a.pending_at end,
           count = case when a.is_event then a.count + excluded.count else 1 end,
           untold = a.untold + excluded.untold,
           events = case when jsonb_array_length(a.events) >= {EVENTS} then a.events
                         else jsonb_path_query_array(a.events || excluded.events, '$[0 to {EVENTS - 1}]') end,
           untold_since = case when a.is_event then coalesce(a.untold_since, excluded.seen_at) else a.untold_since end,
           changed_at = case when a.is_event or a.message <> excluded.message then excluded.seen_at
                             else a.changed_at end
"""
_FIRE = """
    update mainspring.alert set state = 'firing', fired_at = $2, untold_since = $2, changed_at = $2
     where rule = $1 and state = 'pending' and seen_at = $2 and pending_at <= $2::timestamptz - $3::interval
"""
# Whatever was found was seen at this very instant; the clock may have been set back meanwhile.
_DROP = "delete from mainspring.alert where rule = $1 and state = 'pending' and seen_at <> $2"
_RESOLVE = """
    update mainspring.alert
       set state = 'resolved', resolved_at = $2, changed_at = $2, untold_since = coalesce(untold_since, $2)
     where rule = $1 and state = 'firing' and seen_at <> $2 and not is_event
"""
_CLOSE = """
    update mainspring.alert
       set state = 'resolved', resolved_at = $2, changed_at = $2, events = '[]', untold_since = null
     where rule = $1 and state = 'firing' and is_event and seen_at < $2::timestamptz - $3::interval
"""


async def observe(conn: Connection, rule: StoredRule, is_event: bool, at: datetime, found: Sequence[Finding]) -> None:
    """Move the alerts of a rule, whose row the caller has locked, to what was found at an instant."""
    if not is_event:
        await conn.execute(_REOPEN, rule.name, [finding.subject for finding in found], at, REOPENS)
    if found:
        await conn.execute(
            _SEE,
            rule.name,
            [finding.subject for finding in found],
            [finding.job for finding in found],
            [_text(finding.message) for finding in found],
            [_json(finding.details) for finding in found],
            [finding.since for finding in found],
            [finding.count for finding in found],
            [_json(finding.events[:EVENTS]) for finding in found],
            at,
            rule.kind,
            rule.severity,
            rule.hold > 0 and not is_event,
            is_event,
            GAP,
        )
    if not is_event:
        await conn.execute(_FIRE, rule.name, at, timedelta(seconds=rule.hold))
        await conn.execute(_DROP, rule.name, at)
        await conn.execute(_RESOLVE, rule.name, at)


async def close(conn: Connection, rule: StoredRule, at: datetime) -> None:
    """Resolve the events of a rule that are over, once they were sent: a leader that comes back after an outage finds
    some that are both old and not sent yet."""
    await conn.execute(_CLOSE, rule.name, at, CLOSED_AFTER)


def _text(text: str) -> str:
    return text.replace("\0", "�").encode(errors="replace").decode()


def _json(value: Any) -> str:
    return _text(msgspec.json.encode(value).decode().replace("\\u0000", "\\ufffd"))


_END = """
    update mainspring.alert set state = 'resolved', resolved_at = mainspring.now(), changed_at = mainspring.now(),
           untold_since = null, events = '[]', untold = 0
     where rule = $1 and state <> 'resolved'
"""


async def end(conn: Connection, rule: str) -> None:
    """Close all alerts of a rule that is no longer looked at, without a word."""
    await conn.execute(_END, rule)


# ── what is to be told ──────────────────────────────────────────────────────────────────────────


class Untold(msgspec.Struct, frozen=True):
    """An alert with something to tell."""

    id: int
    subject: str
    job: str | None
    state: State
    is_event: bool
    message: str
    details: dict[str, Any] | None
    since: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    count: int
    untold: int
    events: list[Any] | None
    told: str | None
    untold_since: datetime | None  # None: it is sent again

    def as_told(self) -> Told:
        state: Literal["firing", "resolved"] = "resolved" if self.state == "resolved" else "firing"
        return Told(
            self.id, state, self.subject, self.message, self.since, self.fired_at, self.resolved_at, self.count,
            self.untold, self.events or [], self.details or {},
        )  # fmt: skip


_TAKE = """
    select id, subject, job, state, is_event, message, details, since, fired_at, resolved_at, count, untold, events,
           told, untold_since
      from mainspring.alert
     where rule = $1 and untold_since is not null and state <> 'pending'
     union all
    select id, subject, job, state, is_event, message, details, since, fired_at, resolved_at, count, untold, events,
           told, untold_since
      from mainspring.alert
     where rule = $1 and untold_since is null and state = 'firing' and not is_event
       and told_at <= $2::timestamptz - $3::interval
"""


async def take(conn: Connection, rule: str, at: datetime, repeat: float | None) -> list[Untold]:
    """What is to be sent for a rule, whose row the caller has locked; with what is repeated after so many seconds."""
    again = None if repeat is None else timedelta(seconds=repeat)
    return views(Untold, await conn.fetch(_TAKE, rule, at, again), json=("details", "events"))


_TOLD = """
    update mainspring.alert a
       set told = a.state, told_at = $2, untold = 0, events = '[]', untold_since = null
     where a.id = any($1::bigint[]) and a.state <> 'pending'
"""
_FORGET = """
    update mainspring.alert a set untold = 0, events = '[]', untold_since = null
     where a.id = any($1::bigint[]) and a.state <> 'pending'
"""


async def told(conn: Connection, ids: Sequence[int], at: datetime) -> None:
    """These are in a message now, as they are; the caller has locked the row of their rule."""
    await conn.execute(_TOLD, list(ids), at)


async def forget(conn: Connection, ids: Sequence[int]) -> None:
    """These are not to be told: they were muted."""
    await conn.execute(_FORGET, list(ids))


# ── for people ──────────────────────────────────────────────────────────────────────────────────


class AlertView(msgspec.Struct, frozen=True):
    id: int
    rule: str
    kind: str
    severity: Severity
    subject: str  # such as job:report
    job: str | None
    state: State
    is_event: bool  # it happened; else it lasts
    message: str
    since: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    seen_at: datetime  # last found
    told_at: datetime | None  # last told
    count: int  # events
    details: dict[str, Any] | None


class Filter(msgspec.Struct, frozen=True):
    state: list[str] | None = None
    rule: list[str] | None = None  # for `like`, as the next two
    subject: list[str] | None = None
    job: list[str] | None = None  # those that are about no job pass too
    severity: list[str] | None = None


_VIEW = """
    id, rule, kind, severity, subject, job, state, is_event, message, since, fired_at, resolved_at, seen_at, told_at,
    count, details
"""
_LIST = f"""
    select {_VIEW} from mainspring.alert
     where ($1::bigint is null or id < $1)
       and ($2::text[] is null or state = any($2)) and ($3::text[] is null or rule like any($3))
       and ($4::text[] is null or subject like any($4)) and ($5::text[] is null or job is null or job like any($5))
       and ($6::text[] is null or severity = any($6))
     order by id desc limit $7
"""


async def listing(conn: Connection, chosen: Filter, *, before: int | None, limit: int) -> list[AlertView]:
    """The newest first."""
    rows = await readable(
        conn, _LIST, before, chosen.state, chosen.rule, chosen.subject, chosen.job, chosen.severity, limit
    )
    return views(AlertView, rows, json=("details",))


async def find(conn: Connection, id: int) -> AlertView | None:
    rows = await readable(conn, f"select {_VIEW} from mainspring.alert where id = $1", id)
    return next(iter(views(AlertView, rows, json=("details",))), None)


async def counts(conn: Connection) -> dict[tuple[str, str], int]:
    """How many alerts of each enabled rule are pending, and how many fire; none is a 0."""
    rows = await conn.fetch("""
        select r.name, s.state, count(a.id)
          from mainspring.alert_rule r cross join unnest(array['pending', 'firing']) as s(state)
          left join mainspring.alert a on a.rule = r.name and a.state = s.state
         where r.enabled group by 1, 2 order by 1, 2
    """)
    return {(rule, state): count for rule, state, count in rows}


async def changed(conn: Connection, since: datetime) -> list[tuple[int, datetime, str | None]]:
    """Those that changed at an instant or after it: id, when, and the job that each is about."""
    rows = await conn.fetch(
        "select id, changed_at, job from mainspring.alert where changed_at >= $1 order by changed_at desc limit 1000",
        since,
    )
    return [(row["id"], row["changed_at"], row["job"]) for row in rows]
