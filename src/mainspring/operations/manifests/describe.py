"""Describe: the steps of a manifest as people read them: what differs, when it would run, what would be taken back.

Secrets are masked. `digest` is the hash under which a plan is applied.
Next: operations/manifests/writing.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.manifests.job_spec import job_spec_of
from mainspring.model.manifests.manifest import VERSION, Kind, WantedSchedule
from mainspring.model.schedules.schedule_spec import spec_of
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.jobs import Definition, Job
from mainspring.operations.manifests.difference import Action, Difference, Step
from mainspring.operations.manifests.present import Present, batches
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning.schedule_views import coming
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars, revoke
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.schedules import Stored

FIRES_SHOWN = 3
MANY = 200  # changes, beyond which one plan time of each is shown
USERS_SHOWN = 20


class Change(msgspec.Struct, frozen=True, gc=False):
    """What would become of one job, schedule or calendar."""

    kind: Kind
    name: str
    action: Action
    adopts: bool  # the set owns it from then on, and does not now
    changes: dict[str, audit.Difference]  # of one that is changed: by member, as a manifest says it, masked
    words: str | None  # of a schedule: when it will run
    next_before: list[datetime]  # plan times of a schedule as it is: three, or of many schedules one
    next_after: list[datetime]  # and as it will be
    recalled: Recalled | None  # tasks of a schedule that would be withdrawn now; null: it has none
    users: list[str]  # of a calendar: schedules that follow it, 20 at most


_UNCHANGED: dict[str, audit.Difference] = {}
_NONE: list[Any] = []  # one for all: thousands of empty lists take milliseconds to free


async def described(conn: Connection, actor: Actor, present: Present, difference: Difference) -> list[Change]:
    """Each step in words."""
    slices = Slices()
    recalled = await _recalled(conn, difference, present.now)
    found: list[Change] = []
    for step in difference.steps:
        users: list[str] = _NONE
        if step.kind == "calendar" and step.action == "change":
            found_users = (await calendars.users(conn, step.name)).items()
            users = [schedule for schedule, job in found_users if actor.reaches(job)][:USERS_SHOWN]
        shown = FIRES_SHOWN if len(found) < MANY else 1
        found.append(_change(step, recalled, users, shown))
        await slices.rest()
    return found


def _change(step: Step, recalled: dict[int, Recalled], users: list[str], shown: int) -> Change:
    before: list[datetime] = _NONE
    after: list[datetime] = _NONE
    taken = None
    if isinstance(step.present, Stored):
        taken = recalled.get(step.present.id)
        before = _coming(step.present, shown)
    if isinstance(step.wanted, WantedSchedule):
        after = _coming_after(step, step.wanted, shown)
    changes = _UNCHANGED
    if step.action == "change":
        changes = audit.differences(_said(step.present), _said(step.wanted, step.present))
    return Change(step.kind, step.name, step.action, step.adopts, changes, step.words, before, after, taken, users)


def _coming(stored: Stored, shown: int) -> list[datetime]:
    try:
        return coming(stored, shown, timing(stored.schedule, keep=False, is_checked=True))
    except ValidationError:  # a timezone that this host does not know
        return []


def _coming_after(step: Step, wanted: WantedSchedule, shown: int) -> list[datetime]:
    if isinstance(step.present, Stored) and step.whole is not None:
        enabled = step.present.enabled if wanted.enabled is None else wanted.enabled
        return _coming(step.present._replace(schedule=step.whole, enabled=enabled), shown)
    return [] if wanted.enabled is False or step.first is None else [step.first]


def _said(value: Any, present: Any = None) -> dict[str, Any] | None:
    """An object as a manifest would say it."""
    match value:
        case Job():
            return job_spec_of(value.definition)
        case Definition():
            return job_spec_of(value)
        case Stored():
            return _schedule_said(value.schedule, value.enabled)
        case WantedSchedule():
            kept = present.enabled if isinstance(present, Stored) else True
            return _schedule_said(value.schedule, kept if value.enabled is None else value.enabled)
        case Calendar():
            return {"days": value.days}
        case None:
            return None
        case _:
            return {"days": value}


def _schedule_said(schedule: Schedule, enabled: bool) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(spec_of(schedule, enabled=enabled))
    return found


async def _recalled(conn: Connection, difference: Difference, now: datetime) -> dict[int, Recalled]:
    """What the steps would withdraw: of a schedule that is changed the plan times to come, else all."""
    changed: list[int] = []
    ended: list[int] = []
    for step in difference.of("schedule", "change", "delete"):
        assert isinstance(step.present, Stored)
        is_paused = isinstance(step.wanted, WantedSchedule) and step.wanted.enabled is False and step.present.enabled
        (ended if step.action == "delete" or is_paused else changed).append(step.present.id)
    found: dict[int, Recalled] = {}
    for ids in batches(changed):
        found |= await revoke.would_recall(conn, ids, now)
    for ids in batches(ended):
        found |= await revoke.would_recall(conn, ids, None)
    return found


async def digest(difference: Difference, flags: Sequence[bool], slices: Slices) -> str:
    """The same for the same manifest against the same objects, whatever the time is."""
    found = hashlib.sha256(msgspec.json.encode([VERSION, difference.set, flags]))
    for kind, names in difference.unchanged.items():
        for name in names:
            found.update(msgspec.json.encode([kind, name]))
            await slices.rest()
    for step in difference.steps:
        present = step.present
        seen = None if present is None else [present.version, present.manifest]
        found.update(msgspec.json.encode([step.kind, step.name, step.action, step.adopts, seen, step.given]))
        await slices.rest()
    return found.hexdigest()
