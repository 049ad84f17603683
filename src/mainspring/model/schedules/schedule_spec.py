"""Schedule spec: a schedule as people write it and read it back: its job, when it runs, its policies, its arguments.

    {"job": "backup", "daily": "03:00", "tz": "Europe/Paris", "overlap": "skip", "enabled": true}

What is left out has its default. A spec that was read can be changed and written again; `define_schedule` checks it.
Next: model/schedules/define_schedule.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Required, TypedDict, cast

from msgspec import UNSET, Struct, UnsetType, to_builtins

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.define_schedule import KINDS, OF_DAEMONS, When, define_schedule
from mainspring.model.schedules.edit_schedule import options_of
from mainspring.model.schedules.schedules import CatchUp, First, Fold, Gap, Overlap, Schedule, WhenFull
from mainspring.model.words.merge_patch import merge_patch
from mainspring.model.words.names import nearest

Text = str | UnsetType
Count = int | UnsetType
Length = float | str | UnsetType  # seconds, or text such as "1h30m"
Names = list[str] | UnsetType


class SloMembers(TypedDict, total=False):
    """The objective of a schedule: that share of its plan times, in the window, start within `lateness`."""

    lateness: Required[float | str]
    target: float
    window: float | str


class ScheduleSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the first seven kinds, and the policies around it. Instants without an offset are local times of `tz`."""

    job: Text = UNSET
    cron: Text = UNSET
    every: Length = UNSET
    once: Text = UNSET
    daily: Text = UNSET
    weekly: Text = UNSET
    monthly: Text = UNSET
    daemon: Count = UNSET  # replicas
    tz: Text = UNSET
    gap: Gap | UnsetType = UNSET
    fold: Fold | UnsetType = UNSET
    anchor: Text = UNSET
    start: Text = UNSET
    end: Text = UNSET
    max_runs: Count = UNSET
    jitter: Length = UNSET
    delay: Length = UNSET
    calendars: Names = UNSET
    scopes: Names = UNSET  # of a schedule whose code tells its scopes: left out
    catch_up: CatchUp | UnsetType = UNSET
    window: Length = UNSET
    max_per_tick: Count = UNSET
    misfire_after: Length = UNSET
    overlap: Overlap | UnsetType = UNSET
    after: Text = UNSET
    first: First | UnsetType = UNSET
    slo: SloMembers | UnsetType = UNSET
    ping_url: Text = UNSET
    expires: Length = UNSET
    when_full: WhenFull | UnsetType = UNSET
    restart_delay: Length = UNSET
    max_restart_delay: Length = UNSET
    stable: Length = UNSET
    ready: Length = UNSET
    args: dict[str, Any] | UnsetType = UNSET
    description: Text = UNSET
    enabled: bool | UnsetType = UNSET


_SECONDS = re.compile(r"\d{1,12}(\.\d{1,6})?", re.ASCII)
_OPTIONS = tuple(name for name in ScheduleSpec.__struct_fields__ if name in When.__annotations__)


def read_spec(given: Any) -> ScheduleSpec:
    """The spec from its JSON form; ValidationError for what no schedule has. `defined` checks the values."""
    if not isinstance(given, Mapping):
        raise ValidationError(f"spec: {shown(given)} is not an object", field="spec")
    known = ScheduleSpec.__struct_fields__
    for name in given:
        if name not in known:
            close = nearest(str(name), known)
            meant = f", did you mean {close}?" if close else ";"
            raise ValidationError(f"{name}: no such member{meant} a schedule has {', '.join(known)}", field=str(name))
    return ScheduleSpec(**given)


def defined(name: str, spec: ScheduleSpec, *, provider: str | None = None) -> Schedule:
    """The schedule; ValidationError names the member that is wrong. `provider` tells scopes that the spec lacks."""
    if spec.job is UNSET:
        raise ValidationError("job: missing; say which job it runs", field="job")
    args = {} if spec.args is UNSET else spec.args
    if not isinstance(args, Mapping):
        raise ValidationError(f"args: {shown(args)}; give an object of named arguments", field="args")
    if spec.enabled is not UNSET and not isinstance(spec.enabled, bool):
        raise ValidationError(f"enabled: {shown(spec.enabled)}; give true or false", field="enabled")
    return define_schedule(
        name,
        spec.job,
        options_in(spec),
        args=args,
        provider=provider if spec.scopes is UNSET else None,
        description="" if spec.description is UNSET else spec.description,
    )


def options_in(spec: ScheduleSpec) -> When:
    """The options that `define_schedule` takes."""
    values = {name: getattr(spec, name) for name in _OPTIONS}
    return cast(When, {name: value for name, value in values.items() if value is not UNSET})


def spec_of(schedule: Schedule, *, enabled: bool | UnsetType = UNSET) -> ScheduleSpec:
    """The spec that defines this schedule."""
    given = {name: _plain(value) for name, value in options_of(schedule).items()}
    # Anything else than numbers was written by SQL, and means nothing.
    if "every" in given and _SECONDS.fullmatch(given["every"]):
        given["every"] = float(given["every"]) if "." in given["every"] else int(given["every"])
    if "daemon" in given and not isinstance(given["daemon"], int):
        del given["daemon"]
    policies = schedule.policies
    return ScheduleSpec(
        job=schedule.job,
        **given,
        args=policies.args or UNSET,
        description=policies.description or UNSET,
        enabled=enabled,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Struct):
        return to_builtins(value)
    return list(value) if isinstance(value, tuple) else value


def patched(spec: Mapping[str, Any], change: Mapping[str, Any]) -> ScheduleSpec:
    """A spec in its JSON form with a merge patch (RFC 7396). Another kind takes the place of the present one."""
    kept = dict(spec)
    if any(change.get(kind) is not None for kind in KINDS):
        dropped = set(KINDS)
        if change.get("every") is None:
            dropped.add("anchor")
        if change.get("daemon") is None:
            dropped.update(OF_DAEMONS)
        kept = {name: value for name, value in kept.items() if name not in dropped}
    return read_spec(merge_patch(kept, dict(change)))
