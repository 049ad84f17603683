"""Schedules: list, show, put, edit, delete, enable, disable, run; one, or all that match a filter.

Next: store/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from mainspring.errors import Conflict, NameTaken, NotFound, ScheduleNotFound, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import check_unmasked, restored
from mainspring.model.schedules.schedule_spec import ScheduleSpec, defined, patched, spec_of
from mainspring.model.schedules.schedules import Kind, Schedule
from mainspring.model.tasks.payload import KEPT_BYTES, check_length
from mainspring.model.words.globs import covering, like
from mainspring.model.words.names import check_name, check_note, check_path_name
from mainspring.operations import pages
from mainspring.operations.definitions import jobs
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, revealing
from mainspring.operations.parts.by_name import check_version
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning import schedule_views
from mainspring.operations.planning.schedule_views import ScheduleChange, ScheduleDetail, ScheduleView, State, view
from mainspring.store.access import audit
from mainspring.store.followed import slo
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import Batch
from mainspring.store.schedules import backfill, schedules
from mainspring.store.schedules.schedules import Stored
from mainspring.store.search import schedule_pages
from mainspring.store.search.schedule_pages import Filter
from mainspring.store.search.search import Count
from mainspring.store.watch.coming import ahead, beside

Action = Literal["enable", "disable", "run"]
Order = Literal["name", "next"]

ACT_SECONDS = 1.0  # of one step of `act`
TASKS_NOTED = 20  # in the audit, of those that one call makes
MOST_COUNTED = 1_000_000
HIDDEN = ("args", "description", "ping_url", "scopes")  # members of a spec in which secrets may be masked


class ScheduleFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which schedules. Several values of a member mean any of them; names, jobs and apps may have `*`."""

    name: list[str] = []
    job: list[str] = []
    app: list[str] = []
    state: list[State] = []
    kind: list[Kind] = []


class ScheduleRun(msgspec.Struct, frozen=True):
    name: str
    tasks: list[int]  # one for each scope


class Skipped(msgspec.Struct, frozen=True):
    """A schedule that an action could not be done to."""

    name: str
    code: str
    message: str


class ActionStep(msgspec.Struct, frozen=True):
    done: int  # schedules; those that were as wanted already are among them
    changed: list[str]  # those that were not
    skipped: list[Skipped]
    next: str | None  # the cursor of the next step; None: this was the last


async def listing(
    conn: Connection,
    actor: Actor,
    *,
    name: Sequence[str] = (),
    job: Sequence[str] = (),
    app: Sequence[str] = (),
    state: Sequence[State] = (),
    kind: Sequence[Kind] = (),
    order: Order = "name",
    cursor: str | None = None,
    limit: int = pages.LIMIT,
) -> Page[ScheduleView]:
    """Schedules by name, or those with a plan time to come by that. Names take `*`; one without it that does not exist
    is an error.

    By plan time, one that is about to fire may come twice: where it is due, and where it is due after that.
    """
    if order not in ("name", "next"):
        raise ValidationError(f"order: {shown(order)}; use name or next", field="order")
    wanted = ScheduleFilter(*map(list, (name, job, app, state, kind)))  # type: ignore[arg-type]
    chosen = await _filter(conn, actor, wanted)
    filters = {"list": "schedules", "order": order, **msgspec.structs.asdict(wanted)}
    found = await _page(conn, actor, wanted, chosen, filters=filters, cursor=cursor, limit=limit, order=order)
    last = await schedule_views.last_fires(conn, [stored for stored, _ in found.items])
    ended = schedule_views.last_ended
    return Page([msgspec.structs.replace(one, last=ended(last[stored.id])) for stored, one in found.items], found.next)


