"""Limits on the command line: how they are given, shown and waited for."""

from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Cli

from mainspring.store.limits import release
from mainspring.store.postgres.database import Database

LIMITS = ("--max-running", "5", "--concurrency-key", "shop:{shop}", "--rate", "100/minute", "--burst", "20")


def test_limits_of_a_job_are_stored_and_shown(cli: Cli) -> None:
    assert cli("job", "create", "export", *LIMITS, "--", "true").code == 0
    assert cli("job", "show", "export", "--json").json["definition"]["gate"] == {
        "max_running": 5,
        "key": "shop:{shop}",
        "rate": {"count": 100, "per": 60.0, "burst": 20},
    }
    shown = cli("job", "show", "export").out
    assert "max running\t5\n" in shown
    assert "concurrency key\tshop:{shop}\n" in shown
    assert "rate\t100/minute, burst 20\n" in shown


def test_limits_belong_to_calls_too_and_a_rate_may_be_each_keys_own(cli: Cli) -> None:
    options = ("--concurrency-key", "{c}", "--concurrency-limit", "none", "--rate", "1/second", "--rate-per", "key")
    assert cli("job", "create", "ping", "--http", "GET https://shop.example/", *options).code == 0
    gate = cli("job", "show", "ping", "--json").json["definition"]["gate"]
    assert (gate["key_limit"], gate["rate"]["per_key"]) == (None, True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--max-running", "0"), "max_running"),
        (("--rate", "100/fortnight"), "rate"),
        (("--concurrency-key", "k", "--concurrency-limit", "many"), "concurrency_limit"),
        (("--concurrency-key", "{"), "concurrency_key"),
        (("--broadcast", "--max-running", "1"), "max_running"),
    ],
)
def test_bad_limits_are_refused_and_nothing_is_made(cli: Cli, options: tuple[str, ...], field: str) -> None:
    outcome = cli("job", "create", "bad", *options, "--", "true")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{field}: " in outcome.err
    assert cli("job", "list", "--json").json == []


def test_a_job_that_is_kept_running_takes_no_limits(cli: Cli) -> None:
    assert cli("daemon", "create", "kept", "--", "sleep", "9").code == 0
    refused = cli("job", "create", "kept", "--max-running", "1", "--replace", "--", "sleep", "9")
    assert refused.code == 2
    assert "has limits" in refused.err


def test_a_task_with_a_key_says_who_has_it(cli: Cli, dsn: str) -> None:
    assert cli("job", "create", "hello", "--", "true").code == 0
    first, second = (cli("task", "submit", "hello", "--concurrency-key", "shop:7").out.strip() for _ in range(2))

    async def open_gates() -> None:
        conn = await Database(dsn).connect()
        for gate in await release.look(conn):
            await release.release(conn, gate, 10, ahead=0.0)
        await conn.close()

    asyncio.run(open_gates())
    reason = f"concurrency key 'shop:7': task {first} has it"
    assert f"waits\t{reason}\n" in cli("task", "show", second).out
    shown = cli("task", "show", second, "--json").json
    assert (shown["waits"], shown["concurrency_key"]) == ({"code": "concurrency_key", "reason": reason}, "shop:7")
    assert reason in cli("task", "list").out
    listed = {task["id"]: task["waits"] for task in cli("task", "list", "--json").json}
    assert listed[int(second)] == shown["waits"]
    assert cli("task", "show", first, "--json").json["waits"]["code"] == "no_agents"
    assert cli("task", "cancel", first).code == 0
    assert cli("task", "submit", "hello", "--concurrency-key", "a\nb").code == 2
