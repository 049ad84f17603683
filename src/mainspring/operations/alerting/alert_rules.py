"""Alert rules: list, show, put, edit, delete; and what one would find now.

Next: store/alerts/rules.py
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import FieldInfo, fields

from mainspring.errors import AlertRuleNotFound, CalendarNotFound, ChannelNotFound, NameTaken, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.alerts.findings import Finding, Look
from mainspring.model.alerts.kinds import KINDS
from mainspring.model.alerts.rules import AlertRuleSpec, checked, is_duration, read_parameters, read_rule
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.globs import like
from mainspring.model.words.merge_patch import merge_patch
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.alerting.kinds import FIND
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, reach
from mainspring.operations.parts.by_name import check_version
from mainspring.store.access import audit
from mainspring.store.alerts import alerts, channels, rules
from mainspring.store.alerts.rules import StoredRule
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars

WITHIN = 2.0  # seconds for a statement of a test
LONGEST_TEST = 86400.0  # seconds of the past that a test looks at


class AlertRuleView(msgspec.Struct, frozen=True):
    name: str
    version: int
    spec: AlertRuleSpec
    is_builtin: bool
    is_event: bool  # it finds what happened; else what lasts
    evaluated_at: datetime | None
    told_at: datetime | None  # the last message
    problem: str | None  # why it could not be evaluated the last time
    namespace: str = "default"


class AlertRuleChange(msgspec.Struct, frozen=True):
    rule: AlertRuleView
    changed: bool
    created: bool


class AlertRuleTest(msgspec.Struct, frozen=True):
    """What a rule finds now; of events, what it finds since an instant."""

    rule: str
    since: datetime | None
    until: datetime
    findings: list[Finding]


class KindParameter(msgspec.Struct, frozen=True):
    name: str
    is_duration: bool  # seconds, or text such as 10m
    default: Any


class AlertKind(msgspec.Struct, frozen=True):
    """What rules can look for."""

    kind: str
    help: str
    about: str  # what `names` of a rule select: jobs, schedules, agents, servers, daemons; "": nothing, it has none
    is_event: bool  # it finds what happened; else what lasts
    parameters: list[KindParameter]


async def kinds(conn: Connection | None, actor: Actor) -> list[AlertKind]:
    """What alert rules can look for, and the parameters of each kind. Touches no database."""
    return [
        AlertKind(name, kind.help, kind.about, kind.is_event, [_parameter(one) for one in fields(kind.parameters)])
        for name, kind in KINDS.items()
    ]


def _parameter(field: FieldInfo) -> KindParameter:
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return KindParameter(field.name, is_duration(field.type), default)


async def listing(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[AlertRuleView]:
    """Alert rules by name; those that can find something of a job within reach, or something that is of all jobs."""
    found = await by_name.page(
        lambda after, count: rules.listing(conn, after=after, limit=count),
        lambda rule: rule.name,
        lambda rule: _is_within_reach(actor, rule),
        filters={"list": "alert rules"},
        cursor=cursor,
        limit=limit,
    )
    return Page([_view(rule) for rule in found.items], found.next)


async def show(conn: Connection, actor: Actor, name: str) -> AlertRuleView:
    """One alert rule."""
    return _view(await _find_within_reach(conn, actor, name))


async def put(
    conn: Connection, actor: Actor, name: str, spec: AlertRuleSpec, *, replace: bool = True, version: int | None = None
) -> AlertRuleChange:
    """Make an alert rule, or change it into this one.

    With `version`, only the rule that has this version is changed; without `replace`, none is.
    """
    _check_reach(actor)
    check_path_name(name, field="name")
    wanted = checked(spec)
    async with conn.transaction():
        present = await rules.find(conn, name, lock=True)
        if present is None and version is not None:
            raise _not_found(name)
        if present is not None:
            check_version("alert rule", name, present.version, version)
            if not replace:
                raise NameTaken(f"there is an alert rule named {name!r}", field="name")
        return await _put(conn, actor, name, present, wanted)


async def edit(
    conn: Connection, actor: Actor, name: str, change: dict[str, Any], *, version: int | None = None
) -> AlertRuleChange:
    """Apply a JSON merge patch (RFC 7396) to an alert rule: null resets a member to its default."""
    _check_reach(actor)
    async with conn.transaction():
        present = await _find(conn, name, lock=True)
        check_version("alert rule", name, present.version, version)
        before = msgspec.to_builtins(present.spec)
        if change.get("kind") not in (None, present.kind):
            before.pop("parameters", None)  # those of another kind
        return await _put(conn, actor, name, present, checked(read_rule(merge_patch(before, change))))


async def _put(
    conn: Connection, actor: Actor, name: str, present: StoredRule | None, wanted: AlertRuleSpec
) -> AlertRuleChange:
    """Write a rule that the caller has checked and, if there is one, locked."""
    changed = present is None or present.spec != wanted
    if changed:
        await _check_named(conn, wanted)
        await rules.put(conn, name, wanted)
        if present is not None and (not wanted.enabled or present.kind != wanted.kind):
            await alerts.end(conn, name)
        action = "alert_rule.create" if present is None else "alert_rule.change"
        await audit.changed(conn, actor, action, f"alert_rule:{name}", present and present.spec, wanted)
        await channels.hint(conn)
    return AlertRuleChange(_view(await _find(conn, name)), changed=changed, created=present is None)


async def _check_named(conn: Connection, wanted: AlertRuleSpec) -> None:
    for channel in wanted.channels:
        if await channels.find(conn, channel) is None:
            raise ChannelNotFound(
                f"no channel named {channel!r}; `mainspring channel list` shows what there is", field="channels"
            )
    if wanted.calendar is not None and await calendars.days(conn, wanted.calendar) is None:
        raise CalendarNotFound(
            f"no calendar named {wanted.calendar!r}; `mainspring schedule calendar list` shows what there is",
            field="calendar",
        )


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Remove an alert rule; what it found is closed without a word."""
    _check_reach(actor)
    async with conn.transaction():
        present = await _find(conn, name, lock=True)
        check_version("alert rule", name, present.version, version)
        await rules.delete(conn, name)
        await alerts.end(conn, name)
        await audit.changed(conn, actor, "alert_rule.delete", f"alert_rule:{name}", present.spec, None)


