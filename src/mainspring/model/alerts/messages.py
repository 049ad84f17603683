"""Messages: what a channel gets. As JSON for a webhook, as text for what speaks the format of Slack.

A webhook's body is signed with the secret of its channel: HMAC-SHA256 over the time, a dot and the body, so that a body
cannot be sent again at another time. docs/how-to/alerts.md shows how a receiver checks it.
Next: store/alerts/deliveries.py
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

import msgspec

from mainspring.model.alerts.rules import Severity

ALERTS = 100  # in one message; the others are counted
EVENTS = 1000  # in one message, of all its alerts; the others are counted
LINES = 20  # of a message as text
LONGEST_TEXT = 3500  # characters; Slack cuts at 4,000

Kind = Literal["webhook", "slack"]
State = Literal["firing", "resolved", "test"]


class Told(msgspec.Struct, frozen=True):
    """An alert in a message."""

    id: int
    state: Literal["firing", "resolved"]
    subject: str
    message: str
    since: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    count: int  # events so far
    new: int  # of those, the ones that no message had before
    events: list[Any]  # the first of the new ones
    details: dict[str, Any]


class More(msgspec.Struct, frozen=True):
    """What did not fit."""

    alerts: int
    events: int


class Message(msgspec.Struct, frozen=True):
    id: str  # of the delivery: the same however often it is sent
    at: datetime
    state: State  # resolved: all of its alerts are
    title: str
    rule: str | None
    kind: str | None  # of the rule
    severity: Severity
    installation: str  # which database it is about
    alerts: list[Told]
    more: More


def compose(
    id: str, at: datetime, installation: str, rule: str, kind: str, severity: Severity, alerts: Sequence[Told]
) -> Message:
    """One message of all that is to be told of a rule, those that fire first."""
    ordered = sorted(alerts, key=lambda alert: (alert.state == "resolved", -alert.new, alert.id))
    shown, left = [], EVENTS
    for alert in ordered[:ALERTS]:
        shown.append(msgspec.structs.replace(alert, events=alert.events[:left]))
        left -= len(shown[-1].events)
    rest = ordered[ALERTS:]
    firing = sum(alert.state == "firing" for alert in ordered)
    return Message(
        id=id,
        at=at,
        state="firing" if firing else "resolved",
        title=_title(rule, ordered, firing),
        rule=rule,
        kind=kind,
        severity=severity,
        installation=installation,
        alerts=shown,
        more=More(len(rest), sum(alert.new for alert in rest)),
    )


def test_message(id: str, at: datetime, installation: str, channel: str) -> Message:
    return Message(
        id=id,
        at=at,
        state="test",
        title=f"test of channel {channel}: if you read this, alerts reach you",
        rule=None,
        kind=None,
        severity="info",
        installation=installation,
        alerts=[],
        more=More(0, 0),
    )


def _title(rule: str, alerts: Sequence[Told], firing: int) -> str:
    resolved = len(alerts) - firing
    if len(alerts) == 1:
        [alert] = alerts
        again = f" ({alert.new:,} new)" if alert.new > 1 else ""
        return f"{rule}: {alert.subject} {alert.state}{again}"
    counts = [f"{firing:,} firing"] * bool(firing) + [f"{resolved:,} resolved"] * bool(resolved)
    events = sum(alert.new for alert in alerts)
    told = f", {events:,} events" if events > len(alerts) else ""
    return f"{rule}: {', '.join(counts)}{told}"


# ── as it is sent ───────────────────────────────────────────────────────────────────────────────


def body(kind: Kind, message: bytes) -> bytes:
    """What is posted to a channel of this kind; `message` is a Message as JSON."""
    if kind == "webhook":
        return message
    return msgspec.json.encode({"text": as_text(msgspec.json.decode(message, type=Message))})


def as_text(message: Message) -> str:
    """In the markup of Slack, which Mattermost, Rocket.Chat and others read too."""
    mark = {"firing": ":red_circle:", "resolved": ":large_green_circle:", "test": ":information_source:"}[message.state]
    lines = [f"{mark} *{_escaped(message.title)}*" + (f" ({message.severity})" if message.state == "firing" else "")]
    for alert in message.alerts[:LINES]:
        done = "resolved: " if alert.state == "resolved" and message.state == "firing" else ""
        new = f" ({alert.new:,} new)" if alert.new > 1 else ""
        lines.append(f"• {done}{_escaped(alert.subject)}{new}: {_escaped(alert.message)}")
    left = len(message.alerts[LINES:]) + message.more.alerts
    if left:
        lines.append(f"• and {left:,} more; `mainspring alert list` shows them")
    text = "\n".join(lines)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _escaped(text: str) -> str:
    """`<!channel>` in the name of a job must not call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """The value of the header Mainspring-Signature."""
    return f"sha256={hmac.new(secret.encode(), b'%d.' % timestamp + body, sha256).hexdigest()}"
