"""Bad input: exit code 2, one line that says what is wrong, and no database asked."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, process

HUGE = "9" * 5000
CREATE = ("job", "create", "x")

SCHEDULE = ("schedule", "create", "s", "x")
EVERY = (*SCHEDULE, "--every", "1h")
PREVIEW = ("schedule", "preview")
RANGE = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-02-01T00:00:00Z")

SCHEDULES: list[tuple[str, ...]] = [
    SCHEDULE,
    (*EVERY, "--cron", "@daily"),
    (*SCHEDULE, "--cron", "0 0 30 2 *"),
    (*SCHEDULE, "--cron", "61 * * * *"),
    (*SCHEDULE, "--cron", ""),
    (*SCHEDULE, "--cron", HUGE),
    (*SCHEDULE, "--every", "0"),
    (*SCHEDULE, "--every", "-1s"),
    (*SCHEDULE, "--every", "1ms"),
    (*SCHEDULE, "--every", HUGE),
    (*SCHEDULE, "--once", "tomorrow"),
    (*SCHEDULE, "--once", "2026-10-25T02:30:00", "--tz", "Europe/Paris"),
    (*SCHEDULE, "--daily", "25:00"),
    (*SCHEDULE, "--weekly", "09:00"),
    (*SCHEDULE, "--monthly", "31 09:00"),
    (*SCHEDULE, "--daemon", "0"),
    (*SCHEDULE, "--daemon", "1001"),
    (*EVERY, "--tz", "Paris"),
    (*EVERY, "--tz", ""),
    (*EVERY, "--gap", "jump"),
    (*EVERY, "--fold", "third"),
    (*EVERY, "--anchor", "x"),
    (*SCHEDULE, "--cron", "@daily", "--anchor", "2026-01-01T00:00:00Z"),
    (*EVERY, "--start", "2026-02-01T00:00:00Z", "--end", "2026-01-01T00:00:00Z"),
    (*EVERY, "--max-runs", "0"),
    (*EVERY, "--max-runs", "-5"),
    (*EVERY, "--jitter", "-1"),
    (*EVERY, "--delay", "later"),
    (*EVERY, "--calendar", ""),
    (*EVERY, "--scope", "a\x00b"),
    (*EVERY, "--catch-up", "some"),
    (*EVERY, "--window", "soon"),
    (*EVERY, "--max-per-tick", "31536000"),
    (*EVERY, "--misfire-after", "0"),
    (*EVERY, "--overlap", "never"),
    (*EVERY, "--arg", "x"),
    (*EVERY, "--args", "[1]"),
    (*EVERY, "--description", "\x00"),
    ("schedule", "create", " s ", "x", "--every", "1h"),
    ("schedule", "create", "s", "\udcff", "--every", "1h"),
    ("token", "create", "rack", "--expires", "0"),
    ("schedule", "edit", "s"),
    ("schedule", "edit", "s", "--every", "0"),
    ("schedule", "edit", "s", "--overlap", "never"),
    ("schedule", "edit", "s", "--clear", "everything"),
    ("schedule", "edit", "s", "--jitter", "1s", "--clear", "jitter"),
    ("schedule", "edit", "s", "--job", ""),
    ("schedule", "show", "a\x00b"),
    ("schedule", "list", "--job", "\udcff"),
    ("schedule", "run-now", "s", "--scope", ""),
    ("schedule", "explain", "s", "--at", "yesterday"),
    ("schedule", "explain", "s", "--at", "2026-11-15", "--tz", "Paris"),
    ("schedule", "check", "--since", "-1h"),
    ("schedule", "check", "--since", HUGE),
    ("schedule", "check", "\udcff"),
    ("schedule", "backfill", "s"),
    ("schedule", "backfill", "s", "--from", "2026-02-01T00:00:00Z", "--to", "2026-01-01T00:00:00Z"),
    ("schedule", "backfill", "s", "--from", "x", "--to", "2026-01-01T00:00:00Z"),
    ("schedule", "backfill", "s", *RANGE, "--max-parallel", "0"),
    ("schedule", "backfill", "s", *RANGE, "--max-parallel", HUGE),
    ("schedule", "backfill", "s", *RANGE, "--scope", "a\x00b"),
    ("schedule", "calendar", "set", "c"),
    ("schedule", "calendar", "set", "c", "13-01"),
    ("schedule", "calendar", "set", "c", "2026-02-30"),
    ("schedule", "calendar", "set", "c", "\udcff"),
    ("schedule", "calendar", "set", "", "sun"),
    ("schedule", "calendar", "show", "\udcff"),
    PREVIEW,
    (*PREVIEW, ""),
    (*PREVIEW, "sometimes"),
    (*PREVIEW, "0 0 30 2 *"),
    (*PREVIEW, "every 0s"),
    (*PREVIEW, HUGE),
    (*PREVIEW, "\udcff"),
    (*PREVIEW, "@daily", "-n", "0"),
    (*PREVIEW, "@daily", "-n", "1001"),
    (*PREVIEW, "@daily", "--tz", "Europe/Nowhere"),
    (*PREVIEW, "@daily", "--after", "2026-03-29T02:30", "--tz", "Europe/Paris"),
    (*PREVIEW, "@daily", "--anchor", "2026-01-01T00:00:00Z"),
    (*PREVIEW, "@daily", "--gap", "x"),
    (*PREVIEW, "@daily", "--fold", "x"),
    (*PREVIEW, "@daily", "--exclude", "someday"),
    (*PREVIEW, "@daily", "--start", "2026-02-01T00:00:00Z", "--end", "2026-01-01T00:00:00Z"),
    (*PREVIEW, "@daily", "--name", "a\x00b"),
    (*PREVIEW, "every", "1h", "--gap", "x"),
]

LINES: list[tuple[str, ...]] = [
    ("nothing",),
    ("task", "nothing"),
    ("task", "list", "--nothing"),
    ("task", "list", "--limit", "0"),
    ("task", "list", "--limit", "501"),
    ("task", "list", "--limit", HUGE),
    ("task", "list", "--limit", "ten"),
    ("task", "list", "--before", str(2**63)),
    ("task", "list", "--before", "-1"),
    ("task", "list", "--state", "done"),
    ("task", "list", "--state", "\udcff"),
    ("task", "list", "--job", "\udcff"),
    ("task", "list", "--job", "a\x00b"),
    ("task", "list", "extra"),
    (
        "task",
        "show",
    ),
    ("task", "show", "x"),
    ("task", "show", "0"),
    ("task", "show", str(2**63)),
    ("task", "show", HUGE),
    ("task", "show", "\udcff"),
    ("task", "logs", "1e3"),
    (
        "task",
        "cancel",
    ),
    ("task", "cancel", "1", "two"),
    ("task", "wait", "1", "--timeout", "soon"),
    ("task", "wait", "1", "--timeout", HUGE),
    (
        "task",
        "submit",
    ),
    ("task", "submit", ""),
    ("task", "submit", "\udcff"),
    ("task", "submit", "a\x00b"),
    ("task", "submit", "n" * 201),
    ("task", "submit", "x", "--timeout", "1s"),
    ("task", "submit", "x", "--args", "{"),
    ("task", "submit", "x", "--args", "\udcff"),
    ("task", "submit", "x", "--arg", "\udcff=1"),
    ("task", "submit", "x", "--delay", "-1s"),
    ("task", "submit", "x", "--delay", HUGE),
    ("task", "submit", "x", "--run-at", "2026-11-15T09:00:00"),
    ("task", "submit", "x", "--run-at", "9999999-01-01T00:00:00Z"),
    ("task", "submit", "x", "--priority", HUGE),
    ("task", "submit", "x", "--key", "a\x00b"),
    ("task", "submit", "x", "--after", str(2**63)),
    ("job", "show", "\udcff"),
    ("job", "delete", "a\x00b"),
    CREATE,
    ("job", "create", "a\x00b", "--", "true"),
    ("job", "create", " x ", "--", "true"),
    (*CREATE, "--", ""),
    (*CREATE, "--", "a\x00b"),
    (*CREATE, "--", "\udcff"),
    (*CREATE, "--env", "A", "--", "true"),
    (*CREATE, "--env", "=b", "--", "true"),
    (*CREATE, "--env", "MAINSPRING_ARGS=1", "--", "true"),
    (*CREATE, "--env", "A=\udcff", "--", "true"),
    (*CREATE, "--timeout", "0", "--", "true"),
    (*CREATE, "--timeout", HUGE, "--", "true"),
    (*CREATE, "--retries", "-1", "--", "true"),
    (*CREATE, "--retries", "1001", "--", "true"),
    (*CREATE, "--retries", HUGE, "--", "true"),
    (*CREATE, "--retries", "many", "--", "true"),
    (*CREATE, "--backoff", "sometimes", "--", "true"),
    (*CREATE, "--backoff", "1s,,2s", "--", "true"),
    (*CREATE, "--backoff", "", "--", "true"),
    (*CREATE, "--backoff", ",", "--", "true"),
    (*CREATE, "--priority", "urgent", "--", "true"),
    (*CREATE, "--delivery", "exactly_once", "--", "true"),
    (*CREATE, "--delivery", "at_most_once", "--retries", "1", "--", "true"),
    (*CREATE, "--requires", "zone", "--", "true"),
    (*CREATE, "--description", "\x00", "--", "true"),
    (*CREATE, "--description", "d" * 10_001, "--", "true"),
    (*CREATE, "--cwd", "\udcff", "--", "true"),
    (*CREATE, "--stdin", "s" * (2**20 + 1), "--", "true"),
    *SCHEDULES,
    ("demo", "--seconds", "0"),
    ("demo", "--seconds", HUGE),
    ("up", "no_such_module_of_ours:app"),
    ("up", "\udcff"),
    ("up", "--slots", "0"),
    ("up", "--slots", HUGE),
    ("up", "--data", "a\x00b"),
    ("worker",),
    ("worker", "json:loads"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line).encode("unicode_escape").decode()[:60])
def test_bad_input_is_refused_in_one_line(offline: Cli, line: tuple[str, ...]) -> None:
    outcome = offline(*line)
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("mainspring: ")
    assert outcome.err.count("\n") == 1
    assert "bug" not in outcome.err


@pytest.mark.parametrize("line", [("task", "show", "x"), ("task", "list", "--limit", "0"), ("tusk",)], ids=" ".join)
def test_bad_input_is_told_to_programs_as_json(offline: Cli, line: tuple[str, ...]) -> None:
    told = json.loads(offline("--json", *line).err)
    assert told.keys() >= {"code", "message"}


def test_bytes_that_are_no_text_are_refused(dsn: str) -> None:
    done = process("job", "show", b"\xff", "--dsn", dsn, text=False)  # type: ignore[arg-type]
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr  # type: ignore[operator]


STEERING = "\x1b]0;owned\x07"


@pytest.mark.parametrize("line", [("task", "show", STEERING), (STEERING,), ("task", "list", STEERING)], ids=repr)
def test_no_option_lets_a_terminal_be_steered(offline: Cli, line: tuple[str, ...]) -> None:
    outcome = offline(*line)
    assert outcome.code == 2
    assert "\x1b" not in outcome.err


@pytest.mark.parametrize(
    ("line", "field", "advice"),
    [
        ((*SCHEDULE, "--every", "0"), "every", "give between 0.1 s"),
        ((*EVERY, "--tz", "Paris"), "tz", "did you mean Europe/Paris?"),
        ((*EVERY, "--overlap", "never"), "overlap", "use allow, skip, queue"),
        ((*EVERY, "--max-per-tick", "31536000"), "max_per_tick", "give 1 to 1,000"),
        ((*EVERY, "--start", "2026-02-01T00:00:00Z", "--end", "2026-01-01T00:00:00Z"), "end", "not after the start"),
        (("schedule", "explain", "s", "--at", "noon"), "at", "write 2026-11-15T09:00:00+01:00"),
        (("schedule", "backfill", "s", "--from", "x", "--to", "y"), "from", "write 2026-11-15T09:00:00+01:00"),
        (("schedule", "check", "--since", "long"), "since", "write seconds (90)"),
        (("schedule", "calendar", "set", "c", "someday"), "day", "write 2026-12-25"),
        ((*PREVIEW, "sometimes"), "expression", "write cron such as"),
        ((*PREVIEW, "every", "1h", "--fold", "x"), "fold", "use first, second, both"),
        ((*PREVIEW, "@daily", "--exclude", "someday"), "exclude", "write 2026-12-25"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named_with_what_to_write(
    offline: Cli, line: tuple[str, ...], field: str, advice: str
) -> None:
    told = json.loads(offline("--json", *line).err)
    assert told["field"] == field
    assert advice in told["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("task", "list", "--limit", "abc"),
            "--limit: 'abc' is not a whole number; give 1 to 500; see `mainspring task",
        ),
        (("task", "list", "--limit", "0"), "--limit: 0 is out of range; give 1 to 500; see `mainspring task list"),
        (("daemon", "scale", "gateway", "two"), "REPLICAS: 'two' is not a whole number; see `mainspring daemon scale"),
        (("token", "revoke"), "ID is missing; see `mainspring token revoke --help`"),
        (("task", "lst"), "No such command 'lst', did you mean list? See `mainspring task --help`"),
        (("task", "list", "--stat", "x"), "No such option '--stat', did you mean --state or --tag or --data"),
    ],
)
def test_what_click_refuses_is_told_in_plain_words(offline: Cli, arguments: tuple[str, ...], told: str) -> None:
    outcome = offline(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith(f"mainspring: {told}")


HUGE = "x" * 100_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["task", "submit", HUGE],
        ["task", "submit", "job", "--args", HUGE],
        ["task", "submit", "job", "--args", f'{{"{HUGE}": 1, "{HUGE}": 2}}'],
        ["task", "submit", "job", "--arg", HUGE],
        ["task", "submit", "job", "--run-at", HUGE],
        ["task", "submit", "job", "--delay", HUGE],
        ["task", "submit", "job", "--priority", HUGE],
        ["task", "show", HUGE],
        ["task", "list", "--state", HUGE],
        ["schedule", "create", "s", "job", "--cron", HUGE],
        ["schedule", "create", "s", "job", "--cron", "@daily", "--tz", HUGE],
        ["job", "create", "j", "--timeout", HUGE, "--", "true"],
        ["token", "create", "t", "--label", f"={HUGE}"],
        ["--dsn", HUGE, "task", "list"],
        [HUGE],
        ["task", HUGE],
        ["task", "list", f"--{HUGE}"],
    ],
    ids=lambda arguments: " ".join(argument[:12] for argument in arguments),
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_never_echoes_all_of_a_long_input(offline: Cli, arguments: list[str], as_json: bool) -> None:
    outcome = offline(*arguments, *(["--json"] if as_json and arguments != [HUGE] else []))
    assert outcome.code != 0
    assert 0 < len(outcome.err) < 6000
