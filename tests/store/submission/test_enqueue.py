"""Enqueue: the SQL functions as any language calls them, and the drivers that call them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from mainspring.errors import JobNotFound, StoreUnavailable, ValidationError
from mainspring.model.messages import Ending
from mainspring.model.tasks.claim_floors import Released, parse_released
from mainspring.model.tasks.define_job import Options, define
from mainspring.model.tasks.jobs import Definition, Job, Python
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.numbers import MAX_INTEGER
from mainspring.store.postgres.database import Connection, Database, translate
from mainspring.store.submission.drivers import submit, submit_sync
from mainspring.store.submission.enqueue import Place, submit_and_claim, submit_each
from mainspring.store.submission.submissions import BulkSubmission, Submission
from mainspring.store.tasks import jobs, transitions
from mainspring.store.tasks.claims import BATCH_TOKENS


@pytest.fixture(autouse=True)
async def job(conn: Connection) -> None:
    await jobs.register(conn, {"report": Definition(Python("report"), priority=4)})


async def row(conn: Connection, task: int) -> Any:
    return await conn.fetchrow("select * from mainspring.task where id = $1", task)


async def written(conn: Connection) -> int:
    return int(
        await conn.fetchval("""
            select (select count(*) from mainspring.task) + (select count(*) from mainspring.task_key)
                 + (select count(*) from mainspring.dependency)
        """)
    )


async def test_the_call_of_the_documentation_works(conn: Connection) -> None:
    task = await conn.fetchval("""select mainspring.enqueue('report', '{"day": "2026-11-15"}', priority => 'high')""")
    stored = await row(conn, task)
    assert (json.loads(stored["args"]), stored["priority"], stored["state"]) == ({"day": "2026-11-15"}, 7, 1)
    assert (stored["attempt"], stored["crashes"], stored["token"], stored["session"]) == (0, 0, None, None)


async def test_defaults_are_the_jobs_priority_and_now(conn: Connection) -> None:
    task = await conn.fetchval("select mainspring.enqueue('report')")
    stored = await row(conn, task)
    assert (stored["priority"], stored["args"], stored["run_at"]) == (4, "{}", stored["created_at"])


async def test_every_argument_can_be_named(conn: Connection) -> None:
    parent = await conn.fetchval("select mainspring.enqueue('report')")
    task = await conn.fetchval(
        """select mainspring.enqueue(job => 'report', args => '{"a": 1}', priority => '0', run_at => '2030-01-01Z',
               key => 'k', key_ttl => '1 hour', after => $1, namespace => 'default')""",
        [parent],
    )
    stored = await row(conn, task)
    assert (stored["priority"], stored["run_at"], stored["key"], stored["state"]) == (
        0,
        datetime(2030, 1, 1, tzinfo=UTC),
        "k",
        0,
    )


async def test_many_at_once_keep_the_order_of_their_arguments(conn: Connection) -> None:
    ids = await conn.fetchval(
        "select mainspring.enqueue_many('report', $1::jsonb[], priority => 'low', delay => '1 minute')",
        [f'{{"n": {number}}}' for number in range(100)],
    )
    rows = await conn.fetch("select * from mainspring.task order by id")
    assert [r["id"] for r in rows] == ids
    assert [json.loads(r["args"])["n"] for r in rows] == list(range(100))
    assert {(r["priority"], r["run_at"] - r["created_at"]) for r in rows} == {(2, timedelta(minutes=1))}
    assert await conn.fetchval("select mainspring.enqueue_many('report', '{}')") == []


async def test_a_submission_is_part_of_the_callers_transaction(conn: Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        async with conn.transaction():
            await conn.fetchval("select mainspring.enqueue('report', key => 'k')")
            raise ZeroDivisionError
    assert await written(conn) == 0


# ── bad input: an answer of ours, and nothing written ───────────────────────────────────────────

DEEP = '{"a": ' + "[" * 64 + "]" * 64 + "}"
BAD: dict[str, tuple[str, str]] = {
    "no such job": ("'nightly'", "MSJ01"),
    "no job": ("null", "MSJ01"),
    "another namespace": ("'report', namespace => 'shop'", "MSJ01"),
    "null arguments": ("'report', null", "MSV01"),
    "JSON null": ("'report', 'null'", "MSV01"),
    "a list": ("'report', '[1]'", "MSV01"),
    "a string": ("""'report', '"x"'""", "MSV01"),
    "65 levels": (f"'report', '{DEEP}'", "MSV01"),
    "500 levels": ("'report', ('{\"a\": ' || repeat('[', 500) || repeat(']', 500) || '}')::jsonb", "MSV01"),
    "2^53": ("""'report', '{"a": 9007199254740992}'""", "MSV01"),
    "-2^53": ("""'report', '{"a": [-9007199254740992]}'""", "MSV01"),
    "400 digits": ("'report', ('{\"a\": ' || repeat('9', 400) || '}')::jsonb", "MSV01"),
    "400 digits and a fraction": ("'report', ('{\"a\": ' || repeat('9', 400) || '.5}')::jsonb", "MSV01"),
    "over 1 MB": ("'report', jsonb_build_object('a', repeat('x', 1048576))", "MSV01"),
    "over 1 MB of UTF-8": ("'report', jsonb_build_object('a', repeat('é', 600000))", "MSV01"),
    "an unknown priority": ("'report', priority => 'urgent'", "MSV01"),
    "priority 10": ("'report', priority => '10'", "MSV01"),
    "priority -1": ("'report', priority => '-1'", "MSV01"),
    "an empty priority": ("'report', priority => ''", "MSV01"),
    "a fullwidth digit": ("'report', priority => '５'", "MSV01"),
    "both times": ("'report', run_at => '2030-01-01Z', delay => '1 s'", "MSV01"),
    "before 1970": ("'report', run_at => '1969-12-31 23:59:59Z'", "MSV01"),
    "from 2200": ("'report', run_at => '2200-01-01Z'", "MSV01"),
    "infinity": ("'report', run_at => 'infinity'", "MSV01"),
    "minus infinity": ("'report', run_at => '-infinity'", "MSV01"),
    "a negative delay": ("'report', delay => '-1 s'", "MSV01"),
    "a delay of 1,000 years": ("'report', delay => '1000 years'", "MSV01"),
    "a delay beyond every timestamp": ("'report', delay => '300000 years'", "MSV01"),
    "an empty key": ("'report', key => ''", "MSV01"),
    "a key of 201 characters": ("'report', key => repeat('x', 201)", "MSV01"),
    "a control character in a key": ("'report', key => E'a\\nb'", "MSV01"),
    "a key for no time": ("'report', key => 'k', key_ttl => '0'", "MSV01"),
    "a key for less than no time": ("'report', key => 'k', key_ttl => '-1 s'", "MSV01"),
    "a key for 11 years": ("'report', key => 'k', key_ttl => '11 years'", "MSV01"),
    "a key for unknown time": ("'report', key => 'k', key_ttl => null", "MSV01"),
    "after nobody": ("'report', key => 'k', after => '{999999}'", "MSV01"),
    "after nobody behind a null": ("'report', key => 'k', after => '{null,999999}'", "MSV01"),
    "after 1,001": ("'report', after => array_fill(1::bigint, array[1001])", "MSV01"),
}


async def test_bad_input_has_a_code_and_a_field_and_writes_nothing(conn: Connection) -> None:
    wrong = {}
    for name, (arguments, code) in BAD.items():
        try:
            await conn.execute(f"select mainspring.enqueue({arguments})")
            wrong[name] = "accepted"
        except asyncpg.PostgresError as error:
            ours = translate(error)
            expected = ValidationError if code == "MSV01" else JobNotFound
            if not isinstance(ours, expected) or not ours.field:
                wrong[name] = repr(error)[:200]
    assert wrong == {}
    assert await written(conn) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "'nightly', array['{}'::jsonb]",
        "'report', array['{}', '[1]']::jsonb[]",
        "'report', array['{}', null]::jsonb[]",
        f"'report', array['{{}}', '{DEEP}']::jsonb[]",
        """'report', '{"{\\"\\":1e400}"}'::jsonb[]""",  # the shortest that breaks a rule
        "'report', array['{}']::jsonb[], priority => 'urgent'",
        "'report', array['{}']::jsonb[], delay => '-1 s'",
    ],
)
async def test_one_bad_task_of_many_refuses_all(conn: Connection, arguments: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as refusal:
        await conn.execute(f"select mainspring.enqueue_many({arguments})")
    assert isinstance(translate(refusal.value), (ValidationError, JobNotFound))
    assert await written(conn) == 0


_EACH = "enqueue_each(array['report'], array['{}']::jsonb[], options => array['%s']::jsonb[])"


@pytest.mark.parametrize(
    "call",
    [
        "enqueue('report', if_exists => 'explode')",
        "enqueue('report', if_exists => 'explode', key => 'new')",
        "enqueue('report', tags => array[array['a'], array['b']])",
        *(
            _EACH % options
            for options in (
                *("5", "[]", '"x"', '{"rule": "forged"}', '{"callback": {"batch": 1}}', '{"skip": "x"}'),
                *('{"parents": [1]}', '{"batch": 7}', '{"unknown": 1}', '{"retries": "5"}', '{"retries": 1.5}'),
                *('{"retries": null}', '{"retries": 1e10}', '{"timeout": "1"}', '{"timeout": 1e300}', '{"tags": {}}'),
            )
        ),
        *(
            f"enqueue_flow('[{step}]')"
            for step in (
                *("5", '{"job": "report", "steps": 5}', '{"job": "report", "delay": "soon"}'),
                *(
                    '{"job": "report", "delay": 1e300}',
                    '{"job": "report", "tags": 7}',
                    '{"job": "report", "batch": "b"}',
                ),
                *('{"job": "report", "run_at": "never"}', '{"job": "report", "retries": 1e10}'),
            )
        ),
    ],
)
async def test_options_that_nobody_may_give_are_refused_by_name(conn: Connection, call: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await conn.execute(f"select mainspring.{call}")
    assert refused.value.sqlstate == "MSV01", refused.value
    assert await written(conn) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "'report', '{\"a\": 9007199254740991}'",
        "'report', '{\"a\": \"99999999999999999999\"}'",
        "'report', '{\"a\": 0.12345678901234567890}'",
        f"'report', '{DEEP.replace('[[', '[', 1).replace(']]', ']', 1)}'",
        "'report', jsonb_build_object('a', repeat('x', 1048000))",
        "'report', run_at => '1970-01-01Z'",
        "'report', run_at => '2199-12-31Z'",
        "'report', delay => '0'",
        "'report', key => repeat('é', 200)",
        "'report', key => 'k', key_ttl => '10 years'",
        "'report', after => '{}'",
        "'report', after => null",
    ],
)
async def test_what_is_just_within_the_bounds_passes(conn: Connection, arguments: str) -> None:
    assert await conn.fetchval(f"select mainspring.enqueue({arguments})")


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_key_gives_the_same_task_while_it_lives(conn: Connection) -> None:
    first = await conn.fetchval("select mainspring.enqueue('report', key => 'k')")
    assert await conn.fetchval("""select mainspring.enqueue('report', '{"other": 1}', key => 'k')""") == first
    assert await conn.fetchval("select mainspring.enqueue('report', key => 'K')") != first
    await jobs.register(conn, {"other": Definition(Python("other"))})
    assert await conn.fetchval("select mainspring.enqueue('other', key => 'k')") != first


async def test_a_key_outlives_its_task_and_ends_with_its_time(conn: Connection) -> None:
    first = await conn.fetchval("select mainspring.enqueue('report', key => 'k', key_ttl => '1 hour')")
    await conn.execute("update mainspring.task set state = 3, token = 1")
    await transitions.finish(conn, [Ending(first, 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
    assert await conn.fetchval("select mainspring.enqueue('report', key => 'k')") == first
    await conn.execute("update mainspring.task_key set expires_at = mainspring.now()")
    second = await conn.fetchval("select mainspring.enqueue('report', key => 'k')")
    assert second != first
    assert await conn.fetchval("select mainspring.enqueue('report', key => 'k')") == second


async def test_many_with_one_key_at_once_make_one_task(dsn: str, conn: Connection) -> None:
    connections = [await Database(dsn).connect() for _ in range(6)]
    for _ in range(3):
        ids = await asyncio.gather(
            *(c.fetchval("select mainspring.enqueue('report', key => 'k')") for c in connections)
        )
        assert len(set(ids)) == 1
        assert await conn.fetchval("select count(*) from mainspring.task where key = 'k'") == 1
        await conn.execute("delete from mainspring.task")
        await conn.execute("update mainspring.task_key set expires_at = mainspring.now()")
    for connection in connections:
        await connection.close()


async def test_a_submission_that_waits_for_a_key_gets_it_when_the_first_rolls_back(dsn: str, conn: Connection) -> None:
    other = await Database(dsn).connect()
    with pytest.raises(ZeroDivisionError):
        async with conn.transaction():
            first = await conn.fetchval("select mainspring.enqueue('report', key => 'k')")
            waiting = asyncio.ensure_future(other.fetchval("select mainspring.enqueue('report', key => 'k')"))
            await asyncio.sleep(0)
            raise ZeroDivisionError
    second = await asyncio.wait_for(waiting, 20)
    assert second != first
    await other.close()
    assert [r["id"] for r in await conn.fetch("select id from mainspring.task")] == [second]


# ── after ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_parent_that_has_succeeded_is_not_waited_for(conn: Connection) -> None:
    parent = await conn.fetchval("select mainspring.enqueue('report')")
    await conn.execute("update mainspring.task set state = 3, token = 1")
    await transitions.finish(conn, [Ending(parent, 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
    child = await conn.fetchval("select mainspring.enqueue('report', after => $1)", [parent])
    assert (await row(conn, child))["state"] == 1


async def test_a_parent_that_has_failed_is_refused(conn: Connection) -> None:
    parent = await conn.fetchval("select mainspring.enqueue('report')")
    await conn.execute("update mainspring.task set state = 3, token = 1")
    await transitions.finish(conn, [Ending(parent, 1, 1, 1, TaskState.FAILED, 1.0, 2.0)])
    with pytest.raises(asyncpg.PostgresError, match=f"did not succeed; retry it with `mainspring task retry {parent}`"):
        await conn.fetchval("select mainspring.enqueue('report', after => $1)", [parent])
    assert await written(conn) == 0


# ── hints ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize(
    ("call", "hinted"),
    [
        ("enqueue('report')", True),
        ("enqueue('report', delay => '4 s')", True),
        ("enqueue('report', delay => '1 min')", False),
        ("enqueue_many('report', array['{}', '{}']::jsonb[])", True),
    ],
)
async def test_a_hint_goes_out_once_and_only_when_something_is_due_soon(
    conn: Connection, call: str, hinted: bool
) -> None:
    heard: list[object] = []
    await conn.add_listener("mainspring", lambda *hint: heard.append(hint[-1]))
    await conn.execute(f"select mainspring.{call}")
    await conn.execute("select 1")  # what was sent before its answer has arrived
    assert [str(hint).split()[0] for hint in heard] == (["due"] if hinted else [])


@pytest.mark.usefixtures("dsn")
async def test_the_hint_of_a_task_that_is_not_due_yet_says_where_it_lies(conn: Connection) -> None:
    """Claims ahead of time have passed that place, and would find it only when they start from now again."""
    heard: list[str] = []
    await conn.add_listener("mainspring", lambda *hint: heard.append(hint[-1]))
    alone: int = await conn.fetchval("select mainspring.enqueue('report', delay => '4 s')")
    later = NOW._replace(delay=timedelta(seconds=4))
    shared = await submit_each(conn, [later._replace(delay=timedelta(seconds=2)), later])
    await conn.execute("select 1")
    rows = await conn.fetch("select id, pool, priority, date_part('epoch', run_at) as at from mainspring.task")
    position = {row["id"]: Released(row["pool"], row["priority"], (row["at"], row["id"])) for row in rows}
    first = shared[0]
    assert first is not None
    assert [parse_released(hint.removeprefix("due ")) for hint in heard] == [position[alone], position[first]]


NOW = Submission("report", "{}")


# ── odd arguments ───────────────────────────────────────────────────────────────────────────────


ODD = {
    "job": ["null", "''", "repeat('x', 1000000)"],
    "args": ["null", "'null'", "'1'", "'[]'", "jsonb_build_object('n', 1e100::numeric)"],
    "priority": ["''", "'-1'", "'10'", "'urgent'", "repeat('9', 100000)"],
    "run_at": ["'infinity'", "'-infinity'", "'0001-01-01 BC'", "'294276-12-31'", "'1969-12-31 23:59:59Z'"],
    "delay": ["'-1 second'", "'1000000 years'", "interval '1 second' * -1", "'-178000000 years'"],
    "key": ["''", "repeat('k', 201)", "e'\\x01'"],
    "key_ttl": ["null", "'0'", "'-1 day'", "'100 years'"],
    "after": ["array[null]::bigint[]", "array[0]::bigint[]", "array[-1]::bigint[]", "array[9223372036854775807]",
              "array[[1, 2], [3, 4]]::bigint[]", "array_fill(1, array[1001])::bigint[]"],
    "namespace": ["null", "''", "'other'"],
    "concurrency_key": ["''", "repeat('k', 201)", "e'\\x01'"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
async def test_an_odd_argument_is_refused_by_name_and_nothing_is_written(
    conn: Connection, name: str, value: str
) -> None:
    given = {"job": "'report'", "key": "'k'", name: value}
    for function in ("enqueue", "enqueue_many"):
        arguments = dict(given)
        if function == "enqueue_many":
            if name in ("key", "key_ttl", "after"):
                continue
            del arguments["key"]
            arguments["args"] = f"array[{arguments.get('args', chr(39) + '{}' + chr(39))}]::jsonb[]"
        call = ", ".join(f"{name} => {value}" for name, value in arguments.items())
        with pytest.raises(asyncpg.PostgresError) as refused:
            await conn.execute(f"select mainspring.{function}({call})")
        assert refused.value.sqlstate in ("MSV01", "MSJ01"), (function, refused.value)
        assert len(str(refused.value)) < 400, "it does not echo what it was given"
    assert await written(conn) == 0


@pytest.mark.parametrize("infinity", ["infinity", "-infinity"])
async def test_an_infinite_interval_is_refused(conn: Connection, infinity: str) -> None:
    if conn.get_server_version().major < 17:
        pytest.skip("intervals are finite before PostgreSQL 17")
    for argument in (f"delay => '{infinity}'", f"key => 'k', key_ttl => '{infinity}'"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await conn.execute(f"select mainspring.enqueue('report', {argument})")
        assert refused.value.sqlstate == "MSV01"


async def test_no_arguments_at_all_are_no_tasks(conn: Connection) -> None:
    for args in ("null", "'{}'"):
        assert await conn.fetchval(f"select mainspring.enqueue_many('report', {args}::jsonb[])") == []


# ── claimed as they are made ────────────────────────────────────────────────────────────────────


async def owner_of(conn: Connection, *segments: int) -> UUID:
    server = uuid4()
    await conn.execute(
        "insert into mainspring.server (id, name, version, status) values ($1, 'one', '1', 'active')", server
    )
    await conn.execute("update mainspring.segment set owner = $1 where id = any($2::smallint[])", server, segments)
    return server


async def claim_at_birth(conn: Connection, server: UUID, known: Job | None = None) -> tuple[int, int | None]:
    """By a server that knows the job as it is now, or as given, for the session 11. Returns the task and its token."""
    job = known or await jobs.find(conn, "report")
    [(task, token)] = await submit_and_claim(conn, [NOW], [Place(job.id, job.pool, 11, 4)], server)
    assert task is not None
    return task, token


async def test_a_claim_at_birth_takes_a_number_of_the_servers_own_segments(conn: Connection) -> None:
    server = await owner_of(conn, 7, 42)
    for _ in range(5):
        task, token = await claim_at_birth(conn, server)
        assert task % 100 in (7, 42)
        stored = await row(conn, task)
        assert (stored["state"], stored["session"], stored["token"]) == (2, 11, token)
    assert await conn.fetchval("select count(*) from mainspring.claim") == 5


@pytest.mark.usefixtures("dsn")
async def test_a_server_without_segments_claims_nothing_at_birth_and_others_are_told(conn: Connection) -> None:
    server = await owner_of(conn)
    heard: list[object] = []
    await conn.add_listener("mainspring", lambda *hint: heard.append(hint[-1]))
    task, token = await claim_at_birth(conn, server)
    stored = await row(conn, task)
    assert (token, stored["state"], stored["session"], stored["attempt"]) == (None, 1, None, 0)
    assert heard == ["due"]
    assert await conn.fetchval("select count(*) from mainspring.claim") == 0


@pytest.mark.parametrize("limits", [{"max_running": 1}, {"concurrency_key": "{a}"}])
async def test_a_task_with_limits_is_not_claimed_at_birth(conn: Connection, limits: Options) -> None:
    await jobs.register(conn, {"report": define(Python("report"), limits)})
    task, token = await claim_at_birth(conn, await owner_of(conn, *range(100)))
    assert (token, (await row(conn, task))["state"]) == (None, 1)


@pytest.mark.parametrize("change", [{"broadcast": True}, {"requires": {"gpu": "a100"}}])
async def test_a_job_that_moved_to_another_pool_since_the_server_looked_is_not_claimed_at_birth(
    conn: Connection, change: Options
) -> None:
    known = await jobs.find(conn, "report")
    await jobs.register(conn, {"report": define(Python("report"), change)})
    server = await owner_of(conn, *range(100))
    task, token = await claim_at_birth(conn, server, known)
    assert (token, (await row(conn, task))["state"]) == (None, 1)


async def test_a_job_that_was_deleted_and_made_again_is_not_claimed_at_birth(conn: Connection) -> None:
    known = await jobs.find(conn, "report")
    await jobs.delete(conn, "report")
    await jobs.register(conn, {"report": known.definition})
    task, token = await claim_at_birth(conn, await owner_of(conn, *range(100)), known)
    assert (token, (await row(conn, task))["state"]) == (None, 1)


async def test_many_are_claimed_at_birth_in_one_claim_for_each_session(conn: Connection) -> None:
    server, job = await owner_of(conn, *range(0, 100, 3)), await jobs.find(conn, "report")
    places = [Place(job.id, job.pool, session, 4) for session in (11, 12, 11)]
    made = await submit_and_claim(conn, [NOW] * 5, [*places, None, places[0]], server)
    tasks, tokens = zip(*made, strict=True)
    stored = [await row(conn, task) for task in tasks]
    assert [(each["state"], each["session"], each["attempt"]) for each in stored] == [
        *((2, 11, 1), (2, 12, 1), (2, 11, 1), (1, None, 0), (2, 11, 1))
    ]
    assert [each["token"] for each in stored] == list(tokens)
    first = tokens[0]
    assert tokens == (first, first + 1, first + 2, None, first + 3)
    assert first % BATCH_TOKENS == 0
    assert list(tasks) == sorted(tasks)
    assert all(task % 3 == 0 for task in (each % 100 for each in tasks))
    claims = await conn.fetch("select session, batch, tasks from mainspring.claim order by session")
    assert [tuple(claim) for claim in claims] == [
        (11, first // BATCH_TOKENS, [tasks[0], tasks[2], tasks[4]]),
        (12, first // BATCH_TOKENS, [tasks[1]]),
    ]


@pytest.mark.parametrize("argument", ["claimer", "claimer_server", "hint", "session", "sessions"])
async def test_the_public_functions_take_nothing_that_is_for_servers(conn: Connection, argument: str) -> None:
    for function, first in (("enqueue", "job"), ("enqueue_many", "job"), ("enqueue_each", "jobs")):
        names = await conn.fetchval(
            "select proargnames from pg_proc where pronamespace = 'mainspring'::regnamespace and proname = $1", function
        )
        assert first in names
        assert argument not in names


# ── several in one statement ────────────────────────────────────────────────────────────────────


async def test_submissions_in_one_statement_are_what_they_would_be_alone(conn: Connection) -> None:
    await jobs.register(conn, {"gated": define(Python("gated"), {"max_running": 1})})
    at = datetime(2100, 1, 1, tzinfo=UTC)
    submissions = [
        Submission("report", '{"a": 1}'),
        Submission("report", "{}", priority="high"),
        Submission("gated", "{}", run_at=at),
        Submission("report", "{}", delay=timedelta(hours=1)),
        Submission("report", json.dumps({"long": "x" * 300}), key="k"),
    ]
    alone = [await submit(conn, each._replace(key=each.key and "alone")) for each in submissions]
    shared = await submit_each(conn, submissions)
    assert shared == sorted(task for task in shared if task is not None)
    for one, other in zip(alone, shared, strict=True):
        assert other is not None
        was, now = dict(await row(conn, one)), dict(await row(conn, other))
        assert now["run_at"] - now["created_at"] == was["run_at"] - was["created_at"] or now["run_at"] == at
        for name in ("id", "run_at", "created_at", "key"):
            del was[name], now[name]
        assert now == was
    keys = await conn.fetch("select key, task_id from mainspring.task_key order by key")
    assert [tuple(key) for key in keys] == [("alone", alone[4]), ("k", shared[4])]


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize("other", ["report", "gated", "bounded", "held", "nobody"])
async def test_what_jobs_are_among_them_changes_neither_the_tasks_nor_how_many_ids_are_drawn(
    conn: Connection, other: str
) -> None:
    definitions = {"gated": define(Python("gated"), {"max_running": 1}), "held": define(Python("held"), {})}
    await jobs.register(conn, definitions | {"bounded": define(Python("bounded"), {"max_queued": 10})})
    await conn.execute("update mainspring.job set held = mainspring.now() where name = 'held'")
    tagged = NOW._replace(tags=["a"], retries=2)
    submissions = [NOW, tagged._replace(priority="low"), tagged._replace(job=other), NOW._replace(args='{"a": 1}')]
    alone = [None if each.job == "nobody" else await submit(conn, each) for each in submissions]
    heard: list[object] = []
    await conn.add_listener("mainspring", lambda *hint: heard.append(hint[-1]))
    before = await conn.fetchval("select last_value from mainspring.task_id")
    shared = await submit_each(conn, submissions)
    assert [str(hint).split()[0] for hint in sorted(map(str, heard))] == (
        ["due", "gate"] if other in ("gated", "held") else ["due"]
    )
    assert [each is None for each in shared] == [each is None for each in alone]
    made = [each for each in shared if each is not None]
    assert made == list(range(before + 1, before + 1 + len(made))), "in the order given, and none drawn in vain"
    for one, other_one in zip(alone, shared, strict=True):
        if one is not None and other_one is not None:
            was, now = dict(await row(conn, one)), dict(await row(conn, other_one))
            assert now["run_at"] == now["created_at"]
            for name in ("id", "run_at", "created_at"):
                del was[name], now[name]
            assert now == was


async def test_a_key_that_is_taken_gives_its_task_and_one_that_has_expired_is_left_out(conn: Connection) -> None:
    taken, expired = [await submit(conn, Submission("report", "{}", key=key)) for key in ("taken", "expired")]
    await conn.execute(
        "update mainspring.task_key set expires_at = created_at from mainspring.task where id = $1", expired
    )
    await conn.execute("update mainspring.task_key set expires_at = 'infinity' where key = 'taken'")
    keys = ["taken", "expired", "new", "new", "other"]
    ids = await submit_each(conn, [Submission("report", "{}", key=key) for key in keys])
    assert ids[:2] == [taken, None]
    assert ids[3] is None, "the second with a key of the same statement is left to enqueue(), which finds the first"
    assert len({taken, *ids} - {None}) == 3
    assert await conn.fetchval("select count(*) from mainspring.task") == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"args": "[1]"},
        {"args": '{"a": 12345678901234567890}'},
        {"args": "{"},
        {"priority": "urgent"},
        {"run_at": datetime(1960, 1, 1, tzinfo=UTC)},
        {"delay": timedelta(days=-1)},
        {"key": "a\nb"},
        {"key": "k", "key_ttl": timedelta(0)},
    ],
)
async def test_a_statement_that_is_refused_has_submitted_nothing(conn: Connection, bad: dict[str, Any]) -> None:
    good = Submission("report", "{}", key="good")
    assert await submit_each(conn, [good, Submission("report", "{}")._replace(**bad)]) == [None, None]
    assert await written(conn) == 0


async def test_a_job_that_does_not_exist_is_left_out(conn: Connection) -> None:
    first, none, last = await submit_each(conn, [NOW, Submission("nobody", "{}"), NOW])
    assert none is None
    assert (first, last) == tuple(row[0] for row in await conn.fetch("select id from mainspring.task order by id"))


@pytest.mark.usefixtures("dsn")
async def test_a_statement_of_many_sends_one_hint(conn: Connection) -> None:
    heard: list[object] = []
    await conn.add_listener("mainspring", lambda *hint: heard.append(hint[-1]))
    await submit_each(conn, [NOW] * 10)
    await submit_each(conn, [NOW._replace(delay=timedelta(hours=1))] * 10)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    [first, *_] = await submit_each(conn, [NOW._replace(run_at=past), NOW])
    pool = (await jobs.find(conn, "report")).pool
    assert sorted(map(str, heard)) == ["due", "due", f"due {pool} 4 {past.timestamp():.6f} {first}"]


# ── drivers ─────────────────────────────────────────────────────────────────────────────────────

ONE = Submission("report", '{"a": 1}', priority="high", delay=timedelta(minutes=1), key="k")
MANY = BulkSubmission("report", ['{"n": 1}', '{"n": 2}'])
NOBODY = Submission("nightly", "{}")


async def _check(conn: Connection, one: Any, many: Any) -> None:
    stored = await row(conn, one)
    assert (stored["priority"], stored["key"], json.loads(stored["args"])) == (7, "k", {"a": 1})
    assert [json.loads((await row(conn, task))["args"])["n"] for task in many] == [1, 2]


async def test_asyncpg_submits(conn: Connection, database: Database) -> None:
    await _check(conn, await submit(conn, ONE), await submit(conn, MANY))
    async with database.acquire() as pooled:
        assert await submit(pooled, ONE) == await conn.fetchval("select task_id from mainspring.task_key")
    with pytest.raises(JobNotFound):
        await submit(conn, NOBODY)
    with pytest.raises(ValidationError, match="enqueue"):
        submit_sync(conn, ONE)


async def test_psycopg_submits(dsn: str, conn: Connection) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as theirs:
        many = await submit(theirs, MANY)
        with pytest.raises(ValidationError, match="enqueue"):
            submit_sync(theirs, ONE)
    with psycopg.connect(dsn) as theirs_too:
        one = submit_sync(theirs_too, ONE)
        with pytest.raises(ValidationError, match="enqueue_sync"):
            await submit(theirs_too, ONE)
    with psycopg.connect(dsn) as theirs_too, pytest.raises(JobNotFound):
        submit_sync(theirs_too, NOBODY)
    await _check(conn, one, many)


async def test_sqlalchemy_submits(dsn: str, conn: Connection) -> None:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as theirs:
        one = submit_sync(theirs, ONE)
    with engine.connect() as theirs, pytest.raises(JobNotFound):
        submit_sync(theirs, NOBODY)
    engine.dispose()
    async_engine = create_async_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    async with async_engine.begin() as theirs_too:
        many = await submit(theirs_too, MANY)
    await async_engine.dispose()
    await _check(conn, one, many)


async def test_what_is_no_connection_is_refused() -> None:
    for call in (submit, submit_sync):
        with pytest.raises(ValidationError, match="object is not a connection"):
            result = call(object(), ONE)
            await result


async def test_a_lost_connection_is_told_as_ours(dsn: str, conn: Connection) -> None:
    other = await Database(dsn).connect()
    pid = await other.fetchval("select pg_backend_pid()")
    await conn.execute("select pg_terminate_backend($1, 5000)", pid)
    with pytest.raises(StoreUnavailable):
        await submit(other, ONE)
    other.terminate()


async def test_no_id_and_no_token_gets_beyond_what_every_language_reads(conn: Connection) -> None:
    sql = "select max_value from pg_sequences where schemaname = 'mainspring' and sequencename = $1"
    assert await conn.fetchval(sql, "task_id") <= MAX_INTEGER
    assert (await conn.fetchval(sql, "claim_batch") + 1) * BATCH_TOKENS == MAX_INTEGER + 1
