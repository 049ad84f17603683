"""Difference: what a manifest wants against what there is: the steps that make one of the other.

Each object gets at most one step. What belongs to an application or to another set is refused, and so is what was made
by hand and differs, unless the caller adopts it. Writes nothing.
Next: operations/manifests/describe.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import MOST_FAULTS, Conflict, MainspringError, NameTaken, ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.access.masking import MASK, check_unmasked, masked, restored
from mainspring.model.manifests.manifest import KINDS, Kind, Wanted, WantedSchedule
from mainspring.model.schedules.define_schedule import check_fires
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.jobs import Definition, Job
from mainspring.model.words.zones import by_its_clocks
from mainspring.operations.definitions.jobs import check_reached
from mainspring.operations.definitions.schedules import HIDDEN
from mainspring.operations.definitions.secrets import check_secrets
from mainspring.operations.manifests.present import Present
from mainspring.operations.parts import reach
from mainspring.operations.parts.slices import Slices
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.resolve import resolved, traits_of
from mainspring.store.schedules.schedules import Stored, as_written

Action = Literal["create", "change", "adopt", "delete"]
Days = tuple[str, ...]


class Step(Struct, frozen=True, gc=False):  # of which a plan has thousands
    """What becomes of one object."""

    kind: Kind
    name: str
    action: Action
    adopts: bool  # the set owns it from now on, and did not before
    given: Definition | WantedSchedule | Days | None  # as the manifest says it: hidden values may be hidden in it
    wanted: Definition | WantedSchedule | Days | None  # the same with their values; None: it is deleted
    present: Job | Stored | Calendar | None
    words: str | None = None  # of a schedule: when it will run
    first: datetime | None = None  # and its next plan time
    whole: Schedule | None = None  # of one that is changed: with the days and arguments that it will have


class Difference(NamedTuple):
    set: str | None
    steps: list[Step]  # by kind and name
    unchanged: dict[Kind, list[str]]

    def of(self, kind: Kind, *actions: Action) -> list[Step]:
        return [step for step in self.steps if step.kind == kind and step.action in actions]


class _Comparing:
    """Compares the objects of one manifest; keeps what is refused, to tell it together."""

    def __init__(self, actor: Actor, wanted: Wanted, present: Present, *, adopt: bool, looks_ahead: bool) -> None:
        self._actor = actor
        self._wanted = wanted
        self._present = present
        self._adopt = adopt
        self._looks_ahead = looks_ahead
        self._traits = present.traits | {name: traits_of(job) for name, job in wanted.jobs.items()}
        self._days = {name: calendar.days for name, calendar in present.calendars.items()} | wanted.calendars
        self.refused: list[MainspringError] = []

    def job(self, name: str, given: Definition) -> Step | None:
        check_reached(self._actor, name)
        present = self._present.jobs.get(name)
        definition = _unmasked_job(self._actor, given, None if present is None else present.definition)
        differs = present is None or present.definition != definition
        if differs:
            check_secrets(definition, self._present.secrets)
        app = None if present is None else present.app or present.definition.requires.get("app")
        return self._step("job", name, given, definition, present, app, differs=differs)

    def schedule(self, name: str, given: WantedSchedule) -> Step | None:
        present = self._present.schedules.get(name)
        if present is not None and not self._actor.reaches(present.schedule.job):
            raise NameTaken(f"{name!r} is not free; give the schedule another name", field="name")
        check_reached(self._actor, given.schedule.job)
        schedule = _unmasked_schedule(self._actor, given.schedule, present)
        wanted = WantedSchedule(schedule, given.enabled)
        differs = (
            present is None
            or as_written(present.schedule) != schedule
            or (given.enabled is not None and given.enabled != present.enabled)
        )
        step = self._step(
            "schedule", name, given, wanted, present, None if present is None else present.app, differs=differs
        )
        if step is None or step.action == "adopt":
            return step
        self._check_after(schedule)
        whole = resolved(schedule, self._traits.get(schedule.job), self._days)
        if not self._looks_ahead:
            return step
        times = timing(whole, keep=False, is_checked=True)
        first = times.after(self._present.now)
        if whole.kind != "daemon" and first is None:
            check_fires(whole, self._present.now)
        first = None if first is None else by_its_clocks(first, times.zone)
        return replace(step, words=times.words, first=first, whole=None if present is None else whole)

    def calendar(self, name: str, given: Days) -> Step | None:
        present = self._present.calendars.get(name)
        differs = present is None or present.days != given
        app = None if present is None else present.app
        if present is not None and self._actor.jobs:
            users = self._present.used_by.get(name, [])
            if not any(map(self._actor.reaches, users)):
                raise NameTaken(f"{name!r} is not free; give the calendar another name", field="name")
            if differs or present.manifest is None:
                reach.check_each(self._actor, users, f"calendar {name!r} is used by schedules")
        return self._step("calendar", name, given, given, present, app, differs=differs)

    def _step(
        self,
        kind: Kind,
        name: str,
        given: Any,
        wanted: Any,
        present: Job | Stored | Calendar | None,
        app: str | None,
        *,
        differs: bool,
    ) -> Step | None:
        if present is None:
            return Step(kind, name, "create", self._wanted.set is not None, given, wanted, None)
        owner = present.manifest
        if app is not None:
            raise Conflict(
                f"it is defined by the code of the application {app!r}; take it out of the manifest, or of the code",
                field="name",
            )
        if owner is not None and owner != self._wanted.set:
            raise Conflict(
                f"it belongs to the set {owner!r}; one set owns it, so take it out of one of them", field="set"
            )
        adopts = owner is None and self._wanted.set is not None
        if not differs:
            return Step(kind, name, "adopt", True, given, wanted, present) if adopts else None
        if adopts and not self._adopt:
            raise Conflict(
                "it was made by hand and is another one than the manifest says; see the difference with `--adopt`, "
                "which lets the set take it over, or give it another name",
                field="name",
            )
        return Step(kind, name, "change", adopts, given, wanted, present)

    def _check_after(self, schedule: Schedule) -> None:
        """What a schedule waits for exists, here or in the database, and does not wait for it."""
        chain, other = [schedule.name], schedule.policies.after
        while other is not None:
            if other in chain:
                raise ValidationError(
                    f"after: {' → '.join([*chain, other])} is a circle; none of them could ever run", field="after"
                )
            found = self._wanted.schedules.get(other)
            if found is None:
                if other not in self._present.waited_for and len(chain) == 1:
                    raise ScheduleNotFound(f"after: no schedule named {other!r}; make it first", field="after")
                return
            chain.append(other)
            other = found.schedule.policies.after


async def compare(
    actor: Actor, wanted: Wanted, present: Present, *, adopt: bool, prune: bool, looks_ahead: bool, slices: Slices
) -> Difference:
    """The steps; Conflict or another error tells what is refused, several at once.

    Plan times to come are looked for only with `looks_ahead`; writing a schedule looks for them again.
    """
    comparing = _Comparing(actor, wanted, present, adopt=adopt, looks_ahead=looks_ahead)
    found = Difference(wanted.set, [], {kind: [] for kind in KINDS})
    ways: dict[Kind, tuple[Mapping[str, Any], Any]] = {
        "job": (wanted.jobs, comparing.job),
        "schedule": (wanted.schedules, comparing.schedule),
        "calendar": (wanted.calendars, comparing.calendar),
    }
    for kind, (objects, way) in ways.items():
        for name in sorted(objects):
            try:
                step = way(name, objects[name])
            except MainspringError as error:
                comparing.refused.append(_placed(error, kind, name))
                continue
            if step is None:
                found.unchanged[kind].append(name)
            else:
                found.steps.append(step)
            await slices.rest()
    _raise_together(comparing.refused)
    if prune:
        found.steps.extend(await _pruned(actor, wanted, present, slices))
    return found


async def _pruned(actor: Actor, wanted: Wanted, present: Present, slices: Slices) -> list[Step]:
    """What the set owns, the manifest does not name, and the actor reaches. Calendars are of all jobs."""
    found: list[Step] = []
    kept: dict[Kind, Mapping[str, Any]] = {
        "job": wanted.jobs,
        "schedule": wanted.schedules,
        "calendar": wanted.calendars,
    }
    there: dict[Kind, Mapping[str, Any]] = {
        "job": present.jobs,
        "schedule": present.schedules,
        "calendar": present.calendars,
    }
    reached: dict[Kind, Callable[[Any], bool]] = {
        "job": lambda job: actor.reaches(job.name),
        "schedule": lambda stored: actor.reaches(stored.schedule.job),
        "calendar": lambda _: not actor.jobs,
    }
    for kind in KINDS:
        for name, one in there[kind].items():  # by name, as they were read
            if name not in kept[kind] and one.manifest == wanted.set and reached[kind](one):
                found.append(Step(kind, name, "delete", False, None, None, one))
            await slices.rest()
    return found


def _placed(error: MainspringError, kind: Kind, name: str) -> MainspringError:
    """The same with the name of the object."""
    field = f"{kind}s.{name[:100]}" + (f".{error.field}" if error.field else "")
    return type(error)(f"{kind} {name!r}: {error.message}", field=field, **error.details)


def _raise_together(refused: list[MainspringError]) -> None:
    """The first, which tells the others as well."""
    if not refused:
        return
    first = refused[0]
    if len(refused) > 1:
        told = refused[:MOST_FAULTS]
        details = [{"field": one.field, "code": one.code, "message": one.message} for one in told]
        more = f"; and {len(refused) - 1:,} more of the manifest"
        raise type(first)(first.message + more, field=first.field, **(first.details | {"errors": details}))
    raise first


# ── hidden values ───────────────────────────────────────────────────────────────────────────────
# What was exported with its secrets masked leaves them as they are. Of a caller who may not see secrets, those in the
# manifest are not compared either: "unchanged" would tell that a guess is right.


def _unmasked_job(actor: Actor, given: Definition, present: Definition | None) -> Definition:
    if not _may_hide(actor, given):
        return given
    made = _unmasked(actor, msgspec.to_builtins(given), None if present is None else msgspec.to_builtins(present))
    return msgspec.convert(made, Definition)


def _unmasked_schedule(actor: Actor, given: Schedule, present: Stored | None) -> Schedule:
    if not _may_hide(actor, given.policies):
        return given
    there = None if present is None else _hidden(present.schedule.policies)
    made = _unmasked(actor, _hidden(given.policies), there)
    return replace(given, policies=replace(given.policies, **made | {"scopes": tuple(made["scopes"])}))


def _may_hide(actor: Actor, given: msgspec.Struct) -> bool:
    return actor.role is not Role.ADMIN or MASK.encode() in msgspec.json.encode(given)


def _unmasked(actor: Actor, given: Any, present: Any) -> Any:
    """With the present values of what is hidden; what is not there yet is as it was given."""
    if present is not None:
        shown = given if actor.role is Role.ADMIN else masked(given)
        given = restored(restored(shown, present), given)
    check_unmasked(given)
    return given


def _hidden(policies: Policies) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins({name: getattr(policies, name) for name in HIDDEN})
    return found
