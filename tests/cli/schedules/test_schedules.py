"""`mainspring schedule …` on a real database."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.cli.conftest import Cli, on_the_database

from mainspring.cli import render
from mainspring.cli.schedules import view as schedules_view
from mainspring.cli.schedules.schedules import tell_recalled
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.operations.actors import this_user
from mainspring.operations.definitions import schedules as schedule_operations
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.synchronise import synchronise

CREATE = ("schedule", "create", "nightly", "backup")


@pytest.fixture(autouse=True)
def job(cli: Cli) -> None:
    assert cli("job", "create", "backup", "--", "true").code == 0


def on(dsn: str, act: Any) -> Any:
    """Run `act(conn)` on the test's database."""

    async def main() -> Any:
        conn: Connection = await Database(dsn).connect()
        try:
            return await act(conn)
        finally:
            await conn.close()

    return asyncio.run(main())


def execute(dsn: str, statement: str, *arguments: Any) -> Any:
    return on(dsn, lambda conn: conn.fetchval(statement, *arguments))


def test_a_schedule_made_by_hand_waits_to_be_enabled(cli: Cli) -> None:
    made = cli(*CREATE, "--daily", "03:00", "--tz", "Europe/Paris")
    assert made.code == 0
    assert "created: At 03:00 every day, in Europe/Paris" in made.err
    assert "it is disabled; let it run with `mainspring schedule enable nightly`" in made.err
    assert cli("schedule", "list").out.splitlines() == [
        "name\tjob\twhen\tstate\tnext\tlast\tapp\tremark",
        "nightly\tbackup\tAt 03:00 every day, Europe/Paris\tdisabled\t\t\t\t",
    ]
    enabled = cli("schedule", "enable", "nightly")
    assert enabled.err.startswith("enabled\nnext: ")
    [row] = cli("schedule", "list", "--json").json
    assert datetime.fromisoformat(row["next"]).hour == 3
    assert datetime.fromisoformat(row["next"]).utcoffset() is not None
    assert cli("schedule", "enable", "nightly").err == "unchanged: it is enabled already\n"
    assert cli("schedule", "disable", "nightly").err == "disabled\n"


def test_a_schedule_can_be_enabled_as_it_is_made(cli: Cli) -> None:
    made = cli(*CREATE, "--every", "90m", "--enable", "--json").json
    assert (made["enabled"], made["kind"], made["expression"]) == (True, "every", "5400")


def test_a_schedule_is_made_and_changed_in_plain_words(cli: Cli) -> None:
    made = cli(*CREATE, *["every", "weekday", "at", "9", "--tz", "Europe/Paris", "--enable"])
    assert made.code == 0
    assert made.err.startswith("created: At 09:00 on Monday through Friday, in Europe/Paris\nnext: ")
    view = cli("schedule", "show", "nightly", "--json").json["schedule"]
    assert (view["kind"], view["expression"], view["timezone"]) == ("cron", "0 9 * * MON-FRI", "Europe/Paris")
    changed = cli("schedule", "edit", "nightly", "every", "90", "minutes")
    assert changed.err.splitlines()[-1] == "it runs: every 1 h 30 min, in Europe/Paris"
    assert cli("schedule", "edit", "nightly", "once 2199-01-01 09:00").code == 0
    view = cli("schedule", "show", "nightly", "--json").json["schedule"]
    assert (view["kind"], view["expression"]) == ("once", "2199-01-01T08:00:00+00:00"), "in the schedule's timezone"


def test_a_schedule_that_is_not_told_when_is_refused_with_words(cli: Cli) -> None:
    refused = cli(*CREATE)
    assert refused.code == 2
    assert "in plain words behind JOB, such as every weekday at 9, or give one of --cron, --every" in refused.err


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("sometimes", 'write cron such as "0 9 * * MON-FRI"'),
        ("every day", 'write "every day at 09:00"'),
        ("daily at 9 --daily 10:00", "EXPR, --daily: give one of them, not both"),
        ("daily at 9 --tz Paris", "Europe/Paris"),
    ],
)
def test_other_words_are_refused_before_anything_is_reached(cli: Cli, given: str, advice: str) -> None:
    for start in (CREATE, ("schedule", "edit", "nightly")):
        refused = cli(*start, *given.split())
        assert (refused.code, advice in refused.err) == (2, True), refused.err


