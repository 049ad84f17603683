"""Roles: what a role of PostgreSQL may do with the schema, as statements that its owner runs.

    producer  calls enqueue, enqueue_many, enqueue_each, enqueue_flow, open_batch and close_batch, and reads the tasks
              that it submitted, through views `own_…`
    viewer    reads everything but the hashes of tokens, login codes and console sessions, the secrets
              of channels, and the encrypted values of secrets
    server    runs servers: reads and writes rows, makes and drops partitions by functions; no DDL

A role has at most one of the three. Which one is read from its privileges, so there is nothing to keep in step, and
`migrate` gives a role what belongs to its kind in the new schema.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from mainspring.errors import AccessDenied, Conflict, NotFound, SchemaMismatch
from mainspring.store.postgres.connection import Connection

Kind = Literal["producer", "viewer", "server"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_OWN = (
    "task", "task_history", "attempt", "output", "dependency", "dependent", "job", "schedule", "agent", "server",
    "batch", "batch_count", "batch_change", "batch_callback",
)  # fmt: skip
# What a viewer reads of the tables that hold secrets, or hashes of them.
_WITHOUT_SECRETS = {
    "token": "id, name, role, jobs, namespaces, rate, parent, once, agents, labels, used_at, last_used_at, created_by, "
    "created_at, expires_at, revoked_at",
    "login_code": "actor, role, jobs, token_id, created_at, expires_at",
    "console_session": "id, actor, role, jobs, token_id, address, created_at, last_seen_at, expires_at",
    "secret": "name, version, key_id, labels, created_at, created_by, updated_at, updated_by",
    "channel": "name, kind, url_from, secret_from, shown_url, is_signed, enabled, version, delivered_at, "
    "failing_since, last_error, created_at, updated_at",
}
_READ_FUNCTIONS = ("now()", "labels(jsonb)", "key_within(text, text)", "fill_key(text, jsonb, jsonb)")
_SUBMIT_FUNCTIONS = (
    "enqueue(text, jsonb, text, timestamptz, interval, text, interval, bigint[], text, text, text[], interval, bigint, "
    "text, text, interval, integer, interval, text)",
    "enqueue_many(text, jsonb[], text, timestamptz, interval, text, text, text[], interval, bigint, interval, integer, "
    "interval, text)",
    "enqueue_each(text[], jsonb[], text[], timestamptz[], interval[], text[], interval[], boolean, interval[], "
    "jsonb[], bigint[])",
    "open_batch(text, jsonb, jsonb, jsonb, bigint, text, text)",
    "close_batch(bigint)",
    "enqueue_flow(jsonb)",
    "is_new(bigint)",
)

_GRANTS: dict[Kind, tuple[str, ...]] = {
    "producer": (
        "grant usage on schema mainspring to {role}",
        "grant select on mainspring.migration to {role}",
        f"grant select on {', '.join(f'mainspring.own_{name}' for name in _OWN)} to {{role}}",
        "grant execute on function mainspring.now() to {role}",
        *(f"grant execute on function mainspring.{function} to {{role}}" for function in _SUBMIT_FUNCTIONS),
    ),
    "viewer": (
        "grant usage on schema mainspring to {role}",
        "grant select on all tables in schema mainspring to {role}",
        "grant select on all sequences in schema mainspring to {role}",
        *(f"revoke select on mainspring.{table} from {{role}}" for table in _WITHOUT_SECRETS),
        *(f"grant select ({columns}) on mainspring.{table} to {{role}}" for table, columns in _WITHOUT_SECRETS.items()),
        *(f"grant execute on function mainspring.{function} to {{role}}" for function in _READ_FUNCTIONS),
    ),
    "server": (
        "grant usage on schema mainspring to {role}",
        "grant select, insert, update, delete on all tables in schema mainspring to {role}",
        "revoke insert, update, delete on mainspring.migration from {role}",
        "revoke update, delete on mainspring.audit from {role}",  # it is append-only
        "grant usage, select on all sequences in schema mainspring to {role}",
        "grant execute on all functions in schema mainspring to {role}",
    ),
}
# As the schema says; a restore without privileges has lost it.
_NOT_PUBLIC = "revoke all on all functions in schema mainspring from public"
_REVOKE = (
    "revoke all on all tables in schema mainspring from {role}",
    "revoke all on all sequences in schema mainspring from {role}",
    "revoke all on all functions in schema mainspring from {role}",
    "revoke all on schema mainspring from {role}",
)

# Only privileges given to the role itself: those of a role that it is a member of are not its own to lose.
_KINDS = """
    select r.rolname as name, quote_ident(r.rolname) as quoted,
           case when bool_or(c.relname = 'task' and a.privilege_type = 'INSERT') then 'server'
                when bool_or(c.relname = 'task' and a.privilege_type = 'SELECT') then 'viewer'
                when bool_or(c.relname = 'own_task' and a.privilege_type = 'SELECT') then 'producer' end as kind
      from pg_class c
     cross join lateral aclexplode(c.relacl) a
      join pg_roles r on r.oid = a.grantee
     where c.relnamespace = (select oid from pg_namespace where nspname = 'mainspring')
       and c.relname in ('task', 'own_task') and a.grantee <> c.relowner
     group by r.rolname
     order by r.rolname