async def evaluate(conn: Connection, actor: Actor, name: str, *, since: Duration = 3600.0) -> AlertRuleTest:
    """What an alert rule finds now, of events within so long; nothing is noted or told."""
    rule = await _find_within_reach(conn, actor, name)
    if rule.kind not in FIND:
        raise ValidationError(f"kind: no server of this version evaluates rules of kind {rule.kind}", field="kind")
    back = min(seconds(since, field="since"), LONGEST_TEST)
    parameters = read_parameters(rule.kind, rule.parameters or {})
    is_event = KINDS[rule.kind].is_event
    async with conn.transaction():
        await conn.execute(f"set local statement_timeout = {WITHIN * 1000:.0f}; set local enable_seqscan = off")
        until: datetime = await conn.fetchval("select mainspring.now()")
        look = Look(like(rule.names, field="names"), parameters, until - timedelta(seconds=back), until)
        found = await FIND[rule.kind](conn, look)
    seen = [one for one in found.findings if one.job is None or actor.reaches(one.job)]
    return AlertRuleTest(name, look.since if is_event else None, until, seen)


def _check_reach(actor: Actor) -> None:
    reach.check_all(actor, "alert rules are about what happens to tasks")


def _is_within_reach(actor: Actor, rule: StoredRule) -> bool:
    """A schedule has a name of its own, which says nothing of its job: rules that name some are not shown."""
    about = KINDS[rule.kind].about if rule.kind in KINDS else ""
    if about in ("schedules", "daemons"):
        return not actor.jobs or not rule.names or "*" in rule.names
    return about != "jobs" or reach.concerns(actor, rule.names or ())


async def _find_within_reach(conn: Connection, actor: Actor, name: str) -> StoredRule:
    found = await _find(conn, name)
    if not _is_within_reach(actor, found):
        raise _not_found(name)
    return found


async def _find(conn: Connection, name: str, *, lock: bool = False) -> StoredRule:
    found = await rules.find(conn, check_path_name(name, field="rule"), lock=lock)
    if found is None:
        raise _not_found(name)
    return found


def _not_found(name: str) -> AlertRuleNotFound:
    return AlertRuleNotFound(
        f"no alert rule named {name!r}; `mainspring alert rules` shows what there is", field="rule"
    )


def _view(rule: StoredRule) -> AlertRuleView:
    kind = KINDS.get(rule.kind)
    return AlertRuleView(
        rule.name,
        rule.version,
        rule.spec,
        rule.is_builtin,
        kind is not None and kind.is_event,
        rule.evaluated_at,
        rule.told_at,
        rule.problem,
    )