async def count(
    conn: Connection,
    actor: Actor,
    *,
    name: Sequence[str] = (),
    job: Sequence[str] = (),
    app: Sequence[str] = (),
    state: Sequence[State] = (),
    kind: Sequence[Kind] = (),
) -> Count:
    """How many schedules match the same filters, up to a million."""
    wanted = ScheduleFilter(*map(list, (name, job, app, state, kind)))  # type: ignore[arg-type]
    chosen = await _filter(conn, actor, wanted)
    found = await schedule_pages.count(conn, chosen, wanted.state, MOST_COUNTED + 1)
    reached = sum(number for job, number in found.items() if actor.reaches(job))
    return Count(min(reached, MOST_COUNTED), reached <= MOST_COUNTED)


async def show(conn: Connection, actor: Actor, name: str, *, reveal: bool = False) -> ScheduleDetail:
    """One schedule: its spec, its policies, its next plan times, its last run, and how it does by its SLO.

    Secrets are masked, unless an admin wants to see them: that is audited.
    """
    stored = await find(conn, actor, name)
    if reveal:
        await revealing.reveal(conn, actor, "schedule", f"schedule:{name}", {"version": stored.version})
    last = (await schedule_views.last_fires(conn, [stored]))[stored.id]
    found = view(stored, last, reveal=reveal)
    coming = [] if found.next is None else schedule_views.coming(stored, schedule_views.FIRES_SHOWN)
    objective = stored.schedule.policies.slo
    state = None if objective is None else await slo.state(conn, stored.id, objective)
    before, after = await beside(conn, name, covering(actor.jobs))
    return ScheduleDetail(found, coming, last, state, before, after)


async def put(
    conn: Connection,
    actor: Actor,
    name: str,
    spec: ScheduleSpec,
    *,
    replace: bool = True,
    version: int | None = None,
) -> ScheduleChange:
    """Make a schedule, or change it into this one. A new one is disabled unless it says otherwise.

    With `version`, only the schedule that has this version is changed; without `replace`, none is.
    """
    check_path_name(name, field="name")
    async with conn.transaction():
        stored = await _find_if_there(conn, actor, name)
        spec = _unmasked(spec, stored)
        if stored is None and version is None:
            schedule = defined(name, spec)
            await jobs.find(conn, actor, schedule.job)
            if await schedules.create(conn, schedule, enabled=spec.enabled is True):
                made = await schedules.find(conn, name)
                await audit.changed(conn, actor, "schedule.create", f"schedule:{name}", None, made.defined)
                return ScheduleChange(view(made), None, created=True, changed=True)
        if not replace:
            raise NameTaken(
                f"there is a schedule named {name!r}; change it with `mainspring schedule edit {name}`", field="name"
            )
        stored = stored or await find(conn, actor, name, lock=True)  # another caller has just made it
        check_version("schedule", name, stored.version, version)
        return await _change(conn, actor, stored, defined(name, spec, provider=stored.schedule.policies.provider), spec)


async def edit(
    conn: Connection, actor: Actor, name: str, change: dict[str, Any], *, version: int | None = None
) -> ScheduleChange:
    """Apply a JSON merge patch (RFC 7396) to the spec of a schedule: null resets a member to its default."""
    async with conn.transaction():
        stored = await find(conn, actor, name, lock=True)
        check_version("schedule", name, stored.version, version)
        spec = _unmasked(patched(msgspec.to_builtins(spec_of(stored.schedule)), change), stored)
        provider = None if "scopes" in change else stored.schedule.policies.provider
        return await _change(conn, actor, stored, defined(name, spec, provider=provider), spec)


def _unmasked(spec: ScheduleSpec, stored: Stored | None) -> ScheduleSpec:
    """A spec that was read with its secrets masked, and is written back, leaves them as they are."""
    check_length(spec.args, "args", KEPT_BYTES)  # before all of it is compared
    given = {name: value for name in HIDDEN if (value := getattr(spec, name)) is not UNSET}
    present = {} if stored is None else msgspec.to_builtins({n: getattr(stored.schedule.policies, n) for n in HIDDEN})
    given = restored(given, present)
    check_unmasked(given)
    return msgspec.structs.replace(spec, **given)