"""


class Role(msgspec.Struct, frozen=True):
    role: str
    kind: Kind


async def listing(conn: Connection) -> list[Role]:
    """The roles that have been granted something, by name."""
    return [Role(row["name"], row["kind"]) for row in await conn.fetch(_KINDS) if row["kind"]]


_CHECK = """
    select quote_ident(r.rolname) as quoted, pg_get_userbyid(n.nspowner) as owner, n.nspowner = r.oid as owns,
           pg_has_role(n.nspowner, 'usage') as may_grant, quote_ident(current_user) as we
      from pg_namespace n left join pg_roles r on r.rolname = $1
     where n.nspname = 'mainspring'
"""


def _may_exist(role: str) -> bool:
    """PostgreSQL knows no role without a name, with one over 63 bytes, or with one that is no Unicode."""
    try:
        return 0 < len(role.encode()) < 64 and "\0" not in role
    except UnicodeEncodeError:
        return False


async def _check(conn: Connection, role: str) -> str:
    """The role as SQL names it. Raises what is in the way of granting it something."""
    found = await conn.fetchrow(_CHECK, role if _may_exist(role) else None)
    if found is None:
        raise SchemaMismatch("this database has no schema of Mainspring yet; run `mainspring migrate`")
    if found["quoted"] is None:
        raise NotFound(f"PostgreSQL has no role {role[:63]!r}; create it first: CREATE ROLE … LOGIN", field="role")
    if found["owns"]:
        raise Conflict(f"{role} owns the schema and may do everything; use another role", field="role")
    if not found["may_grant"]:
        raise AccessDenied(
            f"only {found['owner']}, the owner of the schema, can do that; this is {found['we']}", field="role"
        )
    quoted: str = found["quoted"]
    return quoted


async def grant_statements(conn: Connection, kind: Kind, role: str) -> list[str]:
    """What makes `role` a role of this kind, and takes from it what another kind has."""
    quoted = await _check(conn, role)
    return [_NOT_PUBLIC, *(statement.format(role=quoted) for statement in (*_REVOKE, *_GRANTS[kind]))]


async def revoke_statements(conn: Connection, kind: Kind, role: str) -> list[str]:
    """What takes all rights from `role`. Conflict if it is not of this kind."""
    quoted = await _check(conn, role)
    now = {found.role: found.kind for found in await listing(conn)}.get(role)
    if now != kind:
        is_one = f"is a {now}" if now else "has been granted nothing"
        raise Conflict(f"{role} {is_one}; nothing was changed", field="role")
    return [statement.format(role=quoted) for statement in _REVOKE]


async def run(conn: Connection, statements: list[str]) -> None:
    """All of them or none."""
    async with conn.transaction():
        for statement in statements:
            await conn.execute(statement)


async def grant_again(conn: Connection) -> None:
    """After a migration: give each role what its kind has in the new schema. In the caller's transaction."""
    await conn.execute(_NOT_PUBLIC)
    for row in await conn.fetch(_KINDS):
        for statement in _GRANTS.get(row["kind"], ()):
            await conn.execute(statement.format(role=row["quoted"]))
