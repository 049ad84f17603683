"""`mainspring task …`, `stats` and `migrate` on a real database, where nothing runs yet."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cli.conftest import Cli

from mainspring.store.maintenance import chore_log
from mainspring.store.maintenance.chore_log import Done
from mainspring.store.postgres.database import Database
from mainspring.store.search import search


@pytest.fixture
def job(cli: Cli) -> str:
    assert cli("job", "create", "hello", "--", "echo", "hello").code == 0
    return "hello"


def _submit(cli: Cli, *arguments: str) -> str:
    outcome = cli("task", "submit", *arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out.strip()


def test_a_submitted_task_prints_its_number_and_nothing_else(cli: Cli, job: str) -> None:
    outcome = cli("task", "submit", job)
    assert outcome == (0, "1\n", "")
    assert cli("task", "submit", job, "--json").json == {
        "id": 2,
        "state": "pending",
        "created": True,
    }


def test_every_option_of_a_submission_is_stored(cli: Cli, job: str) -> None:
    first = _submit(cli, job, "--run-at", "2199-01-01T09:00:00.250+01:00", "--priority", "critical", "--key", "k")
    assert _submit(cli, job, "--key", "k") == first
    second = _submit(cli, job, "--delay", "1h30m", "--arg", "day=mon", "--arg", "force=true", "--after", first)
    view = cli("task", "show", first, "--json").json
    assert (view["run_at"], view["priority"], view["key"]) == ("2199-01-01T08:00:00.250000Z", 9, "k")
    view = cli("task", "show", second, "--json").json
    assert (view["state"], view["args"], view["waiting_for"]) == (
        "blocked",
        {"day": "mon", "force": True},
        [int(first)],
    )
    third = _submit(cli, job, "--args", '{"day": [1, null]}')
    assert cli("task", "show", third, "--json").json["args"] == {"day": [1, None]}
    fourth = _submit(cli, job, "--run-timeout", "10m", "--retries", "2", "--stalls-after", "90s")
    view = cli("task", "show", fourth, "--json").json
    assert (view["timeout"], view["retries"], view["stalls_after"]) == (600, 2, 90)
    assert "stalls after\t90 s, given with it\n" in cli("task", "show", fourth).out
    assert cli("task", "submit", job, "--stalls-after", "0").code == 2


def test_a_submission_waits_for_room_in_a_full_queue(cli: Cli, dsn: str) -> None:
    assert cli("job", "create", "small", "--max-queued", "1", "--", "true").code == 0
    _submit(cli, "small")
    refused = cli("task", "submit", "small", "--wait-for-room", "50ms")
    assert (refused.code, refused.out) == (4, "")
    assert "1 task of 'small' waits, and at most 1 may" in refused.err

    async def make_room_once_it_was_refused() -> None:
        conn = await Database(dsn).connect()
        before = after = await conn.fetchval("select last_value from mainspring.queue_full")
        while after == before:
            await asyncio.sleep(0.01)
            after = await conn.fetchval("select last_value from mainspring.queue_full")
        await conn.execute("delete from mainspring.task")
        await conn.close()

    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(asyncio.run, make_room_once_it_was_refused())
        _submit(cli, "small", "--wait-for-room", "1m")
        made.result()


def test_a_submission_may_require_that_an_agent_is_there(cli: Cli, job: str) -> None:
    refused = cli("task", "submit", job, "--require-agents")
    assert refused.code != 0
    assert "no agent" in refused.err
    assert cli("task", "list", "--json").out.strip() in ("", "[]")


def test_tasks_are_listed_newest_first_by_job_state_and_page(cli: Cli, job: str) -> None:
    cli("job", "create", "other", "--", "true")
    for name in (job, "other", job):
        _submit(cli, name)
    cli("task", "cancel", "1")

    def ids(*arguments: str) -> list[int]:
        return [view["id"] for view in cli("task", "list", "--json", *arguments).json]

    assert ids() == [3, 2, 1]
    assert ids("--job", job) == [3, 1]
    assert ids("--state", "cancelled") == [1]
    assert ids("--state", "cancelled", "--state", "pending") == [3, 2, 1]
    assert ids("--limit", "1", "--before", "3") == [2]
    assert cli("task", "list", "--limit", "1").err == "there may be more: --before 3\n"
    lines = cli("task", "list").out.splitlines()
    assert lines[0].split("\t") == [
        *("id", "job", "state", "agent", "attempt", "plan_time", "scope", "due", "late_ms", "error", "waits")
    ]
    assert lines[3].split("\t")[:3] == ["1", "hello", "cancelled"]


def test_tasks_are_found_by_what_is_known_of_them(cli: Cli, job: str) -> None:
    _submit(cli, job, "--key", "k", "--arg", 'customer={"id": 17}', "--priority", "high")
    _submit(cli, job, "--run-at", "2199-01-01T00:00:00Z")
    cli("task", "cancel", "1")

    def ids(*arguments: str) -> list[int]:
        return [view["id"] for view in cli("task", "list", "--json", *arguments).json]

    assert ids("--job", "hel*") == [2, 1]
    for found in (
        ("--key", "k"),
        ("--arg", "customer.id=17"),
        ("--priority", "high"),
        ("--error-code", "cancelled"),
        ("--finished-after", "1h"),
        ("--due-before", "2198-01-01T00:00:00Z"),
    ):
        assert ids(*found) == [1], found
    assert ids("--since", "1h", "--until", "2198-01-01T00:00:00Z") == [2, 1]
    assert ids("--until", "1h") == ids("--late-over", "1s") == ids("--job", "none*") == []
    assert cli("task", "list", "--agent", "nobody").code == 3
    assert cli("task", "list", "--since", "once").code == 2


def test_a_search_that_takes_long_says_how_to_go_on(cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        _submit(cli, job)
    monkeypatch.setattr(search, "WINDOW", 1)
    monkeypatch.setattr(search, "PATIENCE", 0.0)
    assert [view["id"] for view in cli("task", "list", "--json").json] == [3, 2, 1], "the command goes on by itself"
    monkeypatch.setattr("mainspring.cli.tasks.tasks.PATIENCE", 0.0)
    outcome = cli("task", "list", "--json")
    assert [view["id"] for view in outcome.json] == [3]
    cursor = outcome.err.split()[-1]
    assert [view["id"] for view in cli("task", "list", "--json", "--cursor", cursor).json] == [2]
    assert cli("task", "list", "--cursor", "forged").code == 2


def test_all_that_match_are_cancelled_once_somebody_agrees(cli: Cli, job: str) -> None:
    for _ in range(3):
        _submit(cli, job)
    cli("job", "create", "other", "--", "true")
    _submit(cli, "other")
    refused = cli("task", "cancel", "--job", job)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert cli("task", "cancel", "--job", job, "--yes", "--json").json == {"done": 3, "skipped": 0}
    assert [view["id"] for view in cli("task", "list", "--json", "--state", "pending").json] == [4]
    assert cli("task", "retry", "--job", job, "--yes").err == "retry: 3 tasks\n"
    for wrong in (("cancel",), ("cancel", "1", "--job", job), ("kill", "--yes"), ("retry", "--state", "bad", "--yes")):
        assert cli("task", *wrong).code == 2, wrong


def test_a_waiting_task_is_edited(cli: Cli, job: str) -> None:
    id = _submit(cli, job, "--delay", "1d")
    assert cli("task", "edit", id, "--priority", "critical").code == 0
    assert cli("task", "edit", id, "--run-at", "2199-01-01 09:00", "--tz", "Europe/Paris").code == 0
    view = cli("task", "show", id, "--json").json
    assert (view["priority"], view["run_at"]) == (9, "2199-01-01T08:00:00Z")
    assert cli("task", "edit", id, "--now", "--json").json == {"id": 1, "state": "pending"}
    assert cli("task", "show", id, "--json").json["run_at"] < "2199"
    cli("task", "cancel", id)
    assert cli("task", "edit", id, "--now").code == 4
    assert cli("task", "edit", "99", "--now").code == 3
    assert cli("task", "edit", id).code == 2


def test_a_task_is_cancelled_and_retried(cli: Cli, job: str) -> None:
    id = _submit(cli, job)
    assert cli("task", "cancel", id).out == f"{id}\tcancelled\n"
    assert "cancelled before it started" in cli("task", "show", id).out
    assert cli("task", "retry", id, "--json").json == [{"id": int(id), "outcome": "pending"}]
    assert cli("task", "show", id, "--json").json["state"] == "pending"


def test_a_bad_one_among_many_is_told_and_does_not_stop_the_others(cli: Cli, job: str) -> None:
    first, second = _submit(cli, job), _submit(cli, job)
    outcome = cli("task", "cancel", first, "99", second, first)
    assert outcome.code == 3
    assert outcome.out == f"{first}\tcancelled\n{second}\tcancelled\n"
    assert [line.partition(";")[0] for line in outcome.err.splitlines()] == [
        "mainspring: no task 99",
        f"mainspring: task {first} has already ended (cancelled)",
    ]


def test_waiting_for_a_task_that_did_not_succeed_ends_with_seven(cli: Cli, job: str) -> None:
    id = _submit(cli, job)
    cli("task", "cancel", id)
    outcome = cli("task", "wait", id)
    assert outcome.code == 7
    assert outcome.err.startswith(f"mainspring: task {id} cancelled: cancelled before it started; ")
    outcome = cli("task", "wait", id, "--json")
    assert (outcome.code, outcome.json["state"], json.loads(outcome.err)["code"]) == (7, "cancelled", "task_failed")


def test_waiting_too_long_ends_with_124_and_says_that_nobody_runs_tasks(cli: Cli, job: str) -> None:
    for timeout in ("0", "50ms"):
        outcome = cli("task", "submit", job, "--wait", "--timeout", timeout)
        assert outcome.code == 124
        assert "cannot start yet: no agent is connected; start one with `mainspring up`" in outcome.err
        assert "it goes on" in outcome.err


def test_what_does_not_exist_is_not_found(cli: Cli) -> None:
    for arguments in (
        ("task", "submit", "nothing"),
        ("task", "show", "9007199254740991"),
        ("task", "logs", "7"),
        ("task", "logs", "-f", "7"),
        ("task", "wait", "7"),
        ("task", "cancel", "7"),
        ("task", "retry", "7"),
        ("task", "list", "--job", "nothing"),
        ("job", "show", "nothing"),
        ("job", "delete", "nothing"),
    ):
        outcome = cli(*arguments, "--json")
        assert outcome.code == 3, arguments
        assert json.loads(outcome.err)["code"] in ("job_not_found", "task_not_found")


def test_retrying_a_task_that_has_not_ended_is_a_conflict(cli: Cli, job: str) -> None:
    assert cli("task", "retry", _submit(cli, job)).code == 4


def test_waiting_for_a_task_that_is_not_there_is_refused_at_submission(cli: Cli, job: str) -> None:
    outcome = cli("task", "submit", job, "--after", "99")
    assert outcome.code == 2
    assert cli("task", "list", "--json").json == []


def test_stats_count_what_is_live(cli: Cli, job: str) -> None:
    _submit(cli, job)
    found = cli("stats", "--json").json
    [waiting] = found.pop("waiting")
    assert {"task", "claim", "agent"} <= {table["table"] for table in found.pop("tables")}
    assert found.pop("oldest_due") < found.pop("counted_at")
    assert found.pop("queue_full_errors") >= 0
    assert found == {
        "live": {"blocked": 0, "pending": 1, "assigned": 0, "running": 0},
        "pending_tasks": 1,
        "running_tasks": 0,
        "completed_tasks": 0,
        "due": 1,
        "is_estimated": False,
        "arrivals": None,
        "last_hour": {},
        "retried": 0,
        "timeouts": 0,
        "last_minute": {"ended_per_second": 0.0, "lateness_ms": None},
        "total_workers": 0,
        "agents_total": 0,
        "agents_idle": 0,
        "lateness_ms": None,
        "servers": {},
        "blocked": {"times": 0, "seconds": 0.0},
        "leader": None,
        "agents": [],
        "maintenance": [],
    }
    assert (waiting["jobs"], waiting["tasks"], waiting["code"]) == ([job], 1, "no_agents")
    assert cli("stats").out.startswith("live\t1 pending\nlast hour\tnone\n")


def test_stats_show_what_the_maintenance_came_to(cli: Cli, dsn: str) -> None:
    async def tell() -> None:
        conn = await Database(dsn).connect()
        await chore_log.record(conn, [Done("forget keys", 2, 7, 1, 0.25, 3, "LockNotAvailableError: somebody reads")])
        await chore_log.record(conn, [Done("forget keys", 1, 1, 0, 0.5, 1, None)])
        await conn.close()

    asyncio.run(tell())
    [chore] = cli("stats", "--json").json["maintenance"]
    assert (chore["runs"], chore["rows"], chore["failures"], chore["last_rows"]) == (3, 8, 1, 1)
    assert (chore["last_seconds"], chore["last_error"]) == (0.5, None)
    shown = cli("stats").out
    assert "maintenance\truns\trows\tfailures\tlast\tms\terror\nforget keys\t3\t8\t1\t" in shown
    assert "table\tlive\tdead\tin_page_%\tvacuumed\tanalyzed\nagent\t" in shown


def test_migrate_shows_its_plan_applies_it_and_has_nothing_left(cli: Cli, empty_dsn: str) -> None:
    planned = cli("migrate", "--plan", "--json", "--dsn", empty_dsn).json["planned"]
    assert planned[0] == {"number": 1, "name": "schema"}
    assert cli("migrate", "--plan", "--dsn", empty_dsn).out.splitlines()[0] == "0001\tschema"
    assert cli("migrate", "--json", "--dsn", empty_dsn).json == {"applied": planned}
    outcome = cli("migrate", "--dsn", empty_dsn)
    assert outcome == (0, "", "the schema is up to date\n")
