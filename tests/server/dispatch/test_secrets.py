"""Secrets, from the database to a command or a receiver: resolved at dispatch, hidden in all that comes back."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.receiver import LOOPBACK, Receiver, receiving
from tests.secret_keys import TEXT, Ring

import mainspring
from mainspring.agent.executors.http import LONGEST_HEADER
from mainspring.model.access.actors import Actor
from mainspring.model.secrets.keys import new_key
from mainspring.model.secrets.references import Value
from mainspring.operations.definitions import secrets
from mainspring.store.postgres.database import Connection

ACTOR = Actor("test")
VALUE = "hunter2-hunter2"
PRINT = """
    echo "out $P"; echo "err $P" >&2
    printf %s "$P" | cut -c1-7 | tr -d "\\n"; printf %s "$P" | cut -c8-
    test "$P" = "$(printf "$WANT")"  # the value itself is in no argument and no other variable
"""


async def put(conn: Connection, name: str, value: str, **labels: str) -> None:
    await secrets.put(conn, ACTOR, name, value, labels=labels, keys=Ring())


def make_app(dsn: str, **settings: Any) -> mainspring.App:
    given: dict[str, Any] = {"secret_keys": TEXT, "http_allow": LOOPBACK, "labels": {"zone": "eu"}}
    return mainspring.App("test", dsn=dsn, poll=0.1, stop_patience=0.2, agent_name="tester", **(given | settings))


def printing(app: mainspring.App, name: str = "print", *, want: str = VALUE, **options: Any) -> Any:
    env: dict[str, Value] = {"P": mainspring.secret("db"), "WANT": "".join(f"\\{ord(c):03o}" for c in want)}
    return app.command(name, PRINT, shell=True, env=env, **options)


async def told(conn: Connection) -> str:
    """All that is kept of tasks: output, errors, results, definitions."""
    found = []
    for table in ("output", "attempt", "task_history", "task", "job", "audit"):
        found += [repr(tuple(row)) for row in await conn.fetch(f"select * from mainspring.{table}")]
    return "\n".join(found)


async def failure(task: Any) -> mainspring.TaskFailed:
    with pytest.raises(mainspring.TaskFailed) as raised:
        await task.result(timeout=20)
    return raised.value


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def test_a_command_gets_the_value_and_its_output_hides_it(dsn: str, conn: Connection) -> None:
    app = make_app(dsn)
    job = printing(app)
    await put(conn, "db", VALUE)
    async with app.running():
        await (await job.enqueue()).result(timeout=20)
    found = await told(conn)
    assert VALUE not in found
    assert "out ***\\n***" in found  # also where the command has written it in two pieces
    assert "err ***" in found


async def test_an_error_and_its_tail_of_stderr_hide_the_value(dsn: str, conn: Connection) -> None:
    app = make_app(dsn)
    job = printing(app, want="another")
    await put(conn, "db", VALUE)
    async with app.running():
        error = await failure(await job.enqueue())
    assert (error.error_code, "err ***" in str(error)) == ("exit_code", True)
    assert VALUE not in await told(conn)


async def test_the_next_dispatch_has_the_new_value(dsn: str, conn: Connection) -> None:
    app = make_app(dsn)
    before, after = printing(app, "before"), printing(app, "after", want="changed-value")
    await put(conn, "db", VALUE)
    async with app.running():
        await (await before.enqueue()).result(timeout=20)
        await put(conn, "db", "changed-value")
        await (await after.enqueue()).result(timeout=20)


async def test_every_way_to_an_agent_brings_the_value(dsn: str, conn: Connection) -> None:
    """Armed ahead in a warm interpreter, a broadcast, a retry, slots that are handed over."""
    app = make_app(dsn)
    check = f"import os, sys; sys.exit(os.environ['P'] != ''.join(map(chr, {[*map(ord, VALUE)]})))"
    env = {"P": mainspring.secret("db")}
    jobs = [
        app.command("broadcast", [sys.executable, "-c", check], env=env, broadcast=True),
        app.command("limited", [sys.executable, "-c", check], env=env, max_running=1),
    ]
    flaky = app.command(
        "flaky", 'test -n "$P" -a "$MAINSPRING_ATTEMPT" = 2', shell=True, env=env, retries=1, retry_delay="10ms"
    )
    warm = app.command("warm", ["-m", "tests.server.dispatch.warm_secret"], python=True, env=env, cwd=".")
    await put(conn, "db", VALUE)
    async with app.running():
        tasks = [await job.enqueue() for job in (*jobs, jobs[1], jobs[1], flaky)]
        tasks.append(await warm.using(delay=timedelta(seconds=2)).enqueue())
        for task in tasks:
            await task.result(timeout=30)


async def test_a_secret_that_there_is_not_fails_the_attempt_and_says_what_to_type(dsn: str, conn: Connection) -> None:
    app = make_app(dsn)
    job, other = printing(app), app.command("plain", ["true"])
    async with app.running():  # code may be there before its secrets
        error = await failure(await job.enqueue())
        await (await other.enqueue()).result(timeout=20)
        await put(conn, "db", VALUE)
        await (await job.enqueue()).result(timeout=20)
    assert error.error_code == "secret_unavailable"
    assert "`mainspring secret set db` makes one" in str(error)


@pytest.mark.parametrize("keys", [new_key("2"), None, new_key("1")], ids=["of another id", "none", "another"])
async def test_a_server_without_the_key_runs_nothing_with_an_empty_value(
    dsn: str, conn: Connection, keys: str | None
) -> None:
    app = make_app(dsn, secret_keys=keys)
    job = printing(app, want="")
    await put(conn, "db", VALUE)
    async with app.running():
        error = await failure(await job.enqueue())
    assert error.error_code == "secret_unavailable"
    assert "key '1'" in str(error)


async def test_only_an_agent_with_the_labels_gets_the_value(dsn: str, conn: Connection) -> None:
    await put(conn, "db", VALUE, zone="eu")
    app = make_app(dsn)
    job = printing(app)
    async with app.running():
        await (await job.enqueue()).result(timeout=20)
        await put(conn, "db", VALUE, zone="us")
        error = await failure(await job.enqueue())
    assert error.error_code == "secret_unavailable"
    assert "labels zone=us, and agent 'tester' does not have them" in str(error)


async def test_a_header_has_the_value_and_what_is_answered_hides_it(
    dsn: str, conn: Connection, receiver: Receiver
) -> None:
    app = make_app(dsn)
    receiver.statuses = [200]
    receiver.headers = {"ETag": f'"{VALUE}"'}
    job = app.http("ping", "POST", receiver.url, headers={"Authorization": mainspring.secret("db")})
    await put(conn, "db", f"{VALUE}\n")
    async with app.running():
        result = await (await job.enqueue()).result(timeout=20)
    assert receiver.got[0].headers["Authorization"] == VALUE
    assert result["headers"]["etag"] == '"***"'
    assert VALUE not in await told(conn)


@pytest.mark.parametrize(("status", "header"), [(200, "ETag"), (500, "Location")])
async def test_no_part_of_a_value_is_left_where_an_answer_is_cut(
    dsn: str, conn: Connection, receiver: Receiver, status: int, header: str
) -> None:
    app = make_app(dsn)
    receiver.statuses = [status]
    receiver.headers = {header: "x" * (LONGEST_HEADER - len(VALUE) + 2) + VALUE}
    job = app.http("ping", "POST", receiver.url, headers={"Authorization": mainspring.secret("db")}, retries=0)
    await put(conn, "db", VALUE)
    async with app.running():
        task = await job.enqueue()
        if status == 200:
            await task.result(timeout=20)
        else:
            await failure(task)
    found = await told(conn)
    assert "xxx" in found
    assert VALUE[:-3] not in found


async def test_a_value_that_fits_no_header_fails_the_attempt_and_is_not_told(
    dsn: str, conn: Connection, receiver: Receiver
) -> None:
    app = make_app(dsn)
    job = app.http("ping", "GET", receiver.url, headers={"X": mainspring.secret("db")}, retries=0)
    await put(conn, "db", f"{VALUE}\r\nHost: other")
    async with app.running():
        error = await failure(await job.enqueue())
    assert error.error_code == "secret_unavailable"
    assert receiver.got == []
    assert VALUE not in await told(conn)
