"""A terminal of 80 columns: every table fits, and no word or number is broken."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from mainspring.cli.layout import Room, columns_of, fit, shortened, wrapped
from mainspring.model.access.actors import Role
from mainspring.store.access import sessions as console
from mainspring.store.daemons import daemons, replicas
from mainspring.store.postgres.database import Connection, Database
from tests.cli.conftest import Cli
from tests.cluster import add_server, lead, note_move, own

COLUMNS = 80
LONG = "warehouse-inventory-reconciliation-for-the-northern-region"
ERROR = (
    "ConnectionRefusedError: the inventory service at inventory.example:8443 does not take connections at the moment"
)

COMMANDS = [
    ("job", "list"),
    ("job", "show", LONG),
    ("task", "list"),
    ("task", "list", "--schedule", "nightly"),
    ("task", "list", "--state", "failed"),
    ("task", "show", "1"),
    ("task", "show", "2"),
    ("schedule", "list"),
    ("schedule", "show", "nightly"),
    ("schedule", "check"),
    ("schedule", "explain", "nightly"),
    ("schedule", "preview", "daily", "at", "02:30", "--tz", "Europe/Paris", "--after", "2026-03-27"),
    ("schedule", "calendar", "list"),
    ("daemon", "list"),
    ("daemon", "show", "gateway"),
    ("agents",),
    ("agents", "show", LONG),
    ("servers",),
    ("servers", "show", "3f2a91c0"),
    ("segments",),
    ("segments", "--each"),
    ("segments", "--events"),
    ("token", "list"),
    ("audit",),
    ("sessions",),
    ("stats",),
]


async def _furnish(conn: Connection) -> None:
    """Agents with a past, tasks in many states, servers, segments that move."""
    servers = [await add_server(conn, name, host="a.example", url="ws://a.example:7070") for name in ("alpha", LONG)]
    await conn.execute("update mainspring.server set id = '3f2a91c0-0000-4000-8000-000000000000' where name = 'alpha'")
    await lead(conn, servers[1], term=7)
    login, _ = await console.create_code(conn, f"token:{LONG}", role=Role.VIEWER, jobs=[LONG])
    await console.exchange(conn, login, address="2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")
    await own(conn, servers[1], [*range(0, 98, 2), 99])
    for number in range(3):
        await note_move(conn, [*range(number, 90, 4)], servers[1], None, "dead")
    session = await conn.fetchval(
        """
        insert into mainspring.agent (name, slots, labels, offers, lease_until, cpu, memory, ack_time, skew, version,
                                      server, host)
        values ($1, 100, '{"zone": "north", "disk": "ssd", "rack": "seven"}', '{"gpu": 2, "memory_gb": 64}',
                mainspring.now() + interval '1 hour', 0.25, 0.5, 0.0125, 0.003, '0.1.0', $2, 'agent.example')
        returning session
        """,
        LONG,
        servers[1],
    )
    await conn.execute(
        "update mainspring.task set state = 3, session = $1, token = 1, attempt = 1, started_at = run_at where id = 1",
        session,
    )
    await conn.execute(
        """
        with ended as (delete from mainspring.task where id between 2 and 6 returning *)
        insert into mainspring.task_history
            (id, run_at, created_at, started_at, finished_at, recorded_at, token, session, job_id, pool, state,
             priority, attempt, crashes, args, error_code, error, schedule_id, plan_time, scope, origin)
        select id, run_at, created_at - interval '3 days', run_at, mainspring.now(), mainspring.now(), id, $1, job_id,
               pool, case when id % 2 = 0 then 11 else 10 end, priority, 1, 0, args, 'failed',
               case when id % 2 = 0 then $2 end, schedule_id, plan_time, scope, origin
          from ended
        """,
        session,
        ERROR,
    )
    await conn.execute(
        """
        insert into mainspring.attempt (task_id, token, number, session, state, started_at, finished_at, recorded_at,
                                        run_at, error)
        select 2, 1, 1, $1, 11, mainspring.now(), mainspring.now(), mainspring.now(), mainspring.now(), $2
        """,
        session,
        ERROR,
    )
    await conn.execute(  # nobody has planned it for some hours
        """
        update mainspring.schedule set since = since - interval '3 h', created_at = created_at - interval '3 h',
                                       next_plan_at = next_plan_at - interval '3 h' where name = $1
        """,
        LONG,
    )
    await daemons.make(conn)
    due = await replicas.due(conn, within=1.0, limit=10)
    await replicas.claim(conn, {one.task: session for one in due})


@pytest.fixture
def furnished(cli: Cli, dsn: str, no_servers: None) -> str:
    """A database with something in every table, with long names and errors."""
    for line in (
        ("job", "create", LONG, "--description", f"what {LONG} is for", "--", "rsync", "--archive", *["/srv/data"] * 9),
        ("job", "create", "hello", "--timeout", "10s", "--", "echo", "hello"),
        (
            "schedule",
            "calendar",
            "set",
            "holidays",
            *(f"2026-{month:02}-{day:02}" for month in (1, 5) for day in range(1, 9)),
        ),
        (
            "schedule",
            "create",
            "nightly",
            "hello",
            "--weekly",
            "mon, wed, fri 03:00",
            "--tz",
            "Europe/Paris",
            "--enable",
        ),
        ("schedule", "create", LONG, LONG, "--every", "1h", "--scope", "eu", "--scope", LONG, "--enable"),
        *[("task", "submit", LONG, "--arg", f"region={LONG}")] * 3,
        *[("schedule", "run-now", "nightly")] * 2,
        ("schedule", "run-now", LONG),
        ("task", "submit", "hello", "--delay", "3d"),
        ("daemon", "create", "gateway", "--replicas", "2", "--", "sleep", "1000"),
        ("token", "create", LONG),
        ("token", "create", "rack-7", "--expires", "1h"),
    ):
        assert (told := cli(*line)).code == 0, told.err
    cli("token", "revoke", "2")

    async def furnish() -> None:
        conn = await Database(dsn).connect()
        await _furnish(conn)
        await conn.close()

    asyncio.run(furnish())
    return dsn


_SCRIPT = """
import json, sys
from mainspring.cli.main import main
for number, arguments in enumerate(json.loads(sys.argv[1])):
    print(f"== {number} {main(arguments)}", flush=True)
