"""Alert rules: a rule as people write it, checked.

    {"kind": "failing", "names": ["report*"], "parameters": {"count": 3}, "severity": "critical", "channels": ["ops"]}

Next: model/alerts/messages.py
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.alerts.kinds import KINDS, Parameters
from mainspring.model.words.durations import seconds
from mainspring.model.words.names import check_name
from mainspring.model.words.zones import check_zone

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

MOST_NAMES = 100  # patterns of a rule
LEAST_REPEAT = 60.0  # seconds


class AlertRuleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rule looks for, and to whom it tells it."""

    kind: str
    names: list[str] = []  # patterns with `*` of the jobs, schedules, agents … that it looks at; empty: all
    parameters: dict[str, Any] = {}  # of its kind
    hold: float | str = msgspec.field(default=0.0, name="for")  # how long a condition must last before it fires
    severity: Severity = "warning"
    channels: list[str] = []  # empty: all
    repeat: float | str | None = None  # told again after so long, while it fires
    calendar: str | None = None  # quiet on the days of this calendar,
    tz: str = "UTC"  # which are days of this zone
    enabled: bool = True


def read_rule(given: Any) -> AlertRuleSpec:
    """The spec from its JSON form; ValidationError names the member that is wrong."""
    if not isinstance(given, Mapping):
        raise ValidationError(f"rule: {shown(given)} is not an object", field="rule")
    known = [field.encode_name for field in msgspec.structs.fields(AlertRuleSpec)]
    for name in given:
        if name not in known:
            raise _unknown(str(name), known, "a rule has")
    if "kind" not in given:
        raise ValidationError(f"kind: is missing; use one of {', '.join(KINDS)}", field="kind")
    for name, of in (("severity", SEVERITIES), ("kind", tuple(KINDS))):
        if name in given and given[name] not in of:
            raise ValidationError(f"{name}: {shown(given[name])}; use {', '.join(of)}", field=name)
    try:
        return msgspec.convert(given, AlertRuleSpec)
    except msgspec.ValidationError as error:
        raise _refused(error, "") from None


def checked(spec: AlertRuleSpec) -> AlertRuleSpec:
    """The same with durations in seconds, and each value checked."""
    kind = KINDS.get(spec.kind)
    if kind is None:
        raise ValidationError(f"kind: {shown(spec.kind)}; use one of {', '.join(KINDS)}", field="kind")
    if spec.severity not in SEVERITIES:
        raise ValidationError(f"severity: {shown(spec.severity)}; use {', '.join(SEVERITIES)}", field="severity")
    if spec.names and not kind.about:
        raise ValidationError(f"names: a rule of kind {spec.kind} looks at the whole cluster; give none", field="names")
    for field in ("names", "channels"):
        if len(getattr(spec, field)) > MOST_NAMES:
            raise ValidationError(f"{field}: at most {MOST_NAMES}; use patterns with *", field=field)
    hold = seconds(spec.hold, field="for")
    if hold and kind.is_event:
        raise ValidationError(f"for: what a rule of kind {spec.kind} finds has happened, and lasts not", field="for")
    check_zone(spec.tz, field="tz")
    parameters = msgspec.to_builtins(read_parameters(spec.kind, spec.parameters))
    return msgspec.structs.replace(
        spec,
        names=[check_name(name, field="names") for name in spec.names],
        parameters={name: parameters[name] for name in spec.parameters},  # the others follow their defaults
        hold=hold,
        channels=[check_name(name, field="channels") for name in spec.channels],
        repeat=None if spec.repeat is None else seconds(spec.repeat, field="repeat", at_least=LEAST_REPEAT),
        calendar=None if spec.calendar is None else check_name(spec.calendar, field="calendar"),
    )


def read_parameters(kind: str, given: Mapping[str, Any]) -> Parameters:
    """The parameters of a kind, with its defaults for what is not given. Durations may be text."""
    wanted = KINDS[kind].parameters
    fields = {field.name: field for field in msgspec.structs.fields(wanted)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            raise _unknown(f"parameters.{name}", [f"parameters.{known}" for known in fields], f"{kind} has")
        values[name] = seconds(value, field=f"parameters.{name}") if is_duration(fields[name].type) else value
    try:
        return msgspec.convert(values, wanted)
    except msgspec.ValidationError as error:
        raise _refused(error, "parameters") from None


def is_duration(kind: Any) -> bool:
    """Whether the type of a parameter is `Seconds`."""
    found = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, msgspec.Meta)]
    return bool(found and (found[0].extra or {}).get("duration"))


def _unknown(name: str, known: list[str], has: str) -> ValidationError:
    close = get_close_matches(name, known, 1)
    meant = f"did you mean {close[0]}?" if close else f"{has} {', '.join(known) or 'none'}"
    return ValidationError(f"{name}: no such member; {meant}", field=name)


def _refused(error: msgspec.ValidationError, within: str) -> ValidationError:
    reason, _, path = str(error).partition(" - at `")
    at = ".".join(part for part in (within, path.removesuffix("`").removeprefix("$").removeprefix(".")) if part)
    return ValidationError(f"{at or 'rule'}: {reason[:1].lower()}{reason[1:]}", field=at or "rule")