ALL = shlex.split(
    "--every 1h --tz Asia/Tokyo --anchor 2026-01-01T00:15:00Z --start 2026-01-01T00:00:00Z --end 2199-01-01T00:00:00Z"
    " --max-runs 9 --jitter 5s --delay 1m --calendar holidays --scope eu --scope us --catch-up all --window 2h"
    " --max-per-tick 7 --misfire-after 10m --overlap queue --arg day=mon --arg n=3 --description words"
)


def test_every_option_is_stored_and_an_edit_changes_only_what_is_given(cli: Cli) -> None:
    assert cli("schedule", "calendar", "set", "holidays", "12-25").code == 0
    assert cli(*CREATE, *ALL).code == 0
    before = cli("schedule", "show", "nightly", "--json").json["schedule"]
    policies = before["policies"]
    assert policies["anchor"] == "2026-01-01T00:15:00Z"
    assert (policies["max_runs"], policies["jitter"], policies["delay"], policies["window"]) == (9, 5.0, 60.0, 7200.0)
    assert (policies["calendars"], policies["excluded"]) == (["holidays"], ["12-25"])
    assert (policies["scopes"], policies["args"]) == (["eu", "us"], {"day": "mon", "n": 3})
    assert (policies["catch_up"], policies["overlap"], policies["misfire_after"]) == ("all", "queue", 600.0)
    assert cli("schedule", "edit", "nightly", "--jitter", "7s", "--arg", "n=4").err == "changed\n"
    after = cli("schedule", "show", "nightly", "--json").json["schedule"]
    assert after["version"] == 2
    changed = {name for name, value in after["policies"].items() if value != policies[name]}
    assert changed == {"jitter", "args"}
    assert after["policies"]["args"] == {"day": "mon", "n": 4}
    assert (after["kind"], after["expression"], after["timezone"]) == ("every", "3600", "Asia/Tokyo")


def test_an_edit_can_give_another_kind_and_clear_options(cli: Cli) -> None:
    cli("schedule", "calendar", "set", "holidays", "12-25")
    cli(*CREATE, *ALL)
    clear = [part for option in ("end", "max-runs", "scope", "calendar", "args") for part in ("--clear", option)]
    assert cli("schedule", "edit", "nightly", "--weekly", "mon 09:00", *clear).code == 0
    view = cli("schedule", "show", "nightly", "--json").json["schedule"]
    assert (view["kind"], view["expression"], view["timezone"]) == ("cron", "0 9 * * MON", "Asia/Tokyo")
    cleared = {name: view["policies"][name] for name in ("anchor", "end", "max_runs", "scopes", "excluded", "args")}
    assert cleared == {"anchor": None, "end": None, "max_runs": None, "scopes": [], "excluded": [], "args": {}}
    assert view["policies"]["overlap"] == "queue"
    assert cli("schedule", "edit", "nightly", "--args", '{"a": 1}', "--job", "backup").code == 0
    assert cli("schedule", "show", "nightly", "--json").json["schedule"]["policies"]["args"] == {"a": 1}
    assert cli("schedule", "edit", "nightly", "--weekly", "mon 09:00").err == "unchanged\n"


def test_show_tells_everything(cli: Cli, dsn: str) -> None:
    cli(*CREATE, "--every", "1h", "--enable", "--overlap", "skip")
    execute(
        dsn,
        "insert into mainspring.fire (schedule_id, plan_time, reason)"
        " select id, now(), 'misfire' from mainspring.schedule",
    )
    shown = cli("schedule", "show", "nightly").out
    assert "when\tevery hour\n" in shown
    assert "overlap\tskip\n" in shown
    assert " skipped (misfire)\n" in shown
    assert "window" not in shown, "only what was chosen"
    assert len(cli("schedule", "show", "nightly", "--json").json["next"]) == 3


def test_show_tells_which_part_of_a_skip_was_taken_back(cli: Cli) -> None:
    cli(*CREATE, "--daily", "03:00", "--enable")
    cli("schedule", "skip", "nightly", "--until", "2099-01-05 06:00", "--note", "release")
    cli("schedule", "unskip", "nightly", "--at", "2099-01-03 03:00")
    [skipped] = [line for line in cli("schedule", "show", "nightly").out.splitlines() if line.startswith("skipped\t")]
    early, late = skipped.removeprefix("skipped\t").split(": release")[:2]
    assert early.startswith("before 2099-01-03 03:00:00Z by ")
    assert late.startswith(", after 2099-01-03 03:00:00Z, until 2099-01-05 06:00:00Z by ")


