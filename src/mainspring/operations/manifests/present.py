"""Present: what there is of the objects that a manifest names, and of those that its set owns.

Read in batches, between which others on the event loop have their turn; `apply` checks under locks that all of it is
still so.
Next: operations/manifests/difference.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from mainspring.model.access.actors import Actor
from mainspring.model.manifests.manifest import Wanted
from mainspring.model.tasks.jobs import Job, secrets_of
from mainspring.operations.parts.slices import Slices
from mainspring.store.access import secrets
from mainspring.store.manifests import owners
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars, resolve, schedules
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.resolve import JobTraits
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import jobs

AT_ONCE = 50  # objects that are read or written by a statement: some 2 ms of this process

T = TypeVar("T")


class Present(NamedTuple):
    now: datetime
    jobs: dict[str, Job]
    schedules: dict[str, Stored]
    calendars: dict[str, Calendar]
    traits: dict[str, JobTraits]  # of jobs that schedules of the manifest name, and it does not define
    waited_for: dict[str, Stored]  # schedules that those of the manifest wait for, and it does not define
    used_by: dict[str, list[str]]  # calendar → the jobs whose schedules use it; for an actor that is narrowed to some
    secrets: dict[str, dict[str, str]]  # that jobs of the manifest refer to → the labels that an agent must have


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    whole = list(items)
    return (whole[start : start + AT_ONCE] for start in range(0, len(whole), AT_ONCE))


async def load(conn: Connection, actor: Actor, wanted: Wanted, *, prune: bool) -> Present:
    """With `prune`, also what the set owns and the manifest does not name."""
    slices = Slices()
    now: datetime = await conn.fetchval("select mainspring.now()")
    used_by = await calendars.using_jobs(conn) if actor.jobs else {}
    found = Present(now, {}, {}, {}, {}, {}, used_by, {})
    owned = (
        {kind: await owners.owned(conn, wanted.set, kind) for kind in ("job", "schedule", "calendar")} if prune else {}
    )
    used, others, waited = set[str](), set[str](), set[str]()
    for one in wanted.schedules.values():
        used.update(one.schedule.policies.calendars)
        others.add(one.schedule.job)
        if one.schedule.policies.after is not None:
            waited.add(one.schedule.policies.after)
        await slices.rest()
    referred = set[str]()
    for definition in wanted.jobs.values():
        referred.update(secrets_of(definition.run))
        await slices.rest()
    for names in batches(sorted(referred)):
        found.secrets.update(await secrets.labels_of(conn, names, keep=True))
    for names in batches({**wanted.jobs, **dict.fromkeys(owned.get("job", ()))}):
        found.jobs.update(await jobs.named(conn, names))
        await slices.rest()
    for names in batches({**wanted.calendars, **dict.fromkeys((*owned.get("calendar", ()), *sorted(used)))}):
        found.calendars.update(await calendars.named(conn, names))
    for stored in await schedules_named(conn, {**wanted.schedules, **dict.fromkeys(owned.get("schedule", ()))}, slices):
        found.schedules[stored.schedule.name] = stored
        await slices.rest()
    for names in batches(sorted(others - wanted.jobs.keys())):
        reached = [name for name in names if actor.reaches(name)]
        found.traits.update(await resolve.traits(conn, reached))
    for stored in await schedules_named(conn, sorted(waited - wanted.schedules.keys()), slices):
        found.waited_for[stored.schedule.name] = stored
    return found


async def schedules_named(
    conn: Connection, names: Mapping[str, object] | Sequence[str], slices: Slices
) -> list[Stored]:
    """Those of these schedules that exist."""
    found: list[Stored] = []
    for batch in batches(names):
        found += await schedules.listing(conn, names=batch)
        await slices.rest()
    return found
