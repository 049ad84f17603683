"""Writing: the steps of a manifest in one transaction, each object under its lock and as the plan has seen it.

Locks are taken in the order that all writers keep: pools, jobs, schedules, calendars. Whatever was changed since the
plan is StaleVersion, and nothing is written.
Writes  mainspring.job, mainspring.schedule, mainspring.calendar, mainspring.audit
Next:   store/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from mainspring.errors import Conflict, JobInUse, StaleVersion
from mainspring.model.access.actors import Actor
from mainspring.model.manifests.manifest import Kind, WantedSchedule
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition, Job
from mainspring.operations.definitions import calendars as calendar_operations
from mainspring.operations.definitions import jobs as job_operations
from mainspring.operations.manifests.difference import Difference, Step
from mainspring.operations.manifests.present import batches, schedules_named
from mainspring.operations.parts.slices import Slices
from mainspring.store.access import audit
from mainspring.store.manifests import owners
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars, schedules
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.revoke import NOTHING, Recalled
from mainspring.store.schedules.schedules import Edited, New, Stored
from mainspring.store.schedules.synchronise import in_order
from mainspring.store.tasks import jobs


class Writing:
    """Writes the steps in the caller's transaction."""

    def __init__(self, conn: Connection, actor: Actor, difference: Difference) -> None:
        self._conn = conn
        self._actor = actor
        self._difference = difference
        self._slices = Slices()
        self.held: dict[str, Stored] = {}  # schedules whose rows are locked, as they are now
        self.recalled = NOTHING
        self.kept: list[str] = []  # jobs that were to go, and have live tasks

    async def write(self) -> None:
        await owners.lock(self._conn)
        await self._write_jobs()
        await self._hold_schedules(await self._names_to_hold())
        changed = await self._write_calendars()
        await self._create_schedules()
        await self._change_schedules(changed)
        await self._delete()

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────

    async def _write_jobs(self) -> None:
        for batch in batches(self._difference.of("job", "create", "change")):
            await jobs.add_pools(self._conn, [_definition(step) for step in batch])
            await self._slices.rest()
        for batch in batches(self._difference.of("job", "create", "change", "adopt")):
            present = await jobs.named(self._conn, [step.name for step in batch], lock=True)
            for step in batch:
                _check_same(step, present.get(step.name))
            definitions = {step.name: _definition(step) for step in batch if step.action != "adopt"}
            await jobs.register(self._conn, definitions, note=partial(self._note_jobs, definitions))
            await self._claim("job", batch)
            await self._slices.rest()

    async def _note_jobs(self, definitions: Mapping[str, Definition], before: Mapping[str, Any]) -> None:
        changes = [
            audit.Change("job.change" if name in before else "job.create", f"job:{name}", before.get(name), definition)
            for name, definition in definitions.items()
        ]
        await self._note(changes)

    # ── schedules and calendars ─────────────────────────────────────────────────────────────────

    async def _names_to_hold(self) -> list[str]:
        """The schedules that the steps change, by id, as others lock them; and those that follow a calendar."""
        steps = self._difference.of("schedule", "change", "adopt", "delete")
        names = [step.name for step in sorted(steps, key=lambda step: getattr(step.present, "id", 0))]
        await self._slices.rest()
        for step in self._difference.of("calendar", "change"):
            names += await calendars.users(self._conn, step.name)
        return list(dict.fromkeys(names))

    async def _hold_schedules(self, names: list[str]) -> None:
        for batch in batches(names):
            await schedules.hold(self._conn, batch)
            await self._slices.rest()
        for stored in await schedules_named(self._conn, names, self._slices):
            self.held[stored.schedule.name] = stored
            await self._slices.rest()
        for step in self._difference.of("schedule", "change", "adopt", "delete"):
            _check_same(step, self.held.get(step.name))
            await self._slices.rest()

    async def _write_calendars(self) -> dict[str, tuple[str, ...]]:
        """Write the days; returns those that schedules have to follow."""
        steps = self._difference.of("calendar", "create", "change", "adopt", "delete")
        present = await calendars.named(self._conn, [step.name for step in steps], lock=True)
        followed: dict[str, tuple[str, ...]] = {}
        changes = []
        for step in steps:
            now = present.get(step.name)
            _check_same(step, now)
            if step.action not in ("create", "change"):
                continue
            await calendar_operations.check_change(self._conn, self._actor, step.name, now)
            days: Any = step.wanted
            if await calendars.put(self._conn, step.name, days):
                followed[step.name] = days
            old = None if now is None else {"days": now.days}
            changes.append(audit.Change("calendar.put", f"calendar:{step.name}", old, {"days": days}))
        await self._note(changes)
        await self._claim("calendar", [step for step in steps if step.action != "delete"])
        return followed

    async def _create_schedules(self) -> None:
        steps = {step.name: step for step in self._difference.of("schedule", "create")}
        ordered = await self._in_order([_wanted(step).schedule for step in steps.values()])
        for names in batches(ordered):
            batch = [steps[name] for name in names]
            given = [New(_wanted(step).schedule, _wanted(step).enabled is not False) for step in batch]
            made = await schedules.create_all(self._conn, given, rest=self._slices.rest)
            if len(made) < len(given):
                taken = next(name for name in names if name not in made)
                raise _stale("schedule", taken, "was made meanwhile")
            changes = [
                audit.Change("schedule.create", f"schedule:{new.name}", None, schedules.defined(new, enabled=enabled))
                for new, enabled in given
            ]
            await self._note(changes)
            await self._claim("schedule", batch)
            await self._slices.rest()

    async def _change_schedules(self, followed: Mapping[str, tuple[str, ...]]) -> None:
        """Change those of the steps, and let those follow whose calendars have other days."""
        steps = self._difference.of("schedule", "change", "adopt")
        edits = {step.name: _wanted(step) for step in steps if step.action == "change"}
        going = {step.name for step in self._difference.of("schedule", "delete")}
        for calendar in followed:
            for name in await self._users(calendar) - edits.keys() - going:
                edits[name] = WantedSchedule(self.held[name].schedule, None)
                await self._slices.rest()
        stated = {step.name for step in steps}
        # One that waits for another no longer comes before one that begins to: it might close a circle else.
        for names in batches(await self._in_order([wanted.schedule for wanted in edits.values()])):
            await self._change_batch(names, edits, stated)
        for calendar, days in followed.items():
            await calendars.spread(self._conn, calendar, days)
        for batch in batches(steps):
            await self._claim("schedule", batch)

    async def _users(self, calendar: str) -> set[str]:
        """The schedules that have to follow a calendar whose row is locked: no new one can come."""
        created = {step.name for step in self._difference.of("schedule", "create")}  # with the new days
        users = (await calendars.users(self._conn, calendar)).keys() - created
        if made_meanwhile := sorted(users - self.held.keys()):
            await schedules.hold(self._conn, made_meanwhile)
            for stored in await schedules_named(self._conn, made_meanwhile, self._slices):
                self.held[stored.schedule.name] = stored
        return users & self.held.keys()

    async def _change_batch(self, names: list[str], edits: Mapping[str, WantedSchedule], stated: set[str]) -> None:
        held = self.held
        given = [Edited(held[name], edits[name].schedule, edits[name].enabled) for name in names]
        done = await schedules.change_all(self._conn, given, rest=self._slices.rest)
        changes = []
        for name, after in zip(names, done, strict=True):
            if name in stated:
                changes.append(
                    audit.Change("schedule.edit", f"schedule:{name}", held[name].defined, after.stored.defined)
                )
            self._add(after.recalled)
        await self._note(changes)
        await self._slices.rest()

    # ── what goes ───────────────────────────────────────────────────────────────────────────────

    async def _delete(self) -> None:
        """Schedules, those first that wait for others of them; then what they used."""
        steps = self._difference.of("schedule", "delete")
        going = await self._in_order([self.held[step.name].schedule for step in steps])
        for names in batches(reversed(going)):
            stored = [self.held[name] for name in names]
            for recalled in await schedules.delete_all(self._conn, stored):
                self._add(recalled)
            changes = [
                audit.Change("schedule.delete", f"schedule:{one.schedule.name}", one.defined, None) for one in stored
            ]
            await self._note(changes)
            await self._slices.rest()
        for step in self._difference.of("calendar", "delete"):
            await self._remove(step, calendar_operations.delete)
        for step in self._difference.of("job", "delete"):
            await self._remove(step, job_operations.delete)

    async def _remove(self, step: Step, operation: Callable[..., Awaitable[None]]) -> None:
        assert step.present is not None
        try:
            await operation(self._conn, self._actor, step.name, version=step.present.version)
        except StaleVersion:
            raise _stale(step.kind, step.name, "was changed meanwhile") from None
        except JobInUse as error:
            # Tasks that agents hold come back later: with its schedule gone, the next time it can go, too.
            if error.details.get("schedules"):
                raise _in_use(step, error) from None
            self.kept.append(step.name)
        except Conflict as error:
            raise _in_use(step, error) from None

    # ── shared ──────────────────────────────────────────────────────────────────────────────────

    async def _in_order(self, given: list[Schedule]) -> list[str]:
        """Those that wait for none, and then the others, each behind the one that it waits for."""
        free: list[str] = []
        waiting: list[Schedule] = []
        for schedule in given:
            if schedule.policies.after is None:
                free.append(schedule.name)
            else:
                waiting.append(schedule)
            await self._slices.rest()
        return free + [schedule.name for schedule in in_order(waiting)]

    async def _note(self, changes: list[audit.Change]) -> None:
        await audit.all_changed(self._conn, self._actor, changes, self._slices.rest)

    async def _claim(self, kind: Kind, steps: list[Step]) -> None:
        owner, names = self._difference.set, [step.name for step in steps if step.adopts]
        if owner is None or not names:
            return
        if await owners.claim(self._conn, owner, kind, names) < len(names):
            raise _stale(kind, names[0], "or another one of the manifest has another owner by now")
        adopted = [
            audit.Change(f"{kind}.adopt", f"{kind}:{step.name}", {"manifest": None}, {"manifest": owner})
            for step in steps
            if step.adopts and step.action != "create"
        ]
        await self._note(adopted)

    def _add(self, recalled: Recalled | None) -> None:
        if recalled is not None:
            before = self.recalled
            self.recalled = Recalled(
                before.taken_back + recalled.taken_back,
                before.asked_back + recalled.asked_back,
                before.running + recalled.running,
            )


def _definition(step: Step) -> Definition:
    assert isinstance(step.wanted, Definition)
    return step.wanted


def _wanted(step: Step) -> WantedSchedule:
    assert isinstance(step.wanted, WantedSchedule)
    return step.wanted


def _check_same(step: Step, now: Job | Stored | Calendar | None) -> None:
    """Refuse to write over what the plan has not seen."""
    seen = step.present
    if seen is None and now is not None:
        raise _stale(step.kind, step.name, "was made meanwhile")
    if seen is not None and now is None:
        raise _stale(step.kind, step.name, "was deleted meanwhile")
    if seen is not None and now is not None and (seen.version, seen.manifest) != (now.version, now.manifest):
        raise _stale(step.kind, step.name, "was changed meanwhile")


def _in_use(step: Step, error: Conflict) -> Conflict:
    message = f"{step.kind} {step.name!r} cannot be deleted: {error.message}; nothing was changed"
    return type(error)(message, field=error.field, **error.details)


def _stale(kind: str, name: str, why: str) -> StaleVersion:
    return StaleVersion(f"the plan is out of date: {kind} {name!r} {why}; plan again", field="hash")
