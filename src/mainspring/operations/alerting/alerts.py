"""Alerts: what rules have found, and the messages about it.

Next: store/alerts/alerts.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from mainspring.errors import AlertRuleNotFound, ChannelNotFound, NotFound
from mainspring.model.access.actors import Actor
from mainspring.model.alerts.rules import Severity
from mainspring.model.words.globs import covering, like, several
from mainspring.operations import pages
from mainspring.operations.alerting import alert_rules
from mainspring.operations.pages import Page
from mainspring.store.alerts import alerts, channels, deliveries
from mainspring.store.alerts.alerts import AlertView, Filter
from mainspring.store.alerts.deliveries import DeliveryView
from mainspring.store.postgres.connection import Connection

State = Literal["pending", "firing", "resolved"]


async def listing(
    conn: Connection,
    actor: Actor,
    *,
    state: Sequence[State] = (),
    rule: Sequence[str] = (),
    subject: Sequence[str] = (),
    severity: Sequence[Severity] = (),
    cursor: str | None = None,
    limit: int = pages.LIMIT,
) -> Page[AlertView]:
    """Alerts, the newest first. Rules and subjects may have `*`, as `job:report*`.

    A rule without it that neither exists nor has alerts is an error.
    """
    given = {"state": list(state), "rule": list(rule), "subject": list(subject), "severity": list(severity)}
    filters = {"list": "alerts", **given}
    chosen = Filter(
        state=list(state) or None,
        rule=like(rule, field="rule"),
        subject=like(subject, field="subject"),
        job=covering(actor.jobs),
        severity=list(severity) or None,
    )
    for name in rule:
        if "*" not in name:
            await _check_rule(conn, actor, name)
    found: list[AlertView] = []
    before = pages.position(cursor, filters, int)
    pages.check_limit(limit)
    while len(found) <= limit:
        some = await alerts.listing(conn, chosen, before=before, limit=limit + 1)
        found += [one for one in some if one.job is None or actor.reaches(one.job)]
        if len(some) <= limit:
            break
        before = some[-1].id
    return pages.page(found, limit, filters, lambda one: one.id)


async def _check_rule(conn: Connection, actor: Actor, name: str) -> None:
    """A rule that was deleted is known by its alerts."""
    try:
        await alert_rules.show(conn, actor, name)
    except AlertRuleNotFound:
        known = Filter(rule=like([name], field="rule"), job=covering(actor.jobs))
        if not await alerts.listing(conn, known, before=None, limit=1):
            raise


async def show(conn: Connection, actor: Actor, id: int) -> AlertView:
    """One alert, whatever its state."""
    found = await alerts.find(conn, id)
    if found is None or (found.job is not None and not actor.reaches(found.job)):
        raise NotFound(f"no alert {id}; `mainspring alert list` shows those that there are", field="id")
    return found


async def list_deliveries(
    conn: Connection,
    actor: Actor,
    *,
    channel: Sequence[str] = (),
    state: Sequence[deliveries.State] = (),
    cursor: str | None = None,
    limit: int = pages.LIMIT,
) -> Page[DeliveryView]:
    """Messages to channels, the newest first; without what they say, and their titles only for who reaches all jobs.

    Channels may have `*`; one without it that neither exists nor has messages is an error.
    """
    names = several(channel)
    patterns = like(names, field="channel")
    for name in names:
        if "*" not in name and await channels.find(conn, name) is None and not await deliveries.named(conn, name):
            raise ChannelNotFound(
                f"no channel named {name!r}; `mainspring channel list` shows what there is", field="channel"
            )
    filters = {"list": "deliveries", "channel": names, "state": list(state)}
    before = pages.position(cursor, filters, tuple[datetime, UUID])
    limit = pages.check_limit(limit)
    found = await deliveries.listing(conn, channel=patterns, state=list(state) or None, before=before, limit=limit + 1)
    shown = [_within_reach(actor, one) for one in found]
    return pages.page(shown, limit, filters, lambda one: (one.created_at, one.id))


async def show_delivery(conn: Connection, actor: Actor, id: UUID) -> DeliveryView:
    """One message: whether the receiver has taken it."""
    found = await deliveries.find(conn, id)
    if found is None:
        raise NotFound(f"no message {id}; old ones are deleted after a week", field="id")
    return _within_reach(actor, found)


def _within_reach(actor: Actor, delivery: DeliveryView) -> DeliveryView:
    """A title names jobs, and counts what happened to all of them."""
    return msgspec.structs.replace(delivery, title=None) if actor.jobs else delivery
