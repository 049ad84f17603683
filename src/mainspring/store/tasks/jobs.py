"""Jobs: definitions that applications and people register, and servers read.

Writes  mainspring.job, mainspring.pool
Next:   store/submission/enqueue.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec

from mainspring.errors import Conflict, JobInUse, JobNotFound, NameTaken, ValidationError
from mainspring.model.daemons.daemons import chunks_of_a_daemon, limits_of_a_daemon
from mainspring.model.placement import placement
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.jobs import Definition, Job
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.store.postgres.connection import is_producer
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import Batch, affected

log = logging.getLogger("mainspring")

_POOLS = """
    insert into mainspring.pool (requirements)
    select distinct given::jsonb from unnest($1::text[]) given
     where not exists (select from mainspring.pool where requirements = given::jsonb)
    on conflict (requirements) do nothing
"""

# The pool of a job that is held is gated: see store/cluster/holds.py.
_POOL = """
    case when j.held is not null and not excluded.definition ? 'gate'
         then mainspring.gate(j.namespace, j.name, excluded.pool, true) else excluded.pool end
"""
# An unchanged definition keeps its version: a restart of a hundred replicas changes nothing.
_REGISTER = f"""
    with given as (
        select g.name, g.priority, g.definition::jsonb as definition,
               case when g.definition::jsonb ? 'gate' then mainspring.gate($1, g.name, pool.id) else pool.id end as pool
          from unnest($2::text[], $3::smallint[], $4::text[], $5::text[])
            as g(name, priority, definition, requirements)
          join mainspring.pool on pool.requirements = g.requirements::jsonb
         order by g.name                                  -- one order of locks for concurrent registrations
    ), changed as (
        insert into mainspring.job as j (namespace, name, pool, priority, definition)
        select $1, name, pool, priority, definition from given
        on conflict (namespace, name) do update
           set pool = {_POOL}, priority = excluded.priority, definition = excluded.definition,
               version = j.version + 1, updated_at = mainspring.now()
         where $6 and (j.definition, j.pool, j.priority)
               is distinct from (excluded.definition, {_POOL}, excluded.priority)
        returning 1
    )
    select pg_notify('mainspring', 'job') from (select from changed limit 1) any_change
"""


async def may_register(conn: Connection) -> bool:
    """Whether the role of this connection may define jobs."""
    return not is_producer(conn) and bool(await conn.fetchval("select has_table_privilege('mainspring.job', 'insert')"))


# What notes a change, given the definitions before it, as JSON by name.
Note = Callable[[Mapping[str, Any]], Awaitable[None]]

_BEFORE = """
    select name, definition from mainspring.job where namespace = $1 and name = any($2::text[]) order by name for update
"""


async def register(
    conn: Connection,
    definitions: Mapping[str, Definition],
    *,
    namespace: str = "default",
    replace: bool = True,
    note: Note | None = None,
) -> bool:
    """Create jobs by name, and update those there are unless `replace` is false; returns whether any changed.

    `note` is awaited in the transaction of the change. What follows comes after its commit: new limits reach tasks
    whose submission did not see them.
    """
    if not definitions:
        return False
    await _check_owners(conn, definitions, namespace)
    await _check_daemons(conn, definitions, namespace)
    requirements = await add_pools(conn, definitions.values())
    given = (
        namespace,
        list(definitions),
        [d.priority for d in definitions.values()],
        [msgspec.json.encode(d).decode() for d in definitions.values()],
        requirements,
        replace,
    )
    async with conn.transaction() if note is not None else nullcontext():
        before = await conn.fetch(_BEFORE, namespace, list(definitions)) if note is not None else []
        changed = affected(await conn.execute(_REGISTER, *given)) > 0
        if changed and note is not None:
            await note({row["name"]: msgspec.json.decode(row["definition"]) for row in before})
    if changed:
        await conn.execute(_REFILL, namespace, list(definitions))
        await mark_gates(conn, list(definitions), namespace=namespace)
    return changed


async def add_pools(conn: Connection, definitions: Collection[Definition]) -> list[str]:
    """The requirements of these definitions, each with a pool. Pools come before jobs in the order of locks."""
    requirements = [placement.encode(placement.requirements_of(definition)) for definition in definitions]
    await conn.execute(_POOLS, requirements)
    return requirements


async def mark_gates(conn: Connection, names: Sequence[str], *, namespace: str = "default") -> None:
    """Let tasks of these jobs that have passed their limits by be searched for."""
    await conn.execute(_MARK_GATES, namespace, names)


# New limits also count for tasks that wait: store/limits/gating.py moves them to the gate.
_MARK_GATES = """
    update mainspring.pool gate set gating_since = pg_current_xact_id()
      from mainspring.job j
     where j.namespace = $1 and j.name = any ($2::text[]) and gate.id = any (array[j.pool]) and gate.target is not null