"""


def on_terminal(dsn: str, commands: list[tuple[str, ...]], *, stderr: bool = False) -> Iterator[list[str]]:
    """The lines that each command writes to a terminal of 80 columns: of its output, or of all that it says."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environ |= {"MAINSPRING_DSN": dsn, "TERM": "xterm", "PYTHONWARNINGS": "error"}
    line = [sys.executable, "-c", _SCRIPT, json.dumps(commands)]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs if stderr else subprocess.DEVNULL}
    with subprocess.Popen(line, env=environ, **streams):  # type: ignore[call-overload]
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 65536):
                written += piece
        except OSError:  # so does Linux tell that the other side is closed
            pass
        finally:
            os.close(ours)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).replace("\r\n", "\n")
    parts = re.split(r"^== (\d+) (\d+)\n", shown, flags=re.MULTILINE)
    assert len(parts) == 3 * len(commands) + 1, shown
    for lines, number, code in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        assert int(code) in (0, 1, 4), (commands[int(number)], shown)  # 1: `check` finds something missing
        yield lines.splitlines()


_CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?|\d{4}-\d\d-\d\d")


def test_every_table_fits_and_breaks_no_word(furnished: str) -> None:
    narrow = on_terminal(furnished, COMMANDS)
    wide = on_terminal(furnished, [(*line, "--wide") for line in COMMANDS])
    for command, lines, whole in zip(COMMANDS, narrow, wide, strict=True):
        assert lines, command
        words = {word for line in whole for word in line.split()}
        for line in lines:
            is_long_word = len(line.split()[-1]) > COLUMNS // 2 and not line.endswith("…") if line.strip() else False
            assert columns_of(line) <= COLUMNS or is_long_word, (command, line)
            assert not is_long_word or "show" in command, (command, line)  # a table cuts what is too long
            for word in line.split():
                is_cut = word.endswith("…") and any(full.startswith(word[:-1].rstrip(",;:")) for full in words)
                is_brief = _CLOCK.fullmatch(word) and any(full.startswith(word) for full in words)
                is_age = re.fullmatch(r"\d+(\.\d+)?|s|min", word)  # time goes on
                assert word in words or is_cut or is_brief or is_age, (command, word, line)


def test_what_is_said_beside_tables_and_errors_fits_too(furnished: str) -> None:
    commands = [
        ("segments",),
        ("task", "list"),
        ("schedule", "list"),
        ("schedule", "create", "nightly", "hello", "--every", "1m"),
    ]
    for command, lines in zip(commands, on_terminal(furnished, commands, stderr=True), strict=False):
        assert all(columns_of(line) <= COLUMNS for line in lines), (command, lines)


def test_what_matters_is_shown_in_80_columns(furnished: str) -> None:
    """What people look for first is among the columns that have room."""
    commands = [("task", "list"), ("task", "list", "--schedule", "nightly"), ("schedule", "list"), ("agents",)]
    tasks, planned, schedules, agents = (
        [line.split("  ") for line in part] for part in on_terminal(furnished, commands)
    )
    headers = [{cell.strip() for cell in part[0]} for part in (tasks, planned, schedules, agents)]
    assert {"ID", "JOB", "STATE", "AGENT", "DUE", "ERROR"} <= headers[0]
    assert {"ID", "STATE", "AGENT", "PLAN TIME", "ERROR"} <= headers[1]
    assert {"NAME", "WHEN", "STATE", "LAST"} <= headers[2]
    assert {"NAME", "STATUS", "RUNS", "LABELS"} <= headers[3]


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("hello", 5, "hello"),
        ("hello", 4, "hel…"),
        ("no room is left", 12, "no room is…"),
        ("no room is left", 14, "no room is…"),
        ("no, room", 4, "no…"),
        ("日本語の名前", 7, "日本語…"),
    ],
)
def test_a_text_is_cut_behind_a_word_or_with_an_ellipsis(text: str, width: int, short: str) -> None:
    assert shortened(text, width) == short
    assert columns_of(short) <= width


def test_the_least_important_columns_go_first_and_empty_ones_always() -> None:
    headers, room = ["ID", "NAME", "NOTE", "ERROR"], Room(cut=["NAME"], drop=["NOTE", "ERROR"])
    rows = [["1", "n" * 30, "a note", ""], ["2", "m", "", ""]]
    assert fit(headers, rows, 80, room).lines[0] == ["ID  ", "NAME".ljust(30) + "  ", "NOTE  "]
    narrow = fit(headers, rows, 20, room)
    assert (narrow.left_out, narrow.lines[1]) == (["NOTE"], [" 1  ", "n" * 15 + "…"])


def test_what_is_to_be_copied_is_not_broken() -> None:
    told = wrapped("it is disabled; let it run with `mainspring schedule enable nightly`", 40)
    assert told == "it is disabled; let it run with\n`mainspring schedule enable nightly`"
