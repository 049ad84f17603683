"""`mainspring schedule preview | explain | check | backfill`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, command, environment
from tests.cli.schedules.test_schedules import execute

from mainspring.cli.schedules import backfill
from mainspring.store.schedules import missed

BEFORE_SPRING = ("--tz", "Europe/Paris", "--after", "2026-03-28T00:00:00Z")


def test_a_preview_tells_words_times_and_what_the_clocks_do(offline: Cli) -> None:
    outcome = offline("schedule", "preview", "daily", "at", "02:30", *BEFORE_SPRING, "-n", "2")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "At 02:30 every day, in Europe/Paris",
        "at\tutc\tnote",
        "Sat 2026-03-28 02:30:00+01:00\t2026-03-28 01:30:00Z\t",
        "Sun 2026-03-29 03:00:00+02:00\t2026-03-29 01:00:00Z\tclocks go forward: +01:00 → +02:00; "
        "02:30 does not exist that day: moved to 03:00",
    ]


def test_times_without_an_offset_are_read_in_the_timezone_of_the_schedule(cli: Cli) -> None:
    cli("job", "create", "sync", "--", "true")
    zone = ("--tz", "Europe/Paris")
    assert cli("schedule", "create", "night", "sync", "--daily", "03:00", *zone, "--enable").code == 0
    told = cli("schedule", "explain", "night", "--at", "2026-07-15 03:00")
    assert "at: 2026-07-15 03:00:00 is read in Europe/Paris: 2026-07-15T03:00:00+02:00" in told.err
    assert cli("schedule", "explain", "night", "--at", "2026-07-15T01:00Z").out == told.out
    other = cli("schedule", "explain", "night", "--at", "2026-07-14 21:00", "--tz", "America/New_York")
    assert other.out == told.out
    twice = cli("schedule", "explain", "night", "--at", "2026-10-25 02:30")
    assert (twice.code, twice.out) == (2, "")
    assert "write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00" in twice.err
    days = ("--from", "2026-07-01", "--to", "2026-07-02", "--dry-run")
    assert cli("schedule", "backfill", "night", *days, "--json").json["first"] == "2026-07-01T03:00:00+02:00"
    assert cli("schedule", "edit", "night", "--end", "2030-01-01").code == 0
    assert cli("schedule", "show", "night", "--json").json["schedule"]["policies"]["end"] == "2029-12-31T23:00:00Z"


def test_a_preview_and_a_schedule_take_the_same_words(cli: Cli) -> None:
    cli("job", "create", "sync", "--", "true")
    told = cli("schedule", "create", "often", "sync", "--every", "5 minutes", "--json").json
    assert told["words"] == cli("schedule", "preview", "every", "5", "minutes", "--json").json["words"]
    local = cli("schedule", "preview", "once", "2036-12-24", "18:00", "--tz", "Europe/Paris", "--json").json
    assert [fire["at"] for fire in local["fires"]] == ["2036-12-24T18:00:00+01:00"]


def test_a_preview_as_json_has_words_and_fires(offline: Cli) -> None:
    told = offline("schedule", "preview", "30 2 * * *", *BEFORE_SPRING, "-n", "3", "--gap", "skip", "--json").json
    assert told.keys() == {"words", "fires"}
    assert [fire["at"] for fire in told["fires"]] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]
    assert told["fires"][1]["utc"] == "2026-03-30T00:30:00Z"
    assert "clocks go forward" in told["fires"][1]["note"]


@pytest.mark.parametrize(
    ("line", "first"),
    [
        (["*/5 * * * *"], "2026-01-01T00:05:00+00:00"),
        (["*/5", "*", "*", "*", "*"], "2026-01-01T00:05:00+00:00"),
        (["every 90m", "--anchor", "2026-01-01T00:15:00Z"], "2026-01-01T00:15:00+00:00"),
        (["@daily", "--exclude", "01-02", "--exclude", "sat"], "2026-01-04T00:00:00+00:00"),
        (["@daily", "--start", "2026-02-01T00:00:00Z"], "2026-02-01T00:00:00+00:00"),
        (["once", "2026-12-24T18:00:00+01:00"], "2026-12-24T17:00:00+00:00"),
        (["0 2 * * *", "--tz", "Europe/Paris", "--after", "2026-10-25T00:30:00Z", "--fold", "second"],
         "2026-10-25T02:00:00+01:00"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)  # fmt: skip
def test_previews_of_all_kinds(offline: Cli, line: list[str], first: str) -> None:
    after = [] if "--after" in line else ["--after", "2026-01-01T00:00:00Z"]
    assert offline("schedule", "preview", *line, *after, "--json").json["fires"][0]["at"] == first


def test_a_preview_defaults_to_ten_from_now_and_ends_with_the_schedule(offline: Cli) -> None:
    fires = offline("schedule", "preview", "* * * * *", "--json").json["fires"]
    assert len(fires) == 10
    assert timedelta(0) < datetime.fromisoformat(fires[0]["at"]) - datetime.now(UTC) + timedelta(seconds=5)
    ended = offline("schedule", "preview", "@daily", "--end", "2020-01-01T00:00:00Z", "--json")
    assert (ended.code, ended.json["fires"]) == (0, [])


def test_a_preview_without_plan_times_says_so(offline: Cli) -> None:
    ended = offline("schedule", "preview", "@daily", "--end", "2020-01-01T00:00:00Z")
    assert ended == (0, "At 00:00 every day, in UTC\n", "no plan time comes after that\n")


def test_what_the_shell_made_of_an_asterisk_is_recognised(
    offline: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "todo.txt"):
        (tmp_path / name).touch()
    refused = offline("schedule", "preview", "0", "9", *["notes.txt", "todo.txt"] * 3)
    assert (refused.code, "put it in quotes" in refused.err) == (2, True)
    assert "quotes" not in offline("schedule", "preview", "0 9 notes.txt").err


def test_a_spread_depends_on_the_name(offline: Cli) -> None:
    def at(*name: str) -> str:
        line = ("schedule", "preview", "H H * * *", "--after", "2026-01-01T00:00:00Z", "-n", "1", "--json", *name)
        return str(offline(*line).json["fires"][0]["at"])

    assert at("--name", "a") == at("--name", "a")
    assert len({at("--name", name) for name in "abcdef"}) > 1
    assert "give it with --name" in offline("schedule", "preview", "H H * * *").err


# ── explain, check ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def outage(cli: Cli, dsn: str) -> datetime:
    """A schedule of each hour that was made three hours ago, in a world without a server; its first plan time."""
    cli("job", "create", "tick", "--", "true")
    first = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2, minutes=30)
    every = ("--every", "1h", "--anchor", first.isoformat(), "--tz", "Europe/Paris")
    cli("schedule", "create", "hourly", "tick", *every, "--enable")
    made = first - timedelta(minutes=10)
    execute(dsn, "update mainspring.schedule set since = $1, created_at = $1, next_plan_at = $2", made, first)
    return first


def test_explain_tells_the_overdue_and_the_next(cli: Cli, outage: datetime) -> None:
    told = cli("schedule", "explain", "hourly")
    assert told.code == 0
    assert "no server plans it; is a server running?" in told.out
    assert "lies in the future" in told.out
    stories = cli("schedule", "explain", "hourly", "--at", outage.isoformat(), "--json").json["plan_times"]
    assert [one["status"] for one in stories] == ["overdue"]
    assert stories[0]["plan_time"].endswith(("+01:00", "+02:00")), "by the clocks of the schedule"


def test_explain_tells_why_a_fire_was_skipped(cli: Cli, dsn: str, outage: datetime) -> None:
    execute(
        dsn,
        "insert into mainspring.fire (schedule_id, plan_time, reason)"
        " select id, $1, 'coalesced' from mainspring.schedule",
        outage,
    )
    told = cli("schedule", "explain", "hourly", "--at", outage.isoformat())
    assert "skipped (coalesced): it was decided" in told.out
    assert "catch_up=latest runs only the last" in told.out


def test_explain_speaks_of_a_time_that_is_none(cli: Cli, outage: datetime) -> None:
    told = cli("schedule", "explain", "hourly", "--at", (outage + timedelta(minutes=7)).isoformat())
    assert told.code == 0
    assert "it is no time of the schedule (every hour)" in told.out
    assert "the one before: " in told.out


def test_check_fails_when_something_is_missing(cli: Cli, dsn: str, outage: datetime) -> None:
    found = cli("schedule", "check")
    assert found.code == 1
    assert len(found.out.splitlines()) == 4, "a header and three"
    assert "hourly: 3 runs missing: nothing was decided from" in found.err
    told = cli("schedule", "check", "hourly", "--json")
    assert (told.code, told.json["ok"], len(told.json["schedules"][0]["missing"])) == (1, False, 3)
    execute(
        dsn,
        "insert into mainspring.fire (schedule_id, plan_time, reason)"
        " select id, $1::timestamptz + n * interval '1 hour', 'misfire'"
        "   from mainspring.schedule, generate_series(0, 2) n",
        outage,
    )
    good = cli("schedule", "check")
    assert (good.code, good.err) == (0, "nothing is missing: 3 runs of 1 schedule were expected\n")
    assert good.out == "", "no header without rows"
    told = cli("schedule", "check", "--json").json
    assert told == {"ok": True, "checked": 1, "expected": 3, "missing": 0, "schedules": []}


def test_a_schedule_that_could_not_be_checked_to_the_end_is_not_ok(
    cli: Cli, dsn: str, outage: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed, "MOST_CHECKED", 1)
    monkeypatch.setattr(missed, "AT_ONCE", 1)
    execute(
        dsn,
        "insert into mainspring.fire (schedule_id, plan_time, reason)"
        " select id, $1, 'misfire' from mainspring.schedule",
        outage,
    )
    found = cli("schedule", "check")
    assert (found.code, found.out) == (1, "")
    assert found.err.startswith("hourly: checked up to ")
    told = cli("schedule", "check", "--json")
    assert (told.code, told.json["ok"], told.json["missing"]) == (1, False, 0)
    assert told.json["schedules"][0]["complete"] is False


def test_check_looks_back_only_as_far_as_asked_and_as_the_ledger_is_kept(
    cli: Cli, dsn: str, outage: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "MAINSPRING_URL" in os.environ:
        pytest.skip("a server knows how long it keeps the ledger, and this one was started before")
    assert len(cli("schedule", "check", "hourly", "--since", "2h", "--json").json["schedules"][0]["missing"]) == 2
    execute(
        dsn, "update mainspring.schedule set since = since - interval '9 d', created_at = created_at - interval '9 d'"
    )
    monkeypatch.setenv("MAINSPRING_KEEP_SUCCEEDED", "1d")
    monkeypatch.setenv("MAINSPRING_KEEP_FAILED", "1d")
    assert len(cli("schedule", "check", "hourly", "--since", "8d", "--json").json["schedules"][0]["missing"]) == 24


# ── backfill ────────────────────────────────────────────────────────────────────────────────────


def _range(first: datetime, hours: int) -> tuple[str, ...]:
    return ("--from", first.isoformat(), "--to", (first + timedelta(hours=hours)).isoformat())


def test_a_dry_run_only_counts(cli: Cli, dsn: str, outage: datetime) -> None:
    line = ("schedule", "backfill", "hourly", *_range(outage, 2), "--dry-run")
    told = cli(*line, "--json").json
    assert {name: told[name] for name in ("total", "already", "to_run")} == {"total": 3, "already": 0, "to_run": 3}
    assert datetime.fromisoformat(told["first"]) == outage
    assert "3 runs in the range: 0 have a task already, 3 to run\n" in cli(*line).err
    assert execute(dsn, "select count(*) from mainspring.task") == 0


END_TASKS = """
    with gone as (delete from mainspring.task returning *)
    insert into mainspring.task_history
        (id, run_at, created_at, finished_at, recorded_at, job_id, pool, state, priority, attempt, crashes, args,
         schedule_id, plan_time, scope)
    select id, run_at, created_at, now(), now(), job_id, pool, $1, priority, 1, 0, args, schedule_id, plan_time, scope
      from gone