"""


# A handler whose parameters changed gets other arguments from its schedules.
_REFILL = """
    update mainspring.schedule s
       set policies = jsonb_set(s.policies, '{fills}', coalesce(j.takes, '[]') - case
               when s.policies ? 'scopes' or s.policies ? 'provider' then '' else 'scope' end)
      from (select id, definition->'run'->'takes' as takes from mainspring.job
             where namespace = $1 and name = any($2::text[])) j
     where s.job_id = j.id
       and coalesce(s.policies->'fills', '[]') <> coalesce(j.takes, '[]') - case
               when s.policies ? 'scopes' or s.policies ? 'provider' then '' else 'scope' end
"""


_OWNERS = """
    select name, definition->'requires'->>'app' as owner from mainspring.job
     where namespace = $1 and name = any($2::text[]) and definition->'requires' ? 'app'
"""


async def _check_owners(conn: Connection, definitions: Mapping[str, Definition], namespace: str) -> None:
    """A handler belongs to its application: no other may take over its name."""
    for row in await conn.fetch(_OWNERS, namespace, list(definitions)):
        ours = definitions[row["name"]].requires.get("app")
        if ours is not None and ours != row["owner"]:
            raise Conflict(
                f"a job named {row['name']!r} belongs to the application {row['owner']!r}; give this one another name, "
                f'or all of this application\'s a prefix, App("{ours}", prefix="{ours}."), '
                "or delete that one, with its schedules, if it is gone for good: `mainspring job delete`",
                field="name",
            )


_DAEMONS = """
    select j.name from mainspring.job j join mainspring.schedule s on s.job_id = j.id and s.kind = 'daemon'
     where j.namespace = $1 and j.name = any($2::text[])
"""


async def _check_daemons(conn: Connection, definitions: Mapping[str, Definition], namespace: str) -> None:
    limited = [name for name, definition in definitions.items() if definition.gate is not None]
    chunked = [name for name, definition in definitions.items() if placement.requirements_of(definition).chunk > 1]
    for names, refusal in ((limited, limits_of_a_daemon), (chunked, chunks_of_a_daemon)):
        for row in await conn.fetch(_DAEMONS, namespace, names) if names else ():
            raise refusal(row["name"])


async def create(
    conn: Connection, name: str, definition: Definition, *, replace: bool = False, note: Note | None = None
) -> bool:
    """Create a job, or replace it; returns whether anything changed. NameTaken if there is one and it may not be."""
    changed = await register(conn, {name: definition}, replace=replace, note=note)
    if not changed and not replace:
        raise NameTaken(
            f"there is a job named {name!r}; replace it (--replace, or PUT without If-None-Match), or choose another "
            "name",
            field="name",
        )
    return changed


_JOB = "select id, name, version, pool, definition, namespace, app, manifest from mainspring.job"


def _job(row: Any) -> Job:
    return msgspec.convert({**row, "definition": msgspec.json.decode(row["definition"], type=Definition)}, Job)


PAGE = 100  # jobs that are read within a millisecond or two

# `xmin` is the transaction that wrote the row.
_MARK = """
    select string_agg(written::text, ' ') from (
        select (count(*), max(xmin::text::bigint), sum(xmin::text::bigint)) as written from mainspring.job union all
        select (count(*), max(xmin::text::bigint), sum(xmin::text::bigint)) from mainspring.pool union all
        select (count(*), max(xmin::text::bigint), sum(xmin::text::bigint)) from mainspring.setting union all
        select (count(*), max(xmin::text::bigint), sum(xmin::text::bigint)) from mainspring.hold) tables
"""


async def mark(conn: Connection) -> str:
    """A text that is another one after each change of jobs, pools, settings or holds."""
    found: str = await conn.fetchval(_MARK)
    return found


async def load(conn: Connection) -> tuple[list[Job], dict[str, str]]:
    """All jobs, and by name why a definition cannot be read: such as one that a newer version wrote.

    In pages: ten thousand jobs at once would hold the event loop.
    """
    found, unreadable, last = list[Job](), dict[str, str](), 0
    while rows := await conn.fetch(f"{_JOB} where id > $1 order by id limit {PAGE}", last):
        for row in rows:
            try:
                found.append(_job(row))
            except UNREADABLE as error:
                unreadable[row["name"]] = str(error)[:200]
        last = rows[-1]["id"]
        if len(rows) < PAGE:
            break
    return found, unreadable


_GATES = """
    select gate.id, gate.target, j.id as job, gate.requirements->'@gate'->>2 is not null as is_of_hold
      from mainspring.pool gate
      left join mainspring.job j on j.namespace = gate.requirements->'@gate'->>0
                                and j.name = gate.requirements->'@gate'->>1 and j.pool in (gate.id, gate.target)
     where gate.target is not null
