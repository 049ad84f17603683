"""Roles: a producer, a viewer and a server with nothing but their grants: in SQL, in the SDK, on the command line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.cli.conftest import Outcome
from tests.conftest import directory_for_a_server
from tests.postgres import Primary

import mainspring
from mainspring.cli.main import main
from mainspring.errors import (
    AccessDenied,
    BatchNotFound,
    Conflict,
    JobNotFound,
    NotFound,
    TaskNotFound,
    ValidationError,
)
from mainspring.server.cluster.janitor import Janitor
from mainspring.store.postgres import roles
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.migrate import FOLDER, migrate
from mainspring.store.postgres.roles import KINDS, Kind
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import partitions

GRANTED: dict[str, Kind] = {"shop": "producer", "web": "producer", "auditor": "viewer", "scheduler": "server"}


class House:
    """A server with a schema that `landlord` owns, who is no superuser, and a role for each kind."""

    def __init__(self, primary: Primary) -> None:
        self.primary = primary
        self.ask = primary.ask

    def dsn(self, role: str) -> str:
        return self.primary.dsn.replace("mainspring@", f"{role}@")

    async def connect(self, role: str) -> Any:
        return await asyncpg.connect(self.dsn(role))

    def app(self, role: str) -> mainspring.App:
        app = mainspring.App("house", dsn=self.dsn(role), poll=0.1, stop_patience=0.2)

        @app.job(name="report")
        async def report(n: int = 0) -> int:
            print("counted", n)
            return n

        app.http("secret", "POST", "http://example.com/", headers={"Authorization": "Bearer s3cret"})
        app.job(name="everywhere", broadcast=True)(report.function)
        return app

    async def change(self, act: Callable[..., Any], *arguments: Any, by: str = "landlord") -> None:
        conn = await self.connect(by)
        try:
            await roles.run(conn, await act(conn, *arguments))
        finally:
            await conn.close()


async def _furnish(house: House) -> None:
    await migrate(Database(house.dsn("landlord")))
    for role, kind in GRANTED.items():
        await house.change(roles.grant_statements, kind, role)
    async with house.app("landlord"):
        pass


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with directory_for_a_server() as directory, Primary(directory / "a") as primary:
        for role in ("landlord", "stranger", '"odd ""role"', *GRANTED):
            primary.ask(f"create role {role} login")
        primary.ask("grant create on database mainspring to landlord")
        house = House(primary)
        asyncio.run(_furnish(house))
        yield house


@pytest.fixture
def cli(house: House, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(role: str, *arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(["--dsn", house.dsn(role), *arguments])
        return Outcome(code, *capsys.readouterr())

    return call


# ── producer ────────────────────────────────────────────────────────────────────────────────────


async def test_a_producer_can_submit_and_read_views_of_its_own_and_nothing_else(house: House) -> None:
    conn = await house.connect("shop")
    may_read = await conn.fetch("""
        select relname from pg_class where relnamespace = (select oid from pg_namespace where nspname = 'mainspring')
           and relkind in ('r', 'p', 'v', 'S') and (
               case when relkind = 'S' then has_sequence_privilege(oid, 'usage, select, update')
                    else has_table_privilege(oid, 'select') or has_any_column_privilege(oid, 'select') end)
    """)
    assert {row[0] for row in may_read} == {"migration", *(f"own_{name}" for name in roles._OWN)}
    writes = await conn.fetchval("""
        select count(*) from pg_class where relnamespace = (select oid from pg_namespace where nspname = 'mainspring')
           and relkind in ('r', 'p', 'v')
           and (has_table_privilege(oid, 'insert, update, delete, truncate, references, trigger')
                or has_any_column_privilege(oid, 'insert, update, references'))
    """)
    assert writes == 0
    may_call = await conn.fetch("""
        select distinct proname from pg_proc where has_function_privilege(oid, 'execute')
           and pronamespace = (select oid from pg_namespace where nspname = 'mainspring')
    """)
    submits = {"enqueue", "enqueue_many", "enqueue_each", "enqueue_flow", "is_new", "open_batch", "close_batch"}
    assert {row[0] for row in may_call} == {"now", *submits}
    for statement in (
        "select definition from mainspring.job",
        "select * from mainspring.task",
        "update mainspring.own_task set args = '{}'",
        "delete from mainspring.own_task",
        "create table mainspring.mine ()",
        "select mainspring.enqueue_claimed('report', '{}', null, 1, 1, 999999, gen_random_uuid())",
        "select mainspring.drop_partition('output_20200101')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute(statement)
    await conn.close()


async def test_a_producer_submits_flows_of_its_own_tasks_only(house: House) -> None:
    shop, web = [await house.connect(role) for role in ("shop", "web")]
    flow = '[{"job": "report"}, {"job": "report", "steps": [0]}]'
    first, second = await shop.fetchval("select mainspring.enqueue_flow($1)", flow)
    children = "select child from mainspring.own_dependent where parent = $1"
    assert await shop.fetchval(children, first) == second
    assert await web.fetchval(children, first) is None
    with pytest.raises(asyncpg.PostgresError, match=f"task {first} does not exist"):
        await web.fetchval("select mainspring.enqueue_flow($1)", f'[{{"job": "report", "after": [{first}]}}]')
    for conn in (shop, web):
        await conn.close()


async def test_a_producer_submits_in_no_other_name(house: House) -> None:
    """A rule may look at it."""
    shop, landlord = [await house.connect(role) for role in ("shop", "landlord")]
    calls = (
        "enqueue('report', submitter => 'release', tags => '{a}')",
        "enqueue_many('report', array['{}']::jsonb[], submitter => 'release')",
        "enqueue_each('{report}', array['{}']::jsonb[], options => array['{\"submitter\": \"release\"}']::jsonb[])",
        """enqueue_flow('[{"job": "report", "submitter": "release"}]')""",
    )
    before = await landlord.fetchval("select mainspring.last_task()")
    for conn in (shop, landlord):
        for call in calls:
            await conn.execute(f"select mainspring.{call}")
    found = await landlord.fetch(
        """with gone as (delete from mainspring.task where id > $1 returning id, submitted_by, options)
           select submitted_by, options->>'submitter' from gone order by id""",
        before,
    )
    assert [tuple(row) for row in found] == [("shop", None)] * 4 + [(None, "release")] * 4
    for conn in (shop, landlord):
        await conn.close()


async def test_a_producer_sees_what_it_submitted_and_nothing_of_others(house: House) -> None:
    shop, web, landlord = [await house.connect(role) for role in ("shop", "web", "landlord")]
    mine = await shop.fetchval("select mainspring.enqueue('report', '{\"n\": 1}', concurrency_key => 'c', key => 'k1')")
    many = await shop.fetchval("select mainspring.enqueue_many('report', array['{}', '{}']::jsonb[])")
    theirs = await web.fetchval("select mainspring.enqueue('report')")
    owners = await landlord.fetchval("select mainspring.enqueue('report')")
    seen = {row[0] for row in await shop.fetch("select id from mainspring.own_task")}
    assert seen >= {mine, *many}
    assert not seen & {theirs, owners}
    names = "select submitted_by from mainspring.task where id = any($1) order by id"
    assert [row[0] for row in await landlord.fetch(names, [mine, theirs, owners])] == ["shop", "web", None]
    for conn in (shop, web, landlord):
        await conn.close()


async def test_a_producer_has_its_own_batches_only(house: House) -> None:
    async with house.app("scheduler").running(), house.app("shop") as app, house.app("web") as other:
        report: Any = app.jobs["report"]
        async with app.batch("mine", on_complete=report.with_args(9)) as batch:
            await report.using(batch=batch).enqueue_many([1, 2])
        view = await batch.wait(timeout=20)
        assert (view.outcome, view.succeeded, view.created_by) == ("succeeded", 2, "shop")
        [callback] = view.callbacks
        assert callback.task is not None
        assert await app.task(callback.task).result(timeout=20) == 9, "it is the producer's too"
        theirs = other.existing_batch(batch.id)
        for act in (theirs.status, theirs.close):
            with pytest.raises(BatchNotFound):
                await act()
        with pytest.raises(BatchNotFound):
            await other.jobs["report"].using(batch=batch.id).enqueue(1)
        for refused in (batch.cancel, batch.retry_failed):
            with pytest.raises(AccessDenied, match="producer"):
                await refused()


async def test_a_role_that_was_set_owns_what_it_submits(house: House) -> None:
    house.ask("create role gateway login")
    house.ask("grant shop to gateway")
    conn = await house.connect("gateway")
    await conn.execute("set role shop")
    task = await conn.fetchval("select mainspring.enqueue('report')")
    assert await conn.fetchval("select true from mainspring.own_task where id = $1", task)
    assert house.ask(f"select submitted_by from mainspring.task where id = {task}") == "shop"
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await conn.execute("set role web")
    await conn.close()


async def test_a_producer_waits_only_for_tasks_of_its_own(house: House) -> None:
    """Otherwise the answer would tell whether the task of another role exists and succeeded."""
    shop, web, landlord = [await house.connect(role) for role in ("shop", "web", "landlord")]
    mine = await shop.fetchval("select mainspring.enqueue('report')")
    theirs = await web.fetchval("select mainspring.enqueue('report')")
    assert await shop.fetchval("select mainspring.enqueue('report', after => array[$1::bigint])", mine)
    with pytest.raises(asyncpg.PostgresError, match=f"after: task {theirs} does not exist"):
        await shop.execute("select mainspring.enqueue('report', after => array[$1::bigint])", theirs)
    assert await landlord.fetchval("select mainspring.enqueue('report', after => array[$1::bigint])", theirs)
    for conn in (shop, web, landlord):
        await conn.close()


async def test_a_function_of_a_producer_does_not_see_rows_of_others(house: House) -> None:
    house.ask("create schema if not exists shop authorization shop")
    shop, web = await house.connect("shop"), await house.connect("web")
    theirs = await web.fetchval("select mainspring.enqueue('report')")
    mine = await shop.fetchval("select mainspring.enqueue('report')")
    await shop.execute("""
        create table shop.leaked (id bigint);
        create function shop.leak(id bigint) returns boolean language plpgsql cost 0.0000001 as
            'begin insert into shop.leaked values (id); return true; end';
    """)
    await shop.execute("select from mainspring.own_task where shop.leak(id)")
    leaked = {row["id"] for row in await shop.fetch("select id from shop.leaked")}
    assert mine in leaked
    assert theirs not in leaked
    for conn in (shop, web):
        await conn.close()


async def test_a_producer_submits_and_waits_through_the_sdk_while_a_server_role_runs_it(house: House) -> None:
    async with house.app("scheduler").running(), house.app("shop") as app, house.app("web") as other:
        report: Any = app.jobs["report"]
        task = await report.enqueue(7)
        assert await task.result(timeout=20) == 7
        assert (await task.status()).state == "succeeded"
        many = await report.enqueue_many([1, 2])
        assert [await each.result(timeout=20) for each in many] == [1, 2]
        assert await (await report.using(key="once", delay="10ms", after=task).enqueue(3)).result(timeout=20) == 3
        conn = await house.connect("shop")
        async with conn.transaction():
            in_mine = await report.using(conn=conn).enqueue(4)
        assert await in_mine.result(timeout=20) == 4
        await conn.close()
        with pytest.raises(TaskNotFound):
            await other.task(task.id).status()
        with pytest.raises(TaskNotFound):
            await other.task(task.id).result(timeout=20)
        for act in (task.cancel, task.retry):
            with pytest.raises(AccessDenied, match="producer"):
                await act()
        with pytest.raises(JobNotFound):
            await app.command("unknown", ["true"]).enqueue()
        with pytest.raises(ValidationError, match="priority"):
            await app.submit(Submission("report", "{}", "urgent"), None)
        everywhere: Any = app.jobs["everywhere"]
        told = await everywhere.enqueue(1)
        await told.result(timeout=20)
        conn = await house.connect("shop")
        children = "select count(*) from mainspring.own_task_history where parent_id = $1"
        assert await conn.fetchval(children, told.id) == 1
        await conn.close()


# ── on the command line ─────────────────────────────────────────────────────────────────────────


def test_a_producer_on_the_command_line(house: House, cli: Callable[..., Outcome]) -> None:
    task = cli("shop", "task", "submit", "report", "--arg", "n=1", "--json").json["id"]
    shown = cli("shop", "task", "show", str(task), "--json")
    assert (shown.code, shown.json["state"], shown.json["job"]) == (0, "pending", "report"), shown.err
    assert task in [listed["id"] for listed in cli("shop", "task", "list", "--job", "report", "--json").json]
    assert cli("shop", "task", "logs", str(task)).code == 0
    assert cli("web", "task", "show", str(task)).code == 3
    assert cli("web", "task", "logs", str(task)).code == 3
    assert task not in [listed["id"] for listed in cli("web", "task", "list", "--json").json]
    for denied in (
        *(("task", act, str(task)) for act in ("cancel", "kill", "retry", "restart", "pause")),
        *(("job", "list"), ("job", "show", "secret"), ("schedule", "list"), ("agents", "list"), ("servers",)),
        *(("stats",), ("token", "list"), ("segments",), ("grant", "viewer", "shop")),
    ):
        found = cli("shop", *denied)
        assert found.code == 5, (denied, found)
        assert "s3cret" not in found.out + found.err


def test_a_viewer_reads_everything_and_changes_nothing(house: House, cli: Callable[..., Outcome]) -> None:
    task = str(cli("shop", "task", "submit", "report", "--json").json["id"])
    for allowed in (
        *(("task", "list"), ("task", "show", task), ("task", "logs", task), ("job", "list"), ("job", "show", "report")),
        *(("schedule", "list"), ("agents", "list"), ("servers",), ("segments",), ("stats",)),
        *(("token", "list"), ("daemon", "list"), ("migrate", "--plan")),
    ):
        found = cli("auditor", *allowed)
        assert found.code == 0, (allowed, found.err)
    for denied in (
        *(("task", act, task) for act in ("cancel", "kill", "retry", "pause")),
        *(("task", "submit", "report"), ("job", "create", "x", "--", "true"), ("job", "delete", "report")),
        *(("token", "create", "x"), ("grant", "server", "auditor"), ("agents", "drain", "a")),
    ):
        found = cli("auditor", *denied)
        assert found.code in (3, 5), (denied, found)
    for table in ("token", "login_code", "console_session"):
        assert house.ask(f"select has_column_privilege('auditor', 'mainspring.{table}', 'hash', 'select')") is False
    assert not house.ask("""
        select count(*) from pg_class where relnamespace = 'mainspring'::regnamespace and relkind in ('r', 'p', 'v')
           and has_table_privilege('auditor', oid, 'insert, update, delete, truncate')
    """)
    assert not house.ask("""
        select count(*) from pg_proc where pronamespace = 'mainspring'::regnamespace and proname <> 'now'
           and has_function_privilege('auditor', oid, 'execute') and provolatile = 'v'
    """)


@pytest.mark.parametrize("role", ["shop", "auditor"])
def test_a_server_with_the_role_of_another_kind_says_so_and_ends(house: House, tmp_path: Path, role: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "mainspring", "server", "--listen", "127.0.0.1:0", "--dsn", house.dsn(role)],
        env={**os.environ, "MAINSPRING_DATA_DIRECTORY": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert found.returncode == 5, found
    assert "mainspring grant" in found.stderr


# ── server ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_role_makes_and_drops_partitions_and_cannot_drop_anything_else(house: House) -> None:
    conn = await house.connect("scheduler")
    await conn.execute("set search_path = pg_catalog, pg_temp")
    assert await partitions.make_ahead(conn, days=9)
    name = await conn.fetchval("select to_char(mainspring.now() at time zone 'UTC', '\"output_\"YYYYMMDD')")
    await conn.execute("select mainspring.drop_partition($1)", name)
    assert await conn.fetchval("select to_regclass('mainspring.' || $1) is not null", name), "it is of today"
    await conn.execute("select mainspring.make_partition('output', '2020-02-02')")
    for other in ("task", "output", "output_20200202; drop table mainspring.task", None):
        await conn.execute("select mainspring.drop_partition($1)", other)
    await conn.execute("select mainspring.drop_partition('output_20200202')")
    assert await conn.fetchval("select to_regclass('mainspring.output_20200202') is null")
    with pytest.raises(asyncpg.PostgresError, match="has no partitions by day"):
        await conn.execute("select mainspring.make_partition('task', '2020-02-02')")
    await conn.execute("select mainspring.analyze_table('task')")
    for statement in (
        "drop table mainspring.task",
        "drop schema mainspring cascade",
        "truncate mainspring.task",
        "alter table mainspring.task add mine int",
        "create function mainspring.mine() returns int language sql return 1",
        "delete from mainspring.migration",
        "delete from mainspring.audit",
        "update mainspring.audit set actor = 'another'",
        "truncate mainspring.audit",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute(statement)
    await conn.close()


async def test_a_server_role_does_all_the_maintenance(house: House) -> None:
    database = Database(house.dsn("scheduler"))
    janitor = Janitor(database, keep_succeeded=timedelta(days=1), keep_failed=timedelta(days=1))
    await janitor.prepare()
    await janitor.step()
    await database.close()
    assert house.ask("select count(*) from mainspring.chore") > 5
    assert house.ask("select string_agg(name || ': ' || last_error, ', ') from mainspring.chore") is None


def test_a_server_role_on_the_command_line(cli: Callable[..., Outcome]) -> None:
    task = str(cli("scheduler", "task", "submit", "report", "--json").json["id"])
    for allowed in (
        *(
            ("job", "create", "x", "--max-running", "2", "--", "true"),
            ("task", "cancel", task),
            ("task", "retry", task),
        ),
        *(("schedule", "create", "nightly", "x", "--daily", "03:00"), ("schedule", "list"), ("job", "show", "x")),
        *(("token", "create", "rack"), ("token", "revoke", "1"), ("task", "show", task), ("stats",), ("migrate",)),
    ):
        found = cli("scheduler", *allowed)
        assert found.code == 0, (allowed, found.err)
    for denied in (("grant", "server", "shop"), ("revoke", "producer", "shop")):
        assert cli("scheduler", *denied).code == 5


# ── grant and revoke ────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_what_grant_and_revoke_run(house: House, cli: Callable[..., Outcome]) -> None:
    for kind in KINDS:
        printed = cli("landlord", "grant", kind, "stranger", "--dry-run").out
        assert _kind_of(house, "stranger") is None, "nothing was changed"
        house.ask(printed)
        assert _kind_of(house, "stranger") == kind
        for statement in cli("landlord", "revoke", kind, "stranger", "--dry-run", "--json").json["statements"]:
            house.ask(statement)
        assert _kind_of(house, "stranger") is None


def test_grant_changes_the_kind_of_a_role_and_revoke_leaves_nothing(house: House, cli: Callable[..., Outcome]) -> None:
    odd = 'odd "role'
    for kind in (*KINDS, *reversed(KINDS)):
        assert cli("landlord", "grant", kind, odd, "--json").json["done"]
        assert _kind_of(house, odd) == kind
    assert cli("landlord", "revoke", "viewer", odd).code == 4, "it is a producer"
    assert cli("landlord", "revoke", "producer", odd).code == 0
    assert _kind_of(house, odd) is None
    assert cli("landlord", "revoke", "producer", odd).code == 4
    house.ask('drop role "odd ""role"')  # it would refuse if a single privilege were left


def _kind_of(house: House, role: str) -> str | None:
    async def look() -> str | None:
        conn = await house.connect("landlord")
        found = {one.role: one.kind for one in await roles.listing(conn)}
        await conn.close()
        return found.get(role)

    return asyncio.run(look())


async def test_what_is_in_the_way_of_a_grant_is_said(house: House) -> None:
    for role, by, error in (
        ("nobody", "landlord", NotFound),
        ("public", "landlord", NotFound),
        *((odd, "landlord", NotFound) for odd in ("", "x" * 64, "a\0b", "\udcff")),
        ("landlord", "landlord", Conflict),
        ("stranger", "scheduler", AccessDenied),
        ("stranger", "shop", AccessDenied),
    ):
        with pytest.raises(error):
            await house.change(roles.grant_statements, "viewer", role, by=by)


async def test_a_migration_gives_each_role_what_is_new(house: House, tmp_path: Path) -> None:
    for file in FOLDER.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "0002_more.sql").write_text("""
        create table mainspring.more (id int);
        create function mainspring.more() returns int language sql return 1;
        revoke all on all functions in schema mainspring from public;
    """)
    assert await migrate(Database(house.dsn("landlord")), tmp_path)
    rights = {
        role: house.ask(f"""
            select json_build_array(has_table_privilege('{role}', 'mainspring.more', 'select'),
                                    has_table_privilege('{role}', 'mainspring.more', 'insert'),
                                    has_function_privilege('{role}', 'mainspring.more()', 'execute'))""")
        for role in GRANTED
    }
    nothing = [False, False, False]
    assert rights == {"shop": nothing, "web": nothing, "auditor": [True, False, False], "scheduler": [True, True, True]}
    house.ask("drop table mainspring.more; drop function mainspring.more")
    house.ask("delete from mainspring.migration where number = 2")
