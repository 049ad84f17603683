"""Edit schedule: apply a partial change and check the whole schedule again.

Next: store/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.define_schedule import KINDS, OF_DAEMONS, When, define_schedule, with_replicas
from mainspring.model.schedules.schedules import Policies, Schedule

_OPTIONS = tuple(name for name in When.__annotations__ if name not in (*KINDS, "tz", "replicas"))
CLEARABLE = (*_OPTIONS, "args", "description")
_DERIVED = {"excluded", "fills"}  # copied from the calendars and from the job


class Edit(NamedTuple):
    """A partial change."""

    options: When
    clear: Collection[str] = ()  # options to reset to their defaults
    job: str | None = None
    set_args: Mapping[str, Any] | None = None  # merged into the arguments
    all_args: Mapping[str, Any] | None = None  # replace the arguments
    description: str | None = None


def options_of(schedule: Schedule) -> dict[str, Any]:
    """The options that define this schedule."""
    default = Policies()
    given = {
        name: value
        for name in _OPTIONS
        if (value := getattr(schedule.policies, name)) != getattr(default, name)  # what is left out is the default
    }
    expression: Any = schedule.expression
    if schedule.kind == "daemon" and expression.isascii() and expression.isdigit() and len(expression) < 10:
        expression = int(expression)
    return {schedule.kind: expression, "tz": schedule.timezone, **given}


def edited(schedule: Schedule, edit: Edit) -> Schedule:
    """The schedule with a change; ValidationError names the option that is wrong."""
    unknown = sorted(set(edit.clear) - set(CLEARABLE))
    if unknown:
        raise ValidationError(f"clear: no option {shown(unknown[0])}; there are {', '.join(CLEARABLE)}", field="clear")
    both = sorted(set(edit.clear) & edit.options.keys())
    if both:
        raise ValidationError(f"{both[0]}: given and cleared; do one of them", field=both[0])
    options = {name: value for name, value in options_of(schedule).items() if name not in edit.clear}
    changes = with_replicas(edit.options)
    if any(kind in changes for kind in KINDS):
        options.pop(schedule.kind)
        if "every" not in changes:
            options.pop("anchor", None)
        for name in OF_DAEMONS if "daemon" not in changes else ():
            options.pop(name, None)
    options.update(changes)
    policies = schedule.policies
    args = {} if "args" in edit.clear else dict(policies.args)
    if edit.all_args is not None:
        args = dict(edit.all_args)
    description = "" if "description" in edit.clear else policies.description
    has_own_scopes = "scopes" in edit.options or "scopes" in edit.clear
    return define_schedule(
        schedule.name,
        edit.job or schedule.job,
        options,  # type: ignore[arg-type]
        args={**args, **(edit.set_args or {})},
        provider=None if has_own_scopes else policies.provider,
        description=description if edit.description is None else edit.description,
    )


class Difference(NamedTuple):
    field: str
    code: Any
    in_force: Any


def differences(code: Schedule, in_force: Schedule) -> Iterator[Difference]:
    """The fields in which the code and the schedule in force differ."""
    for name in ("job", "kind", "expression", "timezone"):
        if (said := getattr(code, name)) != (now := getattr(in_force, name)):
            yield Difference(name, said, now)
    for name in Policies.__struct_fields__:
        said, now = getattr(code.policies, name), getattr(in_force.policies, name)
        if said != now and name not in _DERIVED:
            yield Difference(name, said, now)
