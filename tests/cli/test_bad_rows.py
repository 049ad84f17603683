"""What somebody wrote with SQL and Python cannot read: a listing survives the row and names it."""

from __future__ import annotations

import logging

import pytest

from mainspring.store.postgres.database import Connection
from tests.cli.conftest import Cli, Stage

# What is written into a task, and the fields that cannot be read then.
POISON = {
    "a number of 400 digits": ("""args = ('{"n": ' || repeat('1', 400) || '.5}')::jsonb""", ["args"]),
    "5000 digits": ("""args = '{"n": 1e5000}'""", ["args"]),
    "3000 levels": ("progress = (repeat('[', 3000) || repeat(']', 3000))::jsonb", ["progress"]),
    "900 levels": ("checkpoint = (repeat('[', 900) || repeat(']', 900))::jsonb", []),
    "the year 10265": ("run_at = '10265-01-01Z'", ["run_at"]),
    "4000 BC": ("created_at = '4000-01-01Z BC'", ["created_at"]),
    "infinity": ("run_at = 'infinity', created_at = '-infinity'", ["run_at", "created_at"]),
}


@pytest.fixture
def three(cli: Cli) -> list[str]:
    assert cli("job", "create", "hello", "--", "echo", "hello").code == 0
    return [cli("task", "submit", "hello").out.strip() for _ in range(3)]


@pytest.mark.parametrize(("poison", "fields"), POISON.values(), ids=POISON)
@pytest.mark.parametrize("is_over", [False, True], ids=["live", "over"])
def test_tasks_are_listed_and_shown_and_the_bad_one_is_named(
    cli: Cli, stage: Stage, three: list[str], poison: str, fields: list[str], is_over: bool
) -> None:
    async def spoil(conn: Connection) -> None:
        await conn.execute(f"update mainspring.task set {poison} where id = $1", int(three[1]))

    stage(spoil)
    if is_over:
        assert cli("task", "cancel", three[1]).code == 0
    listed, shown = cli("task", "list"), cli("task", "show", three[1])
    assert (listed.code, shown.code) == (0, 0), listed.err + shown.err
    assert all(id in listed.out for id in three)
    unreadable = {task["id"]: task["unreadable"] for task in cli("task", "list", "--json").json}
    assert {str(id) for id in unreadable} == set(three)
    assert [reason.partition(":")[0] for reason in unreadable.pop(int(three[1]))] == fields
    assert not any(unreadable.values())
    for outcome in (listed, shown):
        assert (f"task {three[1]} holds what cannot be read" in outcome.err) == bool(fields)
    assert cli("task", "show", three[1], "--json").code == 0
    assert cli("stats").code == 0


BAD_SCHEDULE = {
    "policies": "policies = (repeat('[', 3000) || repeat(']', 3000))::jsonb",
    "another version's policies": """policies = '{"overlap": 7}'""",
    "next plan": "next_plan_at = '10265-01-01Z'",
    "code": """app = 'x', code = '{"name": 1}'""",
}


@pytest.mark.parametrize("poison", BAD_SCHEDULE.values(), ids=BAD_SCHEDULE)
def test_schedules_are_listed_and_the_bad_one_is_named(
    cli: Cli, stage: Stage, three: list[str], poison: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("good", "bad"):
        assert cli("schedule", "create", name, "hello", "--every", "1h").code == 0

    async def spoil(conn: Connection) -> None:
        await conn.execute(f"update mainspring.schedule set {poison} where name = 'bad'")

    stage(spoil)
    with caplog.at_level(logging.WARNING):
        listed = cli("schedule", "list", "--json")
    assert listed.code == 0, listed.err
    assert [schedule["name"] for schedule in listed.json] == ["good"]
    assert any("schedule bad cannot be read" in record.message for record in caplog.records)
    shown = cli("schedule", "show", "bad")
    assert (shown.code, "schedule 'bad' cannot be read" in shown.err) == (2, True)


@pytest.mark.parametrize("definition", ["""'{"run": 7}'""", "(repeat('[', 3000) || repeat(']', 3000))::jsonb"])
def test_jobs_are_listed_and_the_bad_one_is_named(
    cli: Cli, stage: Stage, three: list[str], definition: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli("job", "create", "bad", "--", "echo").code == 0

    async def spoil(conn: Connection) -> None:
        await conn.execute(f"update mainspring.job set definition = {definition} where name = 'bad'")

    stage(spoil)
    with caplog.at_level(logging.WARNING):
        listed = cli("job", "list", "--json")
    assert listed.code == 0, listed.err
    assert [job["name"] for job in listed.json] == ["hello"]
    assert any("job bad cannot be read" in record.message for record in caplog.records)
    shown = cli("job", "show", "bad")
    assert (shown.code, "job 'bad' cannot be read" in shown.err) == (2, True)
    assert cli("stats").code == 0


def test_agents_are_listed_and_the_bad_one_is_named(cli: Cli, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def spoil(conn: Connection) -> None:
        for name, labels in (("good", "{}"), ("bad", '{"gpu": 7}')):
            await conn.execute(
                "insert into mainspring.agent (name, slots, labels, lease_until) "
                "values ($1, 1, $2, mainspring.now() + interval '1 h')",
                name,
                labels,
            )
        await conn.execute("update mainspring.agent set connected_at = '10265-01-01Z' where name = 'good'")

    stage(spoil)
    with caplog.at_level(logging.WARNING):
        listed = cli("agents", "list", "--json")
        assert listed.code == 0, listed.err
        assert [agent["name"] for agent in listed.json] == ["good"]
        assert any("bad" in record.message for record in caplog.records)
        assert cli("stats").code == 0
