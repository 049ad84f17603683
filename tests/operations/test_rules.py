"""Priority rules: what is refused, which one decides, and that SQL obeys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo, same_in_json

from mainspring.errors import Forbidden, NameTaken, RuleNotFound, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.flows.rules import EXAMPLES, Condition, NewRule
from mainspring.operations import settings
from mainspring.operations.definitions import jobs, rules
from mainspring.operations.definitions.rules import RuleChange, RuleTest
from mainspring.store.flows import bounds
from mainspring.store.postgres.database import Connection, Database


@pytest.fixture(autouse=True)
async def build(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "build", echo())
    await jobs.put(conn, ACTOR, "tidy", echo())


def when(field: str, operator: Any, value: Any) -> Condition:
    return Condition(field, operator, value)


async def priority(conn: Connection, **given: Any) -> tuple[int, str | None]:
    """Of a task that SQL submits, and the rule that decided."""
    names = ", ".join(f"{name} => ${number}" for number, name in enumerate(given, 1))
    id = await conn.fetchval(f"select mainspring.enqueue({names})", *given.values())
    row = await conn.fetchrow("select priority, options->>'rule' from mainspring.task where id = $1", id)
    return row[0], row[1]


async def test_the_examples_do_what_requirement_004_asks_for(conn: Connection) -> None:
    for name, example in EXAMPLES.items():
        await rules.put(conn, ACTOR, name, example)
    pools = [row["id"] for row in await conn.fetch("select id from mainspring.pool")]
    await bounds.write_loads(conn, dict.fromkeys(pools, (0, 10)))
    seven = '{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}'
    assert await priority(conn, job="build", tags=["hotfix"], args=seven) == (9, "urgent labels")
    assert await priority(conn, job="build", tags=["urgent"], priority="low", args=seven) == (9, "urgent labels")
    core = '{"repository": "core"}'
    assert await priority(conn, job="build", args=core) == (7, "important repositories")
    assert await priority(conn, job="build", args=core, priority="low") == (2, None), "a given priority stands"
    assert await priority(conn, job="build", args='{"a": 1, "b": 2}') == (6, "simple tasks sooner")
    assert await priority(conn, job="build", args=seven) == (7, "events before schedules")
    await bounds.write_loads(conn, dict.fromkeys(pools, (9, 10)))
    assert await priority(conn, job="build", args=seven) == (3, "busy: complex tasks later")


async def test_many_and_each_obey_as_one_does(conn: Connection) -> None:
    await rules.put(conn, ACTOR, "core", NewRule(when=[when("args.repo", "like", "core*")], priority="high"))
    await conn.fetchval(
        """select mainspring.enqueue_many('build', array['{"repo": "core-x"}', '{"repo": "x"}']::jsonb[])"""
    )
    await conn.fetchval(
        """select mainspring.enqueue_each(array['build', 'tidy'], array['{"repo": "core"}', '{}']::jsonb[])"""
    )
    found = await conn.fetch("select priority, options->>'rule' as rule from mainspring.task order by id")
    assert [tuple(row) for row in found] == [(7, "core"), (5, None), (7, "core"), (5, None)]


_SEVERAL = {
    "forced": NewRule(order=1, when=[when("tag", "has", "urgent")], priority=9, force=True),
    "mine": NewRule(order=2, when=[when("submitter", "=", "alice")], shift=-3),
    "of a batch": NewRule(order=3, when=[when("origin", "=", "batch")], shift=9),
    "small": NewRule(order=4, when=[when("args_count", "<", 2), when("tag", "has", "x")], shift=1),
    "core": NewRule(order=5, when=[when("args.repo", "like", "core*")], priority=7),
}


@pytest.mark.parametrize("given", [None, "low"], ids=["no priority given", "a priority given"])
@pytest.mark.parametrize("submitter", [None, "alice"])
@pytest.mark.parametrize("tags", [None, ["x"], ["x", "urgent"]], ids=str)
@pytest.mark.parametrize("in_batch", [False, True], ids=["alone", "in a batch"])
async def test_every_way_of_submitting_decides_alike(
    conn: Connection, given: str | None, submitter: str | None, tags: list[str] | None, in_batch: bool
) -> None:
    """enqueue() asks the rules by itself, the others by mainspring.by_rules()."""
    for name, rule in _SEVERAL.items():
        await rules.put(conn, ACTOR, name, rule)
    batch = await conn.fetchval("select mainspring.open_batch('import')") if in_batch else None
    for args in ("{}", '{"repo": "core-x", "n": 1}'):
        await conn.execute("delete from mainspring.task")
        await conn.fetchval(
            """select mainspring.enqueue('build', $1::jsonb, priority => $2, tags => $3, submitter => $4, batch => $5),
                      mainspring.enqueue_many('build', array[$1::jsonb], priority => $2, tags => $3, submitter => $4,
                                              batch => $5)""",
            *(args, given, tags, submitter, batch),
        )
        options = {"tags": tags, "submitter": submitter}
        own = json.dumps({name: value for name, value in options.items() if value})
        await conn.fetchval(
            """select mainspring.enqueue_each('{build}', array[$1::jsonb], priorities => array[$2::text],
                                              options => array[$3::jsonb], batches => array[$4::bigint])""",
            *(args, given, own, batch),
        )
        found = await conn.fetch("select priority, options->>'rule' from mainspring.task order by id")
        assert len(found) == 3
        assert len({tuple(row) for row in found}) == 1, [tuple(row) for row in found]


async def test_the_origin_of_a_task_of_a_batch_is_the_batch_however_it_is_submitted(conn: Connection) -> None:
    await rules.put(conn, ACTOR, "batches later", NewRule(when=[when("origin", "=", "batch")], priority="low"))
    batch = await conn.fetchval("select mainspring.open_batch('import')")
    assert await priority(conn, job="build", batch=batch) == (2, "batches later")
    await conn.fetchval("select mainspring.enqueue_many('build', array['{}']::jsonb[], batch => $1)", batch)
    await conn.fetchval(
        "select mainspring.enqueue_each('{build,build}', array['{}', '{}']::jsonb[], batches => $1)", [batch, None]
    )
    found = await conn.fetch("select batch_id is not null as joined, priority from mainspring.task order by id")
    assert [tuple(row) for row in found] == [(True, 2), (True, 2), (True, 2), (False, 5)]


@pytest.mark.parametrize("is_first", [True, False], ids=["the rule first", "the job first"])
async def test_a_job_that_is_made_while_a_rule_changes_obeys_it(
    conn: Connection, database: Database, is_first: bool
) -> None:
    """And a bound of all jobs, which is a setting that they have a copy of."""

    async def rule(conn: Connection) -> None:
        await rules.put(conn, ACTOR, "low", NewRule(jobs="bu*", priority="low"))
        await settings.edit(conn, ACTOR, {"max_queued": 7})

    async def job(conn: Connection) -> None:
        await jobs.put(conn, ACTOR, "build 2", echo())

    first, second = (rule, job) if is_first else (job, rule)
    async with database.acquire() as other:
        async with conn.transaction():
            await first(conn)
            later = asyncio.create_task(second(other))
            while not later.done() and not await conn.fetchval(_WAITS_FOR_A_LOCK):
                await asyncio.sleep(0.01)
        await later
    assert await priority(conn, job="build 2") == (2, "low")
    assert await conn.fetchval("select max_in_all from mainspring.job where name = 'build 2'") == 7


_WAITS_FOR_A_LOCK = """
    select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())