async def _change(
    conn: Connection, actor: Actor, stored: Stored, schedule: Schedule, spec: ScheduleSpec
) -> ScheduleChange:
    if schedule.job != stored.schedule.job:
        await jobs.find(conn, actor, schedule.job)
    enabled = None if spec.enabled is UNSET else spec.enabled
    return await _hold_to(conn, actor, "schedule.edit", stored, schedule, enabled=enabled)


async def _hold_to(
    conn: Connection,
    actor: Actor,
    action: str,
    stored: Stored,
    schedule: Schedule,
    *,
    enabled: bool | None,
    note: str | None = None,
) -> ScheduleChange:
    """Change a schedule whose row is locked, and note it in the audit."""
    done = await schedules.change_held(conn, stored, schedule, enabled=enabled)
    old, new = stored.defined, done.stored.defined
    if note is not None:
        new = new | {"note": check_note(note)}
    await audit.changed(conn, actor, action, f"schedule:{schedule.name}", old, new)
    return schedule_views.changed(done)


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> ScheduleChange:
    """Remove a schedule and take back what was planned and has not started."""
    async with conn.transaction():
        stored = await find(conn, actor, name, lock=True)
        check_version("schedule", name, stored.version, version)
        recalled = await schedules.delete(conn, name)
        await audit.changed(conn, actor, "schedule.delete", f"schedule:{name}", stored.defined, None)
        return ScheduleChange(view(stored), recalled, created=False, changed=True)


async def enable(conn: Connection, actor: Actor, name: str, *, note: str | None = None) -> ScheduleChange:
    """Let a schedule run, from its next plan time on."""
    return await _switch(conn, actor, "schedule.enable", name, enabled=True, note=note)


async def disable(conn: Connection, actor: Actor, name: str, *, note: str | None = None) -> ScheduleChange:
    """Take back what was planned and has not started, and plan nothing more."""
    return await _switch(conn, actor, "schedule.disable", name, enabled=False, note=note)


async def _switch(
    conn: Connection, actor: Actor, action: str, name: str, *, enabled: bool, note: str | None
) -> ScheduleChange:
    async with conn.transaction():
        stored = await find(conn, actor, name, lock=True)
        return await _hold_to(conn, actor, action, stored, stored.schedule, enabled=enabled, note=note)


async def run(conn: Connection, actor: Actor, name: str, *, scopes: Sequence[str] = ()) -> ScheduleRun:
    """One task at once for each scope, beside the plan."""
    checked = tuple(dict.fromkeys(check_name(scope, field="scopes") for scope in scopes))
    await find(conn, actor, name)
    async with conn.transaction():
        made = await backfill.run_now(conn, name, checked)
        detail = {"tasks": made[:TASKS_NOTED], "count": len(made)}
        await audit.record(conn, actor, "schedule.run", f"schedule:{name}", detail)
    return ScheduleRun(name, made)


async def act(
    conn: Connection,
    actor: Actor,
    action: Action,
    filter: ScheduleFilter,
    *,
    limit: int = 100,
    cursor: str | None = None,
) -> ActionStep:
    """One step of an action on all schedules that match; the caller repeats it with `next` until that is null.

    Each schedule is a transaction, so that no planner waits for all of them. The first step fixes the newest schedule:
    later ones are not caught. It may be repeated: what is done is not done again, except for `run`.
    """
    actions: dict[str, Callable[[Connection, Actor, str], Awaitable[ScheduleChange | ScheduleRun]]]
    actions = {"enable": enable, "disable": disable, "run": run}
    if action not in actions:
        raise ValidationError(f"action: {shown(action)}; use {', '.join(actions)}", field="action")
    filters = {"list": "act", "action": action, **msgspec.structs.asdict(filter)}
    newest, after = pages.position(cursor, filters, tuple[int, str]) or (await schedule_pages.highest_id(conn), None)
    chosen = (await _filter(conn, actor, filter))._replace(highest_id=newest)
    within = {"list": "act step"}
    position = None if after is None else pages.cursor(within, after)
    found = await _page(conn, actor, filter, chosen, filters=within, cursor=position, limit=limit)
    done, until = 0, monotonic() + ACT_SECONDS
    changed: list[str] = []
    skipped: list[Skipped] = []
    last = pages.position(found.next, within, str)
    for number, (_, one) in enumerate(found.items, 1):
        try:
            made = await actions[action](conn, actor, one.name)
            done += 1
            if isinstance(made, ScheduleRun) or made.changed:
                changed.append(one.name)
        except (Conflict, NotFound, ValidationError) as error:  # anything else would meet the next one too
            skipped.append(Skipped(one.name, error.code, error.message))
        if monotonic() >= until and number < len(found.items):
            last = one.name
            break
    return ActionStep(done, changed, skipped, None if last is None else pages.cursor(filters, (newest, last)))


