"""`mainspring alert rules` and `mainspring alert rule set | show | delete | test`

Next: operations/alerting/alert_rules.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.alerts.alerts import SEVERITIES, alert
from mainspring.cli.base import Client, Group, examples, operation
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of, pairs
from mainspring.cli.render import confirm, counted, fields, note, print_if_json, table
from mainspring.errors import AlertRuleNotFound, ValidationError

if TYPE_CHECKING:
    from mainspring.model.alerts.rules import AlertRuleSpec


@operation("rules", "mainspring alert rules", "mainspring alert rules --json | jq '.[].name'")
async def list_rules(client: Client) -> None:
    """Show what is looked for, and who is told."""
    found = await client.every(operations.alert_rules.listing)
    if print_if_json(found):
        return
    table(
        ["NAME", "KIND", "NAMES", "FOR", "SEVERITY", "CHANNELS", "ENABLED", "PROBLEM"],
        [
            [
                *(rule.name, _told(rule.spec), ", ".join(rule.spec.names) or None, _duration(rule.spec.hold)),
                *(rule.spec.severity, ", ".join(rule.spec.channels) or "all", rule.spec.enabled, rule.problem),
            ]
            for rule in found
        ],
        empty="no rules; `mainspring alert rule set NAME --kind KIND` makes one",
        room=Room(fold=("PROBLEM",), cut=("NAMES", "CHANNELS"), drop=("PROBLEM", "CHANNELS", "NAMES")),
    )


def _told(spec: AlertRuleSpec) -> str:
    given = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                      for name, value in spec.parameters.items())  # fmt: skip
    return f"{spec.kind} ({given})" if given else spec.kind


def _duration(seconds: Any) -> str | None:
    from mainspring.model.words.durations import compact

    return compact(seconds) if seconds else None


@click.group(
    "rule", cls=Group, epilog=examples("mainspring alert rule set report-fails --kind failing --name 'report*'")
)
def alert_rule() -> None:
    """Make, change, delete and try the rules of alerts."""


@alert_rule.operation(
    "set",
    "mainspring alert rule set report-fails --kind failing --name 'report*' -p count=3",
    "mainspring alert rule set slow --kind late -p after=30s --severity critical --channel ops",
    "mainspring alert rule set no-agents --for 5m --repeat 1h     changes what is given, keeps the rest",
    "mainspring alert rule set clock-skew --disable",
)
@click.argument("name", type=name_of("rule"))
@click.option("--kind", metavar="KIND", help="What it looks for; a new rule needs one. The manual has them all.")
@click.option("--name", "names", multiple=True, metavar="PATTERN", help="Only these jobs, schedules …; repeatable.")
@click.option("-p", "--param", multiple=True, metavar="NAME=VALUE", help="A parameter of its kind; repeatable.")
@click.option("--for", "hold", metavar="DURATION", help="How long it must last before it fires.")
@click.option("--severity", type=click.Choice(SEVERITIES), help="How bad it is.")
@click.option("--channel", "channels", multiple=True, metavar="NAME", help="Whom to tell; repeatable, * is all.")
@click.option("--repeat", metavar="DURATION", help="Tell again so often, while it fires; off: once.")
@click.option("--calendar", metavar="NAME", help="Quiet on the days of this calendar; off: on none.")
@click.option("--tz", metavar="ZONE", help="Where those are days; UTC.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether it is looked at.")
async def set_rule(client: Client, /, name: str, **given: Any) -> None:
    """Make a rule, or change what is given of it."""
    change = _change(**given)
    try:
        changed = await client.call(operations.alert_rules.edit, name, change)
    except AlertRuleNotFound:
        from mainspring.model.alerts.rules import read_rule

        if "kind" not in change:
            raise ValidationError(f"--kind: missing; there is no rule {name!r} yet, so say what it looks for",
                                  field="kind") from None  # fmt: skip
        spec = read_rule({member: value for member, value in change.items() if value is not None})
        changed = await client.call(operations.alert_rules.put, name, spec, replace=False)
    confirm(changed, "made" if changed.created else "changed" if changed.changed else "it is so already")


def _change(
    *,
    kind: str | None,
    names: tuple[str, ...],
    param: tuple[str, ...],
    hold: str | None,
    severity: str | None,
    channels: tuple[str, ...],
    repeat: str | None,
    calendar: str | None,
    tz: str | None,
    enabled: bool | None,
) -> dict[str, Any]:
    """What was typed, as a merge patch."""
    plain = {"kind": kind, "for": hold, "severity": severity, "tz": tz, "enabled": enabled}
    change: dict[str, Any] = {member: value for member, value in plain.items() if value is not None}
    if names:
        change["names"] = [] if names == ("*",) else list(names)
    if channels:
        change["channels"] = [] if channels == ("*",) else list(channels)
    if param:
        change["parameters"] = {name: _value(text) for name, text in pairs(param, field="param").items()}
    for member, value in (("repeat", repeat), ("calendar", calendar)):
        if value is not None:
            change[member] = None if value == "off" else value
    return change


def _value(text: str) -> Any:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


@alert_rule.operation("show", "mainspring alert rule show no-agents")
@click.argument("name", type=name_of("rule"))
async def show_rule(client: Client, name: str) -> None:
    """Show all about one rule."""
    found = await client.call(operations.alert_rules.show, name)
    if print_if_json(found):
        return
    spec = found.spec
    fields(
        {
            "name": name,
            "kind": spec.kind,
            "names": "\n".join(spec.names) or None,
            "parameters": spec.parameters or None,
            "for": _duration(spec.hold),
            "severity": spec.severity,
            "channels": "\n".join(spec.channels) or "all",
            "repeat": _duration(spec.repeat),
            "quiet on": f"{spec.calendar} ({spec.tz})" if spec.calendar else None,
            "enabled": spec.enabled,
            "built in": found.is_builtin,
            "version": found.version,
            "evaluated": found.evaluated_at,
            "told": found.told_at,
            "problem": found.problem,
        }
    )


@alert_rule.operation("delete", "mainspring alert rule delete slow")
@click.argument("name", type=name_of("rule"))
async def delete_rule(client: Client, name: str) -> None:
    """Remove a rule; what it found is closed without a word."""
    await client.call(operations.alert_rules.delete, name)
    confirm({"name": name, "deleted": True}, "deleted")


@alert_rule.operation("test", "mainspring alert rule test failed --since 24h")
@click.argument("name", type=name_of("rule"))
@click.option("--since", default="1h", show_default=True, metavar="DURATION", help="How far back to look for events.")
async def test_rule(client: Client, name: str, since: str) -> None:
    """Show what a rule would find now; nothing is told."""
    found = await client.call(operations.alert_rules.evaluate, name, since=since)
    if print_if_json(found):
        return
    table(
        ["SUBJECT", "SINCE", "COUNT", "WHAT"],
        [[one.subject, one.since, one.count, one.message] for one in found.findings],
        empty="it finds nothing",
        room=Room(fold=("WHAT",), cut=("SUBJECT",), drop=("COUNT",)),
    )
    if found.findings:
        note(counted(len(found.findings), "subject"))


for command in (list_rules, alert_rule):
    alert.add_command(command)
