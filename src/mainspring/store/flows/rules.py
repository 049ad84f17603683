"""Rules: the priority rules as they are stored, and what they would say of a task.

A change renews the copies that jobs have of the rules for them (fill_checks in 0001_schema.sql, 7).
Writes  mainspring.priority_rule, mainspring.job
Next:   store/flows/bounds.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mainspring.model.flows.rules import Condition, Rule
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected


class Stored(NamedTuple):
    rule: Rule
    version: int


_COLUMNS = "name, position, jobs, conditions, priority, shift, force, enabled, version"


async def listing(conn: Connection) -> list[Stored]:
    """All rules, in the order in which they are asked."""
    rows = await conn.fetch(f"select {_COLUMNS} from mainspring.priority_rule order by position, name")
    return [_stored(row) for row in rows]


async def find(conn: Connection, name: str, *, lock: bool = False) -> Stored | None:
    query = f"select {_COLUMNS} from mainspring.priority_rule where name = $1{' for update' if lock else ''}"
    row = await conn.fetchrow(query, name)
    return None if row is None else _stored(row)


def _stored(row: Any) -> Stored:
    name, position, jobs, conditions, priority, shift, force, enabled, version = row
    when = msgspec.json.decode(conditions, type=tuple[Condition, ...])
    return Stored(Rule(name, position, jobs, when, priority, shift, force, enabled), version)


_PUT = """
    insert into mainspring.priority_rule as r
        (name, position, jobs, job_like, conditions, condition, fields, priority, shift, force, enabled)
    values ($1, $2, $3, $4, $5::jsonb, $6::text::jsonpath, $7, $8, $9, $10, $11)
    on conflict (name) do update
       set position = excluded.position, jobs = excluded.jobs, job_like = excluded.job_like,
           conditions = excluded.conditions, condition = excluded.condition, fields = excluded.fields,
           priority = excluded.priority, shift = excluded.shift, force = excluded.force, enabled = excluded.enabled,
           version = r.version + 1, updated_at = mainspring.now()
"""


async def put(conn: Connection, rule: Rule) -> None:
    """Create or replace a rule, in the caller's transaction; later submissions obey it."""
    conditions = msgspec.json.encode(rule.when).decode()
    await conn.execute(
        _PUT,
        *(rule.name, rule.order, rule.jobs, rule.job_like, conditions, rule.path, rule.fields),
        *(rule.priority, rule.shift, rule.force, rule.enabled),
    )
    await renew_checks(conn)


async def delete(conn: Connection, name: str) -> bool:
    found = affected(await conn.execute("delete from mainspring.priority_rule where name = $1", name)) > 0
    if found:
        await renew_checks(conn)
    return found


async def renew_checks(conn: Connection) -> None:
    """Rules, or settings that submissions are checked against, have changed: jobs get new copies."""
    await conn.execute("select mainspring.renew_checks()")


_FACTS = """
    select (jsonb_build_object('args', $2::jsonb, 'tag', $3::jsonb)
            || mainspring.rule_facts(j.id, $2::jsonb, $4::text, $5::text, $6::text[]))::text
      from mainspring.job j where j.namespace = 'default' and j.name = $1
"""
_HOLD = """
    select given.number, coalesce($1::jsonb @@ given.condition::jsonpath, false)
      from unnest($2::text[]) with ordinality as given(condition, number) order by given.number
"""


async def facts(
    conn: Connection, job: str, args: str, tags: Sequence[str], origin: str, submitter: str, fields: Sequence[str]
) -> str:
    """What rules would know of such a task, as JSON; `fields` are those that cost a look."""
    found: str = await conn.fetchval(
        _FACTS, job, args, msgspec.json.encode(tags).decode(), origin, submitter, list(fields)
    )
    return found


async def holds(conn: Connection, facts: str, conditions: Sequence[str]) -> list[bool]:
    """Which of these conditions, as jsonpath, hold of the facts: by the program that decides when a task is made."""
    return [held for _, held in await conn.fetch(_HOLD, facts, list(conditions))]
