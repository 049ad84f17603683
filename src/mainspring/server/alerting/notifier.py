"""Notifier: write the messages of a rule that are due.

What comes within GROUPED goes into one message, and a rule has at most one message in EVERY. What is muted, or comes on
a quiet day, waits: a condition is sent when the mute ends, if it still fires; an event is not sent at all.
Writes  store.alerts.deliveries   (one for each channel)
        store.alerts.alerts       (what they tell), in the caller's transaction
Next:   server/alerting/sender.py
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

import msgspec

from mainspring.model.alerts.messages import compose
from mainspring.model.alerts.mutes import is_muted, is_quiet
from mainspring.store.alerts import alerts, channels, deliveries, mutes, rules
from mainspring.store.alerts.alerts import Untold
from mainspring.store.alerts.rules import StoredRule
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars

GROUPED = timedelta(seconds=30)
EVERY = timedelta(minutes=1)


async def notify(conn: Connection, rule: StoredRule, at: datetime) -> bool:
    """Write the message of a rule, whose row the caller has locked, if one is due; returns whether it was."""
    found = await alerts.take(conn, rule.name, at, rule.repeat)
    if not found:
        return False
    found = await _heard(conn, rule, at, found)
    if not found or not is_ready(found, rule.told_at, at):
        return False
    to = await channels.names(conn, rule.channels)
    if not to:
        return False  # it stays untold, until there is a channel
    installation = str(await conn.fetchval("select id from mainspring.installation"))
    made = []
    for channel in to:
        id = uuid4()
        message = compose(
            str(id), at, installation, rule.name, rule.kind, rule.severity, [alert.as_told() for alert in found]
        )
        made.append(deliveries.New(id, channel, msgspec.json.encode(message).decode()))
    await deliveries.add(conn, rule.name, made, at)
    await alerts.told(conn, [alert.id for alert in found], at)
    await rules.told(conn, rule.name, at)
    return True


def is_ready(found: list[Untold], told_at: datetime | None, at: datetime) -> bool:
    """Whether a message may be made: it has waited for others, and the last one was long enough ago."""
    if told_at is not None and at - EVERY < told_at <= at:
        return False
    return any(alert.untold_since is None or not at - GROUPED < alert.untold_since <= at for alert in found)


async def _heard(conn: Connection, rule: StoredRule, at: datetime, found: list[Untold]) -> list[Untold]:
    """Those that are not muted. An alert that is over before its message would be sent is dropped."""
    days = None if rule.calendar is None else await calendars.days(conn, rule.calendar)
    quiet = days is not None and is_quiet(days, rule.timezone, at)
    active = await mutes.active(conn)
    muted = [alert for alert in found if quiet or is_muted(active, rule.name, alert.subject)]
    gone = [alert.id for alert in muted if alert.is_event or (alert.state == "resolved" and alert.told is None)]
    if gone:
        await alerts.forget(conn, gone)
    silent = {alert.id for alert in muted}
    return [alert for alert in found if alert.id not in silent]
