"""Alert rules as they are stored, and what the leader keeps of each: how far it has looked, when it told.

Next: store/alerts/alerts.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.model.alerts.rules import AlertRuleSpec, Severity
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import Batch, affected, views


class StoredRule(msgspec.Struct, frozen=True):
    name: str
    kind: str
    names: list[str]
    parameters: dict[str, Any] | None  # None: written by SQL, and not readable
    hold: float  # seconds
    severity: Severity
    channels: list[str]
    repeat: float | None  # seconds
    calendar: str | None
    timezone: str
    enabled: bool
    is_builtin: bool
    version: int
    looked_to: datetime | None
    evaluated_at: datetime | None
    told_at: datetime | None
    problem: str | None

    @property
    def spec(self) -> AlertRuleSpec:
        return AlertRuleSpec(
            kind=self.kind,
            names=self.names,
            parameters=self.parameters or {},
            hold=self.hold,
            severity=self.severity,
            channels=self.channels,
            repeat=self.repeat,
            calendar=self.calendar,
            tz=self.timezone,
            enabled=self.enabled,
        )


_COLUMNS = """
    name, kind, names, parameters, extract(epoch from hold)::float8 as hold, severity, channels,
    extract(epoch from repeat)::float8 as repeat, calendar, timezone, enabled, is_builtin, version, looked_to,
    evaluated_at, told_at, problem
"""
_LIST = f"""
    select {_COLUMNS} from mainspring.alert_rule where $1::text is null or name > $1 order by name limit $2
"""
_ENABLED = f"""
    select {_COLUMNS},
           array(select a.subject from mainspring.alert a where a.rule = r.name and a.state <> 'resolved') as open,
           exists (select from mainspring.alert a where a.rule = r.name and a.untold_since is not null) as is_untold
      from mainspring.alert_rule r where enabled order by name
"""
_ONE = f"select {_COLUMNS} from mainspring.alert_rule where name = $1"


async def listing(conn: Connection, *, after: str | None = None, limit: int = 1_000_000) -> Batch[StoredRule]:
    """Rules by name."""
    rows = await conn.fetch(_LIST, after, limit)
    found = views(StoredRule, rows, json=("parameters",))
    return Batch(found, rows[-1]["name"] if len(rows) == limit else None)


async def find(conn: Connection, name: str, *, lock: bool = False) -> StoredRule | None:
    found = await conn.fetch(f"{_ONE} for update" if lock else _ONE, name)
    return next(iter(views(StoredRule, found, json=("parameters",))), None)


# A rule that is enabled begins with what happens from then on.
_PUT = """
    insert into mainspring.alert_rule as r
        (name, kind, names, parameters, hold, severity, channels, repeat, calendar, timezone, enabled)
    values ($1, $2, $3, $4::jsonb, $5, $6, $7, $8, $9, $10, $11)
    on conflict (name) do update
       set kind = excluded.kind, names = excluded.names, parameters = excluded.parameters, hold = excluded.hold,
           severity = excluded.severity, channels = excluded.channels, repeat = excluded.repeat,
           calendar = excluded.calendar, timezone = excluded.timezone, enabled = excluded.enabled,
           version = r.version + 1, updated_at = mainspring.now(), problem = null,
           looked_to = case when r.enabled and r.kind = excluded.kind then r.looked_to end
"""


async def put(conn: Connection, name: str, spec: AlertRuleSpec) -> None:
    """Create a rule, or give it this spec, which has been checked."""
    assert isinstance(spec.hold, float)
    assert not isinstance(spec.repeat, str)
    await conn.execute(
        _PUT,
        name,
        spec.kind,
        spec.names,
        msgspec.json.encode(spec.parameters).decode(),
        timedelta(seconds=spec.hold),
        spec.severity,
        spec.channels,
        None if spec.repeat is None else timedelta(seconds=spec.repeat),
        spec.calendar,
        spec.tz,
        spec.enabled,
    )


async def delete(conn: Connection, name: str) -> bool:
    return bool(affected(await conn.execute("delete from mainspring.alert_rule where name = $1", name)))


async def using_calendar(conn: Connection, calendar: str) -> list[str]:
    """The rules that are quiet on the days of a calendar."""
    rows = await conn.fetch("select name from mainspring.alert_rule where calendar = $1 order by name", calendar)
    return [row["name"] for row in rows]


# ── for the leader ──────────────────────────────────────────────────────────────────────────────


class ActiveRule(StoredRule, frozen=True, kw_only=True):
    open: list[str]  # the subjects of its alerts that are pending or fire
    is_untold: bool  # something of it is to be told


async def enabled(conn: Connection) -> list[ActiveRule]:
    """All rules that are looked at."""
    return views(ActiveRule, await conn.fetch(_ENABLED), json=("parameters",))


async def lock(conn: Connection, rule: StoredRule, at: datetime) -> bool:
    """Hold the rule until the caller's transaction ends, if nothing has changed since it was read.

    False: it was edited, or another leader has found the same, or something later.
    """
    return bool(
        await conn.fetch(
            """select from mainspring.alert_rule
                where name = $1 and version = $2 and enabled and looked_to is not distinct from $3
                  and (evaluated_at is null or evaluated_at < $4 or evaluated_at > $4 + interval '1 minute')
                  for update skip locked""",
            rule.name,
            rule.version,
            rule.looked_to,
            at,
        )
    )


# What was read is the guard: a leader that was late must not lead another one back.
_EVALUATED = """
    update mainspring.alert_rule r set evaluated_at = $5, looked_to = given.looked_to, problem = null
      from unnest($1::text[], $2::integer[], $3::timestamptz[], $4::timestamptz[])
        as given(name, version, was, looked_to)
     where r.name = given.name and r.version = given.version and r.looked_to is not distinct from given.was
"""


async def evaluated(conn: Connection, done: Sequence[tuple[StoredRule, datetime | None]], at: datetime) -> None:
    """Note that rules were evaluated; of events, up to which instant. None: it has none."""
    await conn.execute(
        _EVALUATED,
        [rule.name for rule, _ in done],
        [rule.version for rule, _ in done],
        [rule.looked_to for rule, _ in done],
        [looked_to for _, looked_to in done],
        at,
    )


async def told(conn: Connection, name: str, at: datetime) -> None:
    await conn.execute("update mainspring.alert_rule set told_at = $2 where name = $1", name, at)


async def failed(conn: Connection, name: str, version: int, problem: str) -> None:
    """Note why a rule could not be evaluated. Each reason once."""
    await conn.execute(
        """update mainspring.alert_rule set problem = $3
            where name = $1 and version = $2 and problem is distinct from $3""",
        name,
        version,
        problem[:500],
    )


class Clock(msgspec.Struct, frozen=True):
    now: datetime
    settled: datetime  # what was recorded up to here can be seen


# A row is written at an instant and seen from its commit on. So a look at events ends before the oldest transaction
# that has written something. One of ours does not stay open for a minute; those of others that do say nothing.
_CLOCK = """
    select now, now - interval '1 second' - coalesce((
               select max(clock_timestamp() - a.xact_start) from pg_stat_activity a
                where a.datname = current_database() and a.backend_xid is not null and a.pid <> pg_backend_pid()
                  and a.xact_start > clock_timestamp() - interval '1 minute'
           ), '0') as settled
      from (select mainspring.now() as now) clock
"""


async def clock(conn: Connection) -> Clock:
    return views(Clock, await conn.fetch(_CLOCK))[0]
