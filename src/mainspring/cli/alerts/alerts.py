"""`mainspring alert list | show | messages | mute | unmute | mutes`

Next: cli/alerts/rules.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole
from mainspring.cli.render import confirm, counted, fields, note, print_if_json, table
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.model.alerts.rules import Severity
    from mainspring.operations.alerting.alerts import State

STATES = ("pending", "firing", "resolved")
SEVERITIES = ("info", "warning", "critical")


@click.group(
    cls=Group,
    epilog=examples(
        "mainspring alert list                          what is wrong now",
        "mainspring alert rules                         what is looked for",
        "mainspring channel set ops https://hooks.example/alerts    whom to tell",
        "mainspring alert mute --rule no-agents --for 2h 'new hosts'",
    ),
)
def alert() -> None:
    """See what is wrong, and say who is to be told."""


@alert.operation(
    "list",
    "mainspring alert list                                what is wrong now",
    "mainspring alert list --all --subject 'job:report*'  also what is over",
)
@click.option("--state", type=click.Choice(STATES), multiple=True, help="In this state; repeatable.")
@click.option("--rule", multiple=True, metavar="PATTERN", help="Of these rules; repeatable.")
@click.option("--subject", multiple=True, metavar="PATTERN", help="About these subjects, as job:report; repeatable.")
@click.option("--severity", type=click.Choice(SEVERITIES), multiple=True, help="Of this severity; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@click.option("--limit", type=Whole(1, 500), default=50, show_default=True, help="At most so many.")
async def list_alerts(
    client: Client,
    state: Sequence[State],
    rule: tuple[str, ...],
    subject: tuple[str, ...],
    severity: Sequence[Severity],
    everything: bool,
    limit: int,
) -> None:
    """Show alerts, the newest first."""
    wanted: Sequence[State] = state or (() if everything else ("pending", "firing"))
    page = await client.call(
        operations.alerts.listing, state=wanted, rule=rule, subject=subject, severity=severity, limit=limit
    )
    if print_if_json(page.items):
        return
    table(
        ["ID", "STATE", "SEVERITY", "RULE", "SUBJECT", "SINCE", "TOLD", "COUNT", "WHAT"],
        [
            [one.id, one.state, one.severity, one.rule, one.subject, one.since, one.told_at, one.count, one.message]
            for one in page.items
        ],
        empty="no alerts" if everything or state else "nothing is wrong that a rule looks for; --all shows what was",
        room=Room(fold=("WHAT",), cut=("SUBJECT", "RULE"), drop=("COUNT", "TOLD", "SEVERITY")),
    )
    if page.next is not None:
        note(f"more than {counted(limit, 'alert')}; --limit shows more")


@alert.operation("show", "mainspring alert show 17")
@click.argument("id", type=Whole(1, 2**53 - 1))
async def show_alert(client: Client, id: int) -> None:
    """Show all about one alert."""
    one = await client.call(operations.alerts.show, id)
    if print_if_json(one):
        return
    fields(
        {
            "id": one.id,
            "state": one.state,
            "severity": one.severity,
            "rule": f"{one.rule} ({one.kind})",
            "subject": one.subject,
            "message": one.message,
            "since": one.since,
            "fired": one.fired_at,
            "told": one.told_at,
            "resolved": one.resolved_at,
            "count": one.count if one.is_event else None,
            "details": one.details or None,
        }
    )


@alert.operation("messages", "mainspring alert messages --channel ops")
@click.option("--channel", multiple=True, metavar="NAME", help="To this channel; may have *, repeatable.")
@click.option("--limit", type=Whole(1, 500), default=20, show_default=True, help="At most so many.")
async def list_messages(client: Client, channel: tuple[str, ...], limit: int) -> None:
    """Show what was told, the newest first, and whether it arrived."""
    page = await client.call(operations.alerts.list_deliveries, channel=channel, limit=limit)
    if print_if_json(page.items):
        return
    table(
        ["CREATED", "CHANNEL", "STATE", "TRIES", "TITLE", "ERROR", "ID"],
        [[d.created_at, d.channel, d.state, d.attempts, d.title, d.last_error, d.id] for d in page.items],
        empty="nothing was told yet",
        room=Room(fold=("ERROR",), cut=("TITLE", "CHANNEL"), drop=("ID", "TRIES")),
    )


# ── mutes ───────────────────────────────────────────────────────────────────────────────────────


@alert.operation(
    "mute",
    "mainspring alert mute --rule no-agents --for 2h 'new hosts'",
    "mainspring alert mute --subject 'job:report*' --until 2026-12-01T08:00:00Z 'known, ticket 17'",
)
@click.argument("note_text", metavar="NOTE")
@click.option("--rule", multiple=True, metavar="PATTERN", help="These rules; repeatable, * is all.")
@click.option("--subject", multiple=True, metavar="PATTERN", help="These subjects, as job:report*; repeatable.")
@click.option("--for", "duration", metavar="DURATION", help="For so long; 1h without it and --until.")
@click.option("--until", metavar="INSTANT", help="Until this instant.")
async def mute(
    client: Client,
    note_text: str,
    rule: tuple[str, ...],
    subject: tuple[str, ...],
    duration: str | None,
    until: str | None,
) -> None:
    """Tell nothing of some rules or subjects for a while; NOTE says why."""
    from mainspring.cli.parse import due_at

    end = due_at(until, None)
    made = await client.call(
        operations.mutes.create,
        note_text,
        rules=rule,
        subjects=subject,
        until=end,
        duration=duration or ("1h" if end is None else None),
    )
    confirm(made, f"muted until {instant_text(made.until, 'seconds')}; `mainspring alert unmute {made.id}` ends it")


@alert.operation("unmute", "mainspring alert unmute 3")
@click.argument("id", type=Whole(1, 2**31 - 1))
async def unmute(client: Client, id: int) -> None:
    """End a mute; what still fires is told."""
    ended = await client.call(operations.mutes.delete, id)
    confirm(ended, "ended")


@alert.operation("mutes", "mainspring alert mutes")
async def list_mutes(client: Client) -> None:
    """Show the mutes in force."""
    found = await client.call(operations.mutes.listing)
    if print_if_json(found):
        return
    table(
        ["ID", "RULES", "SUBJECTS", "UNTIL", "NOTE", "BY"],
        [[m.id, ", ".join(m.rules) or "*", ", ".join(m.subjects) or "*", m.until, m.note, m.created_by] for m in found],
        empty="nothing is muted",
        room=Room(fold=("NOTE",), cut=("RULES", "SUBJECTS"), drop=("BY",)),
    )
