"""Manifest: plan what a set of jobs, schedules and calendars would change, apply it, export it.

`apply` takes the hash of the plan that its caller has seen, and writes all of it in one transaction, or nothing.
Next: operations/manifests/difference.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from mainspring.errors import NotFound, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import masked
from mainspring.model.manifests.job_spec import JobSpec, job_spec_of
from mainspring.model.manifests.manifest import VERSION, Manifest, Wanted, wanted_in_steps
from mainspring.model.schedules.schedule_spec import spec_of
from mainspring.model.words.names import check_name
from mainspring.operations.manifests import present
from mainspring.operations.manifests.describe import Change, described, digest
from mainspring.operations.manifests.difference import Action, Difference, compare
from mainspring.operations.manifests.present import Present, batches, schedules_named
from mainspring.operations.manifests.writing import Writing
from mainspring.operations.parts import revealing
from mainspring.operations.parts.slices import Slices, in_slices
from mainspring.store.access import audit
from mainspring.store.manifests import owners
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.tasks import jobs


class Plan(msgspec.Struct, frozen=True):
    """What a manifest would change; `hash` is for `apply`."""

    hash: str
    set: str | None
    created: int
    changed: int
    adopted: int  # unchanged, and owned by the set from then on
    deleted: int
    unchanged: int
    changes: list[Change]  # those that are not unchanged


class Applied(msgspec.Struct, frozen=True):
    """What a manifest has changed."""

    hash: str
    set: str | None
    created: int
    changed: int
    adopted: int
    deleted: int
    unchanged: int
    recalled: Recalled  # tasks of changed and deleted schedules
    kept: list[str]  # jobs that were to be deleted, and have tasks that have not ended: apply it again later


class _Compared(NamedTuple):
    wanted: Wanted
    present: Present
    difference: Difference
    hash: str

    def counts(self, kept: Collection[str] = ()) -> dict[str, int]:
        found: dict[str, Action] = {
            "created": "create",
            "changed": "change",
            "adopted": "adopt",
            "deleted": "delete",
        }
        actions = Counter(step.action for step in self.difference.steps)
        counted = {name: actions[action] for name, action in found.items()}
        counted["deleted"] -= len(kept)
        return counted | {"unchanged": sum(map(len, self.difference.unchanged.values()))}

    async def let_go(self, *also: dict[str, Any]) -> None:
        """Bit by bit: to free the memory of thousands of objects at once takes many milliseconds."""
        slices, there, wanted = Slices(), self.present, self.wanted
        while self.difference.steps:
            self.difference.steps.pop()
            await slices.rest()
        held: list[dict[str, Any]] = [wanted.jobs, wanted.schedules, there.jobs, there.schedules, *also]
        for objects in held:
            while objects:
                objects.popitem()
                await slices.rest()


async def plan(conn: Connection, actor: Actor, manifest: Manifest, *, prune: bool = False, adopt: bool = False) -> Plan:
    """What applying a manifest would change: created, changed, adopted and, with `prune`, deleted objects.

    Made by hand and different, an object is refused unless `adopt` lets the set take it over. Values that look like
    secrets are compared only for admins.
    """
    found = await _compared(conn, actor, manifest, prune=prune, adopt=adopt, looks_ahead=True)
    changes = await described(conn, actor, found.present, found.difference)
    plan = Plan(hash=found.hash, set=manifest.set, changes=changes, **found.counts())
    await found.let_go()
    return plan


async def apply(
    conn: Connection, actor: Actor, manifest: Manifest, hash: str, *, prune: bool = False, adopt: bool = False
) -> Applied:
    """Write what a plan said, all of it in one transaction. StaleVersion if it would say something else by now."""
    found = await _compared(conn, actor, manifest, prune=prune, adopt=adopt, looks_ahead=False)
    if found.hash != hash:
        raise StaleVersion(
            "the plan is out of date: the manifest or what it changes is not what it was; plan again", field="hash"
        )
    writing = Writing(conn, actor, found.difference)
    if found.difference.steps:
        async with conn.transaction():
            await writing.write()
            detail = {"hash": hash, **found.counts(writing.kept)}
            await audit.record(conn, actor, "manifest.apply", f"manifest:{manifest.set or ''}", detail)
        await _mark_gates(conn, found.difference)
    kept = writing.kept
    done = Applied(hash=hash, set=manifest.set, recalled=writing.recalled, kept=kept, **found.counts(kept))
    await found.let_go(writing.held)
    return done


async def _compared(
    conn: Connection, actor: Actor, manifest: Manifest, *, prune: bool, adopt: bool, looks_ahead: bool
) -> _Compared:
    if prune and manifest.set is None:
        raise ValidationError("prune: deletes what a set owns; the manifest needs `set: NAME`", field="prune")
    wanted = await in_slices(wanted_in_steps(manifest))
    there = await present.load(conn, actor, wanted, prune=prune)
    slices = Slices()
    difference = await compare(actor, wanted, there, adopt=adopt, prune=prune, looks_ahead=looks_ahead, slices=slices)
    return _Compared(wanted, there, difference, await digest(difference, [prune, adopt], slices))


async def _mark_gates(conn: Connection, difference: Difference) -> None:
    """Once more: a submission may not have seen the limits before the commit."""
    written: tuple[Action, ...] = ("create", "change")
    for batch in batches(difference.of("job", *written)):
        if limited := [step.name for step in batch if getattr(step.wanted, "gate", None) is not None]:
            await jobs.mark_gates(conn, limited)


# ── export ──────────────────────────────────────────────────────────────────────────────────────


async def export(conn: Connection, actor: Actor, *, set_name: str | None = None, reveal: bool = False) -> Manifest:
    """What a set owns, or else all that was made by hand, as a manifest that plans to nothing.

    Secrets are masked, and stay what they are when it is applied here. An admin may reveal them, for another cluster;
    that is audited.
    """
    if set_name is not None:
        check_name(set_name, field="set")
    if reveal:
        await revealing.reveal(conn, actor, "manifest", f"manifest:{set_name or ''}")
    found = Manifest(VERSION, set_name, {}, {}, {})
    names = await owners.owned(conn, set_name, "job")
    await _export_jobs(conn, actor, names, found, reveal=reveal)
    names = await owners.owned(conn, set_name, "schedule")
    await _export_schedules(conn, actor, names, found, reveal=reveal)
    await _export_calendars(conn, actor, await owners.owned(conn, set_name, "calendar"), found)
    if set_name is not None and not (found.jobs or found.schedules or found.calendars):
        raise NotFound(
            f"no set named {set_name!r} owns anything; `mainspring job show` tells who owns a job", field="set"
        )
    return found


async def _export_jobs(conn: Connection, actor: Actor, names: list[str], found: Manifest, *, reveal: bool) -> None:
    slices = Slices()
    for batch in batches(filter(actor.reaches, names)):
        for name, job in (await jobs.named(conn, batch)).items():
            found.jobs[name] = JobSpec(**job_spec_of(job.definition if reveal else masked(job.definition)))
            await slices.rest()


async def _export_schedules(conn: Connection, actor: Actor, names: list[str], found: Manifest, *, reveal: bool) -> None:
    slices = Slices()
    for batch in batches(names):
        for stored in await schedules_named(conn, batch, slices):
            if actor.reaches(stored.schedule.job):
                spec = spec_of(stored.schedule, enabled=msgspec.UNSET if stored.enabled else False)
                found.schedules[stored.schedule.name] = spec if reveal else masked(spec)
            await slices.rest()


async def _export_calendars(conn: Connection, actor: Actor, names: list[str], found: Manifest) -> None:
    used = await calendars.using_jobs(conn) if actor.jobs else {}
    for batch in batches(names):
        for name, calendar in (await calendars.named(conn, batch)).items():
            if not actor.jobs or any(map(actor.reaches, used.get(name, ()))):
                found.calendars[name] = list(calendar.days)