"""


async def test_a_rule_is_for_the_jobs_that_it_names_and_can_be_disabled(conn: Connection) -> None:
    await rules.put(conn, ACTOR, "all", NewRule(jobs="bu*", shift=2))
    assert await priority(conn, job="build") == (7, "all")
    assert await priority(conn, job="tidy") == (5, None)
    await rules.put(conn, ACTOR, "all", NewRule(jobs="bu*", shift=2, enabled=False))
    assert await priority(conn, job="build") == (5, None)
    assert not await conn.fetchval("select bool_or(is_checked) from mainspring.job"), "and then nobody pays for it"


async def test_the_first_that_fits_decides(conn: Connection) -> None:
    await rules.put(conn, ACTOR, "b", NewRule(order=20, priority=8))
    await rules.put(conn, ACTOR, "a", NewRule(order=30, priority=1))
    assert await priority(conn, job="build") == (8, "b")
    await rules.put(conn, ACTOR, "a", NewRule(order=10, priority=1))
    assert await priority(conn, job="build") == (1, "a")
    await rules.delete(conn, ACTOR, "a")
    assert await priority(conn, job="build") == (8, "b"), "a new job sees them too"
    await jobs.put(conn, ACTOR, "new", echo())
    assert await priority(conn, job="new") == (8, "b")


@pytest.mark.parametrize(
    ("condition", "args", "fits"),
    [
        (when("args.a.b", "=", 7), '{"a": {"b": 7}}', True),
        (when("args.a.b", "=", 7), '{"a": 7}', False),
        (when("args.list", "has", "x"), '{"list": ["x", "y"]}', True),
        (when("args.list", "has", "x"), '{"list": ["y"]}', False),
        (when("args.n", ">", 2), '{"n": 3}', True),
        (when("args.n", ">", 2), '{"n": "3"}', False),
        (when("args.n", "<", 2), "{}", False),
        (when("args.flag", "=", True), '{"flag": true}', True),
        (when("args.none", "=", None), '{"none": null}', True),
        (when("args.text", "like", 'a"b\\*.c'), '{"text": "a\\"b\\\\xx.c"}', True),
        (when("args.text", "like", "a.c"), '{"text": "abc"}', False),
        (when('args."quoted', "=", "x"), '{"\\"quoted": "x"}', True),
        (when("args_count", "<", 2), '{"n": 1}', True),
        (when("args_bytes", ">", 1000), '{"n": 1}', False),
        (when("waiting", "<", 1), "{}", True),
        (when("origin", "=", "schedule"), "{}", False),
    ],
)
async def test_conditions(conn: Connection, condition: Condition, args: str, fits: bool) -> None:
    await rules.put(conn, ACTOR, "it", NewRule(when=[condition], priority=9))
    assert (await priority(conn, job="build", args=args) == (9, "it")) is fits


async def test_a_test_says_why_and_submits_nothing(conn: Connection) -> None:
    await rules.put(conn, ACTOR, "urgent", NewRule(order=1, when=[when("tag", "in", ["hotfix"])], priority=9))
    await rules.put(conn, ACTOR, "off", NewRule(order=2, priority=1, enabled=False))
    await rules.put(conn, ACTOR, "tidy", NewRule(order=3, jobs="tidy*", priority=1))
    await rules.put(conn, ACTOR, "small", NewRule(order=4, when=[when("args_count", "<", 3)], shift=1))
    await rules.put(conn, ACTOR, "last", NewRule(order=5, priority=2))
    found = await rules.explain(conn, ACTOR, "build", args={"repo": "core"}, tags=["slow"])
    assert (found.priority, found.rule, found.reason) == (6, "small", "by rule 'small'")
    assert [(answer.rule, answer.decides) for answer in found.rules] == [
        ("urgent", False),
        ("off", False),
        ("tidy", False),
        ("small", True),
        ("last", False),
    ]
    reasons = [answer.reason for answer in found.rules]
    assert reasons[0] == "tag in hotfix: it is ['slow']"
    assert reasons[1:3] == ["it is disabled", "it is for the jobs 'tidy*'"]
    assert reasons[4] == "rule 'small' decides before it"
    assert same_in_json(found, RuleTest)
    given = await rules.explain(conn, ACTOR, "build", priority="low")
    assert (given.priority, given.rule) == (2, None)
    assert await conn.fetchval("select count(*) from mainspring.task") == 0


async def test_versions_names_and_who_may(conn: Connection) -> None:
    made = await rules.put(conn, ACTOR, "core", NewRule(priority="high"))
    assert (made.created, made.rule.version, made.rule.priority) == (True, 1, 7)
    assert same_in_json(made, RuleChange)
    for priority in ("low", "high"):
        with pytest.raises(NameTaken):
            await rules.put(conn, ACTOR, "core", NewRule(priority=priority), replace=False)
    with pytest.raises(StaleVersion):
        await rules.put(conn, ACTOR, "core", NewRule(priority="low"), version=7)
    for call in (rules.show(conn, ACTOR, "none"), rules.delete(conn, ACTOR, "none")):
        with pytest.raises(RuleNotFound, match="rule list"):
            await call
    with pytest.raises(Forbidden):
        await rules.put(conn, Actor("x", jobs=("build",)), "core", NewRule(priority="low"))
    assert await conn.fetchval("select count(*) from mainspring.audit where action = 'rule.put'") == 1


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (NewRule(), "shift"),
        (NewRule(priority=1, shift=1), "shift"),
        (NewRule(shift=0), "shift"),
        (NewRule(priority="urgent"), "priority"),
        (NewRule(priority=1, order=-1), "order"),
        (NewRule(priority=1, jobs=""), "jobs"),
        (NewRule(priority=1, when=[when("state", "=", 1)]), "when[0].field"),
        (NewRule(priority=1, when=[when("args", "=", 1)]), "when[0].field"),
        (NewRule(priority=1, when=[when("tag", "is", 1)]), "when[0].is"),
        (NewRule(priority=1, when=[when("tag", "in", "x")]), "when[0].value"),
        (NewRule(priority=1, when=[when("load", ">", "x")]), "when[0].value"),
        (NewRule(priority=1, when=[when("tag", "like", 1)]), "when[0].value"),
        (NewRule(priority=1, when=[when("tag", "=", {})]), "when[0].value"),
        (NewRule(priority=1, when=[when("origin", "=", "event")]), "when[0].value"),
    ],
)
async def test_what_is_refused(conn: Connection, rule: NewRule, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        await rules.put(conn, ACTOR, "x", rule)
    assert refused.value.field == field