"""


def test_a_backfill_goes_on_until_all_has_run_and_can_be_stopped_and_resumed(
    cli: Cli, dsn: str, outage: datetime
) -> None:
    line = ("schedule", "backfill", "hourly", *_range(outage, 2), "--max-parallel", "2", "--json")
    running = subprocess.Popen(
        command(*line), env=environment(MAINSPRING_DSN=dsn), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _until(lambda: execute(dsn, "select count(*) from mainspring.task") == 2)
    time.sleep(0.3)  # it would submit more by now, if it did
    assert execute(dsn, "select count(*) from mainspring.task") == 2
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=10)
    assert running.returncode == 130
    assert "2 submitted tasks go on; run the same command again for the rest" in errors
    execute(dsn, END_TASKS, 10)
    again = subprocess.Popen(
        command(*line), env=environment(MAINSPRING_DSN=dsn), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _until(lambda: execute(dsn, "select count(*) from mainspring.task") == 1)
    execute(dsn, END_TASKS, 10)
    out, errors = again.communicate(timeout=10)
    assert again.returncode == 0, errors
    assert '"total":3,"already":2,"to_run":1,"skipped":0,"submitted":1,"succeeded":1,"failed":0' in out
    assert "nobody is there to run tasks" in errors
    assert execute(dsn, "select count(*) from mainspring.fire where origin = 'backfill'") == 3
    done = cli(*line)
    assert (done.code, done.json["already"], done.json["submitted"]) == (0, 3, 0)


def test_a_backfill_whose_tasks_fail_says_so(dsn: str, outage: datetime) -> None:
    line = ("schedule", "backfill", "hourly", *_range(outage, 1), "--max-parallel", "9")
    running = subprocess.Popen(
        command(*line), env=environment(MAINSPRING_DSN=dsn), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _until(lambda: execute(dsn, "select count(*) from mainspring.task") == 2)
    execute(dsn, END_TASKS, 11)
    _, errors = running.communicate(timeout=10)
    assert running.returncode == 1
    assert "submitted 2: 0 succeeded, 2 did not" in errors
    ids = execute(dsn, "select array_agg(id order by id) from mainspring.task_history")
    assert "see them with `mainspring task list --job tick --state failed`\n" in errors
    assert f"run them again with `mainspring task retry {ids[0]} {ids[1]}`\n" in errors


def test_a_failed_backfill_names_the_tasks_in_its_json(dsn: str, outage: datetime) -> None:
    line = ("schedule", "backfill", "hourly", *_range(outage - timedelta(minutes=30), 1), "--json")
    running = subprocess.Popen(
        command(*line), env=environment(MAINSPRING_DSN=dsn), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _until(lambda: execute(dsn, "select count(*) from mainspring.task") == 1)
    execute(dsn, END_TASKS, 12)
    out, errors = running.communicate(timeout=10)
    id = execute(dsn, "select id from mainspring.task_history")
    assert json.loads(out)["failed_tasks"] == [id]
    assert errors.startswith("1 run in the range: 0 have a task already, 1 to run\n")
    assert f"run it again with `mainspring task retry {id}`\n" in errors


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "TELL_EVERY", 0.0)
    progress = backfill._Progress(1000, 10)
    progress.tell(500)
    progress.end()
    assert capsys.readouterr().err.startswith("500 / 1,000 done, ")


def _until(check: object) -> None:
    deadline = time.monotonic() + 20
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
