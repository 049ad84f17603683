"""Owners: the set of manifests, or the application, that a job, a schedule or a calendar belongs to.

What neither owns was made by hand. Nothing has two owners: `claim` is guarded, and code does not take over what a set
owns.
Writes  mainspring.job, mainspring.schedule, mainspring.calendar: app, manifest
Next:   operations/manifests/manifest.py
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mainspring.errors import Conflict
from mainspring.model.manifests.manifest import Kind
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import affected

_LOCK = "select from mainspring.work_lock where name = 'manifest' for update"


async def lock(conn: Connection) -> None:
    """Until the caller's transaction ends: manifests are applied one after another."""
    await conn.execute(_LOCK)


# The name of a table is one of ours: never what a caller gave.
def _claim(kind: Kind) -> str:
    return f"""
        update mainspring.{kind} set manifest = $1
         where namespace = 'default' and name = any($2::text[]) and app is null and manifest is null
    """


async def claim(conn: Connection, owner: str, kind: Kind, names: Sequence[str]) -> int:
    """Let a set own what is owned by nothing; returns how many. The caller has locked them, or just made them."""
    return affected(await conn.execute(_claim(kind), owner, names))


def _owned(kind: Kind) -> str:
    return f"""
        select name from mainspring.{kind}
         where namespace = 'default' and manifest = $1 and ($2::text is null or name > $2) order by name limit $3
    """


def _by_hand(kind: Kind) -> str:
    handler = "and not coalesce(definition->'requires' ? 'app', false)" if kind == "job" else ""
    return f"""
        select name from mainspring.{kind}
         where namespace = 'default' and manifest is null and app is null and ($1::text is null or name > $1) {handler}
         order by name limit $2
    """


AT_ONCE = 1000


async def owned(conn: Connection, owner: str | None, kind: Kind) -> list[str]:
    """The names of all that a set owns; without one, of all that was made by hand."""
    found: list[str] = []
    while True:
        after = found[-1] if found else None
        if owner is None:
            rows = await conn.fetch(_by_hand(kind), after, AT_ONCE)
        else:
            rows = await conn.fetch(_owned(kind), owner, after, AT_ONCE)
        found += [row["name"] for row in rows]
        if len(rows) < AT_ONCE:
            return found


# ── applications ────────────────────────────────────────────────────────────────────────────────


def _of_sets(kind: Kind) -> str:
    return f"""
        select name, manifest from mainspring.{kind}
         where namespace = 'default' and name = any($1::text[]) and manifest is not null order by name limit 1
    """


async def check_free(conn: Connection, kind: Kind, names: Collection[str]) -> None:
    """Conflict if a set of manifests owns one of these, which an application is about to define."""
    row = await conn.fetchrow(_of_sets(kind), list(names)) if names else None
    if row is not None:
        raise Conflict(
            f"a {kind} named {row['name']!r} belongs to the set {row['manifest']!r} of manifests; give the one in the "
            f"code another name, or take that one out of the manifest and delete it",
            field="name",
        )


def _note_app(kind: Kind) -> str:
    return f"""
        update mainspring.{kind} set app = $1
         where namespace = 'default' and name = any($2::text[]) and app is null
    """


async def note_app(conn: Connection, app: str, kind: Kind, names: Collection[str]) -> None:
    """These are defined by the code of an application. The first that defines one keeps it."""
    if names:
        await conn.execute(_note_app(kind), app, list(names))