def test_show_tells_how_the_last_runs_ended_and_which_were_by_hand(cli: Cli) -> None:
    cli("schedule", "calendar", "set", "free", "12-25")
    cli(*CREATE, "--daily", "03:00", "--tz", "Asia/Tokyo", "--calendar", "free", "--delay", "90m", "--scope", "eu")
    [id] = cli("schedule", "run-now", "nightly", "--json").json["tasks"]
    assert cli("task", "cancel", str(id)).code == 0
    cli("schedule", "run-now", "nightly")
    lines = dict(line.split("\t") for line in cli("schedule", "show", "nightly").out.splitlines())
    assert f"[eu] task {id} cancelled, run by hand" in lines["last"]
    assert "[eu] task" in lines["last"].split(", ")[0], "all in one line"
    assert (lines["delay"], lines["calendars"], lines["scopes"]) == ("1 h 30 min", "free", "eu")
    assert lines["made"].endswith("+09:00")
    assert "excluded days" not in lines
    told = cli("schedule", "show", "nightly", "--json").json["last"][1]
    assert (told["task_id"], told["state"], told["origin"], told["scope"]) == (id, "cancelled", "manual", "eu")
    assert told["plan_time"].endswith("+09:00")
    task = cli("task", "show", str(id)).out
    assert "schedule\tnightly\n" in task
    assert "scope\teu\n" in task
    assert "plan time\t" in task


