"""Settings that operators change at run time: their names, types, defaults, checks and meanings.

A new setting is a member of RunTimeSettings and a line of SETTINGS. The database has those that were set
(store/cluster/settings.py), and every server follows within seconds (server/cluster/catalogue.py). A value is JSON;
null resets a setting to its default, so a setting that can be without effect has the word `off` for it, or null as its
default.
Next: store/cluster/settings.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from mainspring.errors import ValidationError, shown, together
from mainspring.model.metrics.metrics import JOBS
from mainspring.model.placement.define_placement import check_strategy
from mainspring.model.tasks.define_http import check_url
from mainspring.model.tasks.define_job import MOST_QUEUED
from mainspring.model.tasks.retry import MAX_RETRIES
from mainspring.model.words.durations import seconds
from mainspring.model.words.names import nearest

Off = Literal["off"]
OFF: Off = "off"

MOST_METRICS_JOBS = 10_000


class RunTimeSettings(Struct, frozen=True, kw_only=True):
    """The values in force. Durations are seconds."""

    placement: str | None = None
    aging: float | Off = 60.0
    max_queued: int | None = None
    default_timeout: float | Off = 86_400.0
    default_retries: int | None = None
    default_expires: float | None = None
    metrics_jobs: int = JOBS
    heartbeat_url: str | None = None


DEFAULTS = RunTimeSettings()

Check = Callable[..., Any]  # of (value, field=name): the value as it is stored, or ValidationError


class Setting(NamedTuple):
    name: str
    check: Check
    meaning: str

    @property
    def default(self) -> Any:
        return getattr(DEFAULTS, self.name)


def _duration(at_least: float, *, off: bool = False) -> Check:
    def check(value: object, *, field: str) -> float | Off:
        if off and value == OFF:
            return OFF
        try:
            return seconds(value, field=field, at_least=at_least)  # type: ignore[arg-type]  # it refuses all else
        except ValidationError as error:
            raise ValidationError(f"{error}, or off" if off else str(error), field=field) from None

    return check


def _whole(least: int, most: int) -> Check:
    def check(value: object, *, field: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValidationError(f"{field}: {shown(value)}; give a whole number, {least} to {most:,}", field=field)
        return value

    return check


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "placement",
            check_strategy,
            "The placement strategy of jobs that name none; null: that of each server's own configuration.",
        ),
        Setting(
            "aging",
            _duration(0.1, off=True),
            "For every so long that a task has been due it counts one level of priority higher, up to 9; off: never.",
        ),
        Setting(
            "max_queued",
            _whole(1, MOST_QUEUED),
            "How many tasks of all jobs may wait before submissions are refused; null: any number.",
        ),
        Setting(
            "default_timeout",
            _duration(0.001, off=True),
            "How long an attempt of a job that names no timeout may run, daemons excepted; off: for any time.",
        ),
        Setting(
            "default_retries",
            _whole(0, MAX_RETRIES),
            "Further attempts of jobs that name none; null: 3 for handlers and HTTP calls, 0 for commands.",
        ),
        Setting(
            "default_expires",
            _duration(0.001),
            "A task of a job that names no start deadline is skipped if it has not started so long after its time; "
            "null: it waits.",
        ),
        Setting(
            "metrics_jobs",
            _whole(0, MOST_METRICS_JOBS),
            "How many of the busiest jobs have a label of their own in /metrics.",
        ),
        Setting(
            "heartbeat_url",
            check_url,
            "Fetched by the leader every minute while the cluster is well; null: nothing is.",
        ),
    )
}


def find(name: str) -> Setting:
    """The setting of this name; ValidationError with the nearest name if there is none."""
    found = SETTINGS.get(name)
    if found is None:
        close = nearest(name, SETTINGS)
        meant = f"did you mean {close}?" if close else f"there are {', '.join(SETTINGS)}"
        raise ValidationError(f"{shown(name)} is not a setting; {meant}", field=name[:100])
    return found


def check_change(change: Mapping[str, object]) -> dict[str, Any]:
    """What is to be stored for each of the settings in a change. None resets. The error tells all that are wrong."""
    checked = {}
    faults: list[ValidationError] = []
    for name, value in change.items():
        try:
            setting = find(name)
            checked[name] = None if value is None else setting.check(value, field=name)
        except ValidationError as error:
            faults.append(error)
    if faults:
        raise together(faults)
    return checked


def in_force(stored: Mapping[str, object]) -> RunTimeSettings:
    """The settings with these stored values; what this version does not know or cannot read is left out.

    Servers of a newer version may have stored it.
    """
    values = {}
    for name, value in stored.items():
        if value is None or name not in SETTINGS:
            continue
        try:
            values[name] = SETTINGS[name].check(value, field=name)
        except ValidationError:
            continue
    return msgspec.structs.replace(DEFAULTS, **values)


def unless_off(value: float | Off) -> float | None:
    """The seconds of a duration that can be off."""
    return None if value == OFF else value