"""


class Gate(NamedTuple):
    id: int
    target: int  # the pool that its tasks move to
    job: int | None  # whose new tasks may wait there; None: they wait elsewhere by now
    is_of_hold: bool  # a job without limits, which was held


async def pools(conn: Connection) -> dict[int, Requirements]:
    """The served pools with their requirements: no gates."""
    rows = await conn.fetch("select id, requirements from mainspring.pool where target is null")
    return {row["id"]: placement.decode(row["requirements"]) for row in rows}


async def gates(conn: Connection) -> list[Gate]:
    return [Gate(*row) for row in await conn.fetch(_GATES)]


async def names(conn: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Names of jobs by id."""
    rows = await conn.fetch("select id, name from mainspring.job where id = any ($1::integer[])", ids)
    return {row["id"]: row["name"] for row in rows}


async def known(conn: Connection, names: Sequence[str]) -> set[str]:
    """Those of these names that a job has."""
    rows = await conn.fetch(
        "select name from mainspring.job where namespace = 'default' and name = any ($1::text[])", names
    )
    return {row["name"] for row in rows}


async def find(conn: Connection, name: str, *, namespace: str = "default") -> Job:
    row = await conn.fetchrow(f"{_JOB} where namespace = $1 and name = $2", namespace, name)
    if row is None:
        raise JobNotFound(f"no job named {name!r}; `mainspring job list` shows what there is", field="job")
    try:
        return _job(row)
    except UNREADABLE as error:
        raise ValidationError(f"job {name!r} cannot be read: {str(error)[:200]}", field="job") from None


async def named(conn: Connection, names: Sequence[str], *, lock: bool = False) -> dict[str, Job]:
    """Those of these jobs that exist, locked in the order of registrations; ValidationError if one cannot be read."""
    order = "order by name for update" if lock else ""
    found = {}
    for row in await conn.fetch(f"{_JOB} where namespace = 'default' and name = any($1::text[]) {order}", names):
        try:
            found[row["name"]] = _job(row)
        except UNREADABLE as error:
            raise ValidationError(f"job {row['name']!r} cannot be read: {str(error)[:200]}", field="job") from None
    return found


_LIST = f"""
    {_JOB}
     where namespace = $1 and ($2::text is null or name > $2) and ($3::text[] is null or name like any ($3))
     order by name limit $4
"""


async def listing(
    conn: Connection,
    *,
    like: Sequence[str] | None = None,
    after: str | None = None,
    limit: int = 1_000_000,
    namespace: str = "default",
) -> Batch[Job]:
    """Jobs by name. One that cannot be read is left out, with a warning."""
    found = []
    rows = await conn.fetch(_LIST, namespace, after, like, limit)
    for row in rows:
        try:
            found.append(_job(row))
        except UNREADABLE as error:
            log.warning("job %s cannot be read: %.200s", row["name"], error)
    return Batch(found, rows[-1]["name"] if len(rows) == limit else None)


async def hold(conn: Connection, name: str, *, namespace: str = "default") -> Job:
    """The job, locked until the caller's transaction ends."""
    await conn.execute("select from mainspring.job where namespace = $1 and name = $2 for update", namespace, name)
    return await find(conn, name, namespace=namespace)


async def version(conn: Connection, name: str, definition: Definition, *, namespace: str = "default") -> int | None:
    """The version of a job that is about to get this definition, locked; None if there is no such job.

    Its pool comes first: `register` takes the two in this order, and another one could deadlock with it.
    """
    await add_pools(conn, [definition])
    found: int | None = await conn.fetchval(
        "select version from mainspring.job where namespace = $1 and name = $2 for update", namespace, name
    )
    return found


class Uses(NamedTuple):
    """What keeps a job from being deleted."""

    schedule: str | None  # one of them
    schedules: int
    tasks: int  # at most MOST_USES


MOST_USES = 10_000

_USES = """
    select (select min(name) from mainspring.schedule where job_id = $1),
           (select count(*) from mainspring.schedule where job_id = $1),
           (select count(*) from (select from mainspring.task where job_id = $1 limit $2) live)
"""


async def uses(conn: Connection, job: Job) -> Uses:
    return Uses(*await conn.fetchrow(_USES, job.id, MOST_USES))


_DELETE = """
    delete from mainspring.job j
     where j.namespace = $1 and j.name = $2
       and not exists (select from mainspring.task t where t.job_id = j.id)
    returning j.id
"""


async def delete(conn: Connection, name: str, *, namespace: str = "default") -> bool:
    """Remove a job without live tasks; False if it has some. JobInUse if it has schedules."""
    found = await find(conn, name, namespace=namespace)
    used = await conn.fetchval("select name from mainspring.schedule where job_id = $1 limit 1", found.id)
    if used is not None:
        raise JobInUse(f"{name!r} has a schedule, {used!r}; delete that first", field="job")
    return await conn.fetchval(_DELETE, namespace, name) is not None