async def find(conn: Connection, actor: Actor, name: str, *, lock: bool = False) -> Stored:
    """The schedule, if the actor reaches its job; else it is not found."""
    stored = await schedules.find(conn, check_path_name(name, field="schedule"), lock=lock)
    if not actor.reaches(stored.schedule.job):
        raise schedules.not_found(name)
    return stored


async def _find_if_there(conn: Connection, actor: Actor, name: str) -> Stored | None:
    try:
        stored = await schedules.find(conn, name, lock=True)
    except ScheduleNotFound:
        return None
    if not actor.reaches(stored.schedule.job):  # the name is taken, but by nothing that this actor may see
        raise NameTaken(f"{name!r} is not free; give the schedule another name", field="name")
    return stored


async def _filter(conn: Connection, actor: Actor, wanted: ScheduleFilter) -> Filter:
    for job in wanted.job:
        if "*" not in job:
            await jobs.find(conn, actor, job)
    for name in wanted.name:
        if "*" not in name:
            await find(conn, actor, name)
    apps = like(wanted.app, field="app")
    for app in wanted.app:
        if "*" not in app and not await schedule_pages.has_app(conn, app, covering(actor.jobs)):
            raise NotFound(f"no schedule is of an application named {app!r}", field="app")
    states = set(wanted.state)
    return Filter(
        name=like(wanted.name, field="name"),
        job=like(wanted.job, field="job") or covering(actor.jobs),
        app=apps,
        kind=list(wanted.kind) or None,
        enabled=None if not states or ("disabled" in states and len(states) > 1) else "disabled" not in states,
        is_over=states == {"ended"},
    )


async def _page(
    conn: Connection,
    actor: Actor,
    wanted: ScheduleFilter,
    chosen: Filter,
    *,
    filters: dict[str, Any],
    cursor: str | None,
    limit: int,
    order: Order = "name",
) -> Page[tuple[Stored, ScheduleView]]:
    slices = Slices()

    async def read(after: Any, count: int) -> Batch[tuple[Stored, ScheduleView]]:
        batch: Batch[Stored]
        if order == "name":
            batch = await schedule_pages.page(conn, chosen, after=after, limit=count)
        else:
            batch = await schedule_pages.page_by_next(conn, chosen, after=after, limit=count)
            if after is None:  # fewer than a page, so that its last item is one that the next page follows
                first = await schedule_pages.among(conn, chosen, (await ahead(conn, limit))[: limit - 1])
                known = {stored.id for stored in first}
                batch = Batch([*first, *(one for one in batch.items if one.id not in known)], batch.last)
        items = []
        for stored in batch.items:
            if actor.reaches(stored.schedule.job):
                items.append((stored, view(stored)))
                await slices.rest()  # a cron expression takes up to a millisecond
        return Batch(items, batch.last)

    states = set(wanted.state)
    return await by_name.page(
        read,
        (lambda item: item[1].name) if order == "name" else (lambda item: schedule_pages.place_by_next(item[0])),
        lambda item: not states or item[1].state in states,
        filters=filters,
        cursor=cursor,
        limit=limit,
        kind=str if order == "name" else tuple[datetime, int],
    )
