"""Functions of the schema: none depends on the search path of its caller, none is open to everybody."""

from __future__ import annotations

import pytest

from mainspring.store.postgres.connection import SEARCH_PATH
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.migrate import known

_FUNCTIONS = """
    select p.oid::regprocedure::text as name, l.lanname as language, p.prosqlbody is not null as is_resolved,
           p.prosecdef as is_definer, coalesce(p.proconfig, '{}') as settings,
           p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0) as is_public
      from pg_proc p join pg_language l on l.oid = p.prolang
     where p.pronamespace = 'mainspring'::regnamespace
"""


async def test_no_name_in_a_function_depends_on_the_callers_search_path(conn: Connection) -> None:
    found = await conn.fetch(_FUNCTIONS)
    assert len(found) > 20
    loose = [
        row["name"] for row in found if not row["is_resolved"] and f"search_path={SEARCH_PATH}" not in row["settings"]
    ]
    assert not loose, "add `set search_path = pg_catalog, pg_temp`, or give it a body that is resolved when created"


async def test_no_function_is_open_to_everybody(conn: Connection) -> None:
    assert not [row["name"] for row in await conn.fetch(_FUNCTIONS) if row["is_public"]]


async def test_few_functions_run_with_the_rights_of_their_owner_and_all_of_those_pin_their_path(
    conn: Connection,
) -> None:
    definers = {
        row["name"].partition("(")[0]: row["settings"] for row in await conn.fetch(_FUNCTIONS) if row["is_definer"]
    }
    assert set(definers) == {
        f"mainspring.{name}"
        for name in (
            *("enqueue", "enqueue_many", "enqueue_each", "is_new", "open_batch", "close_batch"),
            *("make_partition", "drop_partition", "condense_partition", "merge_partitions"),
            *("analyze_table", "forget_audit"),
        )
    }, "each of these is a door: think of what a caller can pass before you add one"
    assert all(f"search_path={SEARCH_PATH}" in settings for settings in definers.values())


async def test_views_for_producers_let_no_function_see_a_row_before_they_do(conn: Connection) -> None:
    views = await conn.fetch("""
        select relname, coalesce(reloptions, '{}') as options from pg_class
         where relnamespace = 'mainspring'::regnamespace and relkind = 'v'
    """)
    assert len(views) == 14
    assert all("security_barrier=true" in view["options"] for view in views)


@pytest.mark.parametrize("secret", ["definition", "policies", "args", "labels", "hash"])
async def test_a_producers_view_of_what_others_defined_has_no_secrets(conn: Connection, secret: str) -> None:
    found = await conn.fetch(
        """select attrelid::regclass::text as view from pg_attribute
            where attname = $1 and attrelid in (select oid from pg_class
                                                 where relnamespace = 'mainspring'::regnamespace and relkind = 'v')""",
        secret,
    )
    assert {row["view"] for row in found} <= {"mainspring.own_task", "mainspring.own_task_history"}


def test_every_migration_takes_its_functions_back_from_public() -> None:
    assert all("from public" in migration.sql for migration in known() if "create function" in migration.sql)