def test_a_list_tells_how_the_last_run_ended(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli(*CREATE, "--daily", "03:00", "--tz", "Asia/Tokyo")
    [row] = cli("schedule", "list", "--json").json
    assert row["last"] is None
    ids = [cli("schedule", "run-now", "nightly").out.strip() for _ in range(2)]
    [row] = cli("schedule", "list", "--json").json
    assert (row["last"]["task_id"], row["last"]["state"]) == (int(ids[1]), "pending"), "the latest, as none has ended"
    cli("task", "cancel", ids[0])
    last = cli("schedule", "list", "--json").json[0]["last"]
    assert (last["task_id"], last["state"], last["reason"]) == (int(ids[0]), "cancelled", None)
    assert last["finished_at"].endswith("+09:00")
    assert last == cli("schedule", "show", "nightly", "--json").json["schedule"]["last"] | {"age": last["age"]}
    assert re.search(r"\tcancelled 20\S+ \S+\+09:00\t", cli("schedule", "list").out)
    for module in (render, schedules_view):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    assert re.search(r"cancelled \d+(\.\d+)? s ago", cli("schedule", "list").out)


def test_tasks_of_a_schedule_show_their_plan_times_by_its_clocks(cli: Cli) -> None:
    cli(*CREATE, "--daily", "03:00", "--tz", "Asia/Tokyo")
    cli("schedule", "run-now", "nightly")
    [view] = cli("task", "list", "--schedule", "nightly", "--json").json
    assert view["plan_time"].endswith("+09:00")
    header, row = (line.split("\t") for line in cli("task", "list", "--schedule", "nightly").out.splitlines())
    assert dict(zip(header, row, strict=True))["plan_time"] == view["plan_time"].replace("T", " ")


def test_a_schedule_without_a_next_plan_time_has_ended(cli: Cli, dsn: str) -> None:
    cli(*CREATE, "--once", "2199-01-01T00:00:00Z", "--enable")
    assert cli("schedule", "list", "--json").json[0]["state"] == "enabled"
    execute(dsn, "update mainspring.schedule set expression = '2020-01-01T00:00:00+00:00', next_plan_at = null")
    assert cli("schedule", "list", "--json").json[0]["state"] == "ended"
    assert "state\tended\n" in cli("schedule", "show", "nightly").out


def test_a_daemon_is_a_schedule_too(cli: Cli) -> None:
    made = cli(*CREATE, "--daemon", "2", "--restart-delay", "5s", "--enable")
    assert made.err == "created: 2 replicas kept running\n"
    shown = cli("schedule", "show", "nightly").out
    assert "restart_delay\t5 s\n" in shown
    assert "remark\tits replicas: `mainspring daemon show nightly`\n" in shown


def test_a_list_fits_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli(*CREATE, "--weekly", "mon, thu 09:00", "--tz", "America/Argentina/Buenos_Aires", "--enable")
    monkeypatch.setenv("COLUMNS", "80")
    for module in (render, schedules_view):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    lines = cli("schedule", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "APP" not in lines[0]
    assert re.search(r" \d{4}-\d\d-\d\d 09:00$", "\n".join(lines), re.MULTILINE), "whole, without seconds and offset"


def test_a_time_that_comes_twice_is_shown_with_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules_view, "on_terminal", lambda: True)
    paris = ZoneInfo("Europe/Paris")
    assert schedules_view.shown(datetime(2026, 10, 25, 2, 30, tzinfo=paris)) == "2026-10-25 02:30+02:00"
    assert schedules_view.shown(datetime(2026, 10, 25, 2, 30, tzinfo=paris, fold=1)) == "2026-10-25 02:30+01:00"
    assert schedules_view.shown(datetime(2026, 10, 26, 2, 30, 15, tzinfo=paris)) == "2026-10-26 02:30:15"


def test_pause_and_resume_are_other_names(cli: Cli) -> None:
    cli(*CREATE, "--every", "1h")
    assert cli("schedule", "resume", "nightly").err.startswith("enabled\n")
    assert cli("schedule", "pause", "nightly").err == "disabled\n"
    assert "pause" not in cli("schedule", "--help").out.replace("Pause", "")
    for option in ("--enable", "--disable"):
        refused = cli("schedule", "edit", "nightly", option)
        assert (refused.code, "use `mainspring schedule enable NAME`" in refused.err) == (2, True)


def test_what_is_gone_from_the_code_can_be_deleted_for_good(cli: Cli, dsn: str) -> None:
    for name in ("gone", "there"):
        schedule = define_schedule(name, "backup", {"every": "1h"})
        on(dsn, lambda conn, schedule=schedule: schedules.create(conn, schedule, enabled=True, app="x", app_version=1))
    on(dsn, lambda conn: synchronise(conn, "x", 1, [define_schedule("there", "backup", {"every": "1h"})]))
    assert "gone from its code" in cli("schedule", "list").out
    assert cli("schedule", "delete", "gone").err == "deleted\n"
    assert "the code of 'x' defines it" in cli("schedule", "delete", "there").err


def test_drift_from_the_code_is_told_field_by_field(cli: Cli, dsn: str) -> None:
    schedule = define_schedule("synced", "backup", {"cron": "0 9 * * *", "overlap": "skip"})
    on(dsn, lambda conn: schedules.create(conn, schedule, enabled=True, app="shop", app_version=1))
    assert cli("schedule", "show", "synced", "--json").json["schedule"]["drift"] == []
    edited = cli("schedule", "edit", "synced", "--cron", "0 10 * * *")
    assert "it belongs to the code of 'shop': the change holds until that says something new" in edited.err
    [drift] = cli("schedule", "show", "synced", "--json").json["schedule"]["drift"]
    assert drift == {"field": "expression", "code": "0 9 * * *", "in_force": "0 10 * * *"}
    assert "expression\t0 9 * * *\t0 10 * * *\n" in cli("schedule", "show", "synced").out
    assert "differs from its code in expression" in cli("schedule", "list").out
    assert "it comes back when that starts" in cli("schedule", "delete", "synced").err


def test_what_cannot_be_planned_is_told_in_the_list(cli: Cli, dsn: str) -> None:
    cli(*CREATE, "--every", "1h", "--enable")
    execute(dsn, "update mainspring.schedule set problem = 'the provider failed'")
    assert cli("schedule", "list").out.endswith("\tthe provider failed\n")
    execute(dsn, "update mainspring.schedule set problem = null, timezone = 'Mars/Base'")
    assert "'Mars/Base' is not an IANA timezone" in cli("schedule", "list").out
    checked = cli("schedule", "check")
    assert checked.code == 1
    assert "nightly: it cannot be checked: tz: 'Mars/Base'" in checked.err


def test_a_schedule_that_is_there_is_a_conflict_and_one_that_is_not_is_not_found(cli: Cli) -> None:
    assert cli(*CREATE, "--every", "1h").code == 0
    again = cli(*CREATE, "--every", "1h", "--json")
    assert again.code == 4
    assert "mainspring schedule edit nightly" in json.loads(again.err)["message"]
    assert cli("schedule", "create", "other", "nothing", "--every", "1h").code == 3
    assert cli("schedule", "create", "other", "backup", "--every", "1h", "--calendar", "none").code == 3
    for command in (("show",), ("enable",), ("disable",), ("delete",), ("run-now",), ("explain",), ("check",)):
        missing = cli("schedule", *command, "none", "--json")
        assert missing.code == 3, command
        assert json.loads(missing.err)["code"] == "schedule_not_found"
    assert cli("schedule", "edit", "none", "--every", "1h").code == 3
    assert cli("schedule", "list", "--job", "none").code == 3
    assert len(cli("schedule", "list", "--job", "backup", "--json").json) == 1


def test_what_was_planned_is_taken_back_and_told(cli: Cli, dsn: str) -> None:
    cli(*CREATE, "--every", "1h", "--enable")
    execute(
        dsn,
        """
        with t as (
            insert into mainspring.task
                (run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time, scope, origin)
            select now() + interval '9 s', now(), j.id, j.pool, 1, 5, '{}', s.id, now() + interval '9 s', '', 'plan'
              from mainspring.schedule s join mainspring.job j on j.id = s.job_id returning *)
        insert into mainspring.fire (schedule_id, plan_time, scope, task_id)
        select schedule_id, plan_time, scope, id from t
        """,
    )
    outcome = cli("schedule", "disable", "nightly", "--json").json
    assert outcome["recalled"] == {"taken_back": 1, "asked_back": 0, "running": 0}
    assert cli("schedule", "delete", "nightly", "--json").json["deleted"] is True


@pytest.mark.parametrize(
    ("recalled", "told"),
    [
        (Recalled(0, 0, 0), ""),
        (Recalled(2, 1, 1), ": took back 2 planned runs; 1 armed run is asked back; 1 runs on"),
        (Recalled(1, 2, 3), ": took back 1 planned run; 2 armed runs are asked back; 3 run on"),
    ],
)
def test_what_became_of_planned_runs_is_one_sentence(recalled: Recalled, told: str) -> None:
    assert tell_recalled(recalled) == told


def test_run_now_prints_the_tasks(cli: Cli) -> None:
    cli(*CREATE, "--every", "1h", "--scope", "eu", "--scope", "us")
    ids = cli("schedule", "run-now", "nightly").out.split()
    assert len(ids) == 2
    [id] = cli("schedule", "run-now", "nightly", "--scope", "us", "--scope", "us", "--json").json["tasks"]
    assert cli("task", "show", str(id), "--json").json["scope"] == "us"
    refused = cli("schedule", "run-now", "nightly", "--scope", "asia")
    assert (refused.code, "it has: eu, us" in refused.err) == (4, True)


def test_calendars_are_made_followed_and_kept_while_used(cli: Cli) -> None:
    assert cli("schedule", "calendar", "set", "free", "12-25", "SUN").err == "set; 0 schedules use it\n"
    cli(*CREATE, "--daily", "09:00", "--calendar", "free")
    assert cli("schedule", "calendar", "set", "free", "sat").err == "set; 1 schedule uses it\n"
    assert cli("schedule", "show", "nightly", "--json").json["schedule"]["policies"]["excluded"] == ["sat"]
    assert cli("schedule", "calendar", "list").out == "name\tdays\nfree\tsat\n"
    assert cli("schedule", "calendar", "show", "free", "--json").json["schedules"] == ["nightly"]
    used = cli("schedule", "calendar", "delete", "free")
    assert (used.code, "used by nightly" in used.err) == (4, True)
    assert cli("schedule", "edit", "nightly", "--clear", "calendars").code == 0
    assert cli("schedule", "calendar", "delete", "free").code == 0
    assert cli("schedule", "calendar", "show", "free").code == 3
    assert cli("schedule", "calendar", "delete", "free").code == 3


def test_an_argument_may_be_null_or_an_object_and_is_replaced_as_a_whole(cli: Cli) -> None:
    cli(*CREATE, "--every", "1h", "--arg", 'a={"x": 1}', "--arg", "b=1")
    assert cli("schedule", "edit", "nightly", "--arg", 'a={"y": 2}', "--arg", "b=null").err == "changed\n"
    args = cli("schedule", "show", "nightly", "--json").json["schedule"]["policies"]["args"]
    assert args == {"a": {"y": 2}, "b": None}


@on_the_database  # what overtakes it is in this process
def test_an_edit_that_another_overtakes_is_made_again(cli: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cli(*CREATE, "--every", "1h")
    put, tries = schedule_operations.put, []

    async def overtaken(conn: Connection, *args: Any, **kwargs: Any) -> Any:
        tries.append(kwargs["version"])
        if len(tries) == 1:
            other: Connection = await Database(dsn).connect()
            await schedule_operations.edit(other, this_user(), "nightly", {"overlap": "skip"})
            await other.close()
        return await put(conn, *args, **kwargs)

    monkeypatch.setattr(schedule_operations, "put", overtaken)
    assert cli("schedule", "edit", "nightly", "--jitter", "5s").err == "changed\n"
    policies = cli("schedule", "show", "nightly", "--json").json["schedule"]["policies"]
    assert (policies["jitter"], policies["overlap"], tries) == (5.0, "skip", [1, 2])


def test_a_forecast_tells_starts_peaks_and_herds(cli: Cli) -> None:
    for number in range(20):
        cli("schedule", "create", f"s{number:02}", "backup", "--cron", "0 1 * * *", "--enable")
    cli(*CREATE, "--every", "30m", "--enable")
    when = ("--from", "2030-01-01", "--to", "2030-01-01T02:00Z", "--cell", "1h")
    told = cli("schedule", "forecast", *when, "--by", "job")
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert lines[0] == ["from", "starts", "peak", "peak_at"]
    assert [line[1:3] for line in lines[1:3]] == [["2", "1"], ["22", "21"]]
    assert ["backup", "24"] in lines
    assert lines[-1][1:] == ["21", ", ".join(["s00", *[f"s{number:02}" for number in range(1, 10)]])]
    assert "--jitter spreads them" in told.err
    assert "24 starts; PEAK is the most in one second" in told.err
    found = cli("schedule", "forecast", *when, "--json").json
    assert (found["starts"], found["complete"], found["herds"][0]["starts"]) == (24, True, 21)
    assert cli("schedule", "forecast", "--cell", "1ms").code == 2
    assert cli("schedule", "forecast", "--by", "moon").code == 2


def test_an_objective_an_address_and_the_latest_plan_time(cli: Cli, dsn: str) -> None:
    options = ("--slo", "lateness=2s,target=0.99", "--ping-url", "https://hc.example/7", "--first", "latest")
    made = cli(*CREATE, "--every", "1h", *options, "--enable", "--json")
    assert made.code == 0
    assert json.loads(made.out)["spec"]["slo"] == {"lateness": 2.0, "target": 0.99}
    assert execute(dsn, "select count(*) from mainspring.task") == 1
    shown = cli("schedule", "show", "nightly").out
    assert "slo\t0.99 of starts within 2 s, over 30 d" in shown
    assert "compliance\tno plan time was counted in the window yet" in shown
    assert json.loads(cli("schedule", "show", "nightly", "--json").out)["slo"]["burn_rates"][0]["threshold"] == 14.4
    execute(dsn, "update mainspring.slo set counted_to = now()")
    for table, column in (("slo_minute", "minute"), ("slo_hour", "hour")):
        execute(
            dsn,
            f"insert into mainspring.{table} ({column}, schedule_id, good, bad, missed)"
            f" select date_trunc('{column}', now()), schedule_id, 99, 1, 1 from mainspring.slo",
        )
    shown = cli("schedule", "show", "nightly").out
    assert "compliance\t99.0000%, 1 of 100 plan times late or missed" in shown
    assert "error budget\t0.0% left" in shown
    assert "burn rate\t1 and 1 ×" in shown
    assert cli("schedule", "edit", "nightly", "--clear", "slo", "--clear", "ping-url").code == 0
    assert json.loads(cli("schedule", "show", "nightly", "--json").out)["slo"] is None
    refused = cli("schedule", "edit", "nightly", "--slo", "fast")
    assert (refused.code, "write lateness=2s,target=0.999,window=30d" in refused.err) == (2, True)
