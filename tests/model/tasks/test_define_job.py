"""Define job: definitions from options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from mainspring.errors import ValidationError
from mainspring.model.limits.process_limits import in_words
from mainspring.model.tasks.define_http import http
from mainspring.model.tasks.define_job import (
    MAX_ARGV,
    MAX_ARGV_BYTES,
    MAX_ENVIRONMENT_BYTES,
    MAX_WARM,
    Options,
    command,
    define,
    priority_level,
)
from mainspring.model.tasks.jobs import Command, Definition, Placement, ProcessLimits, Python, Run
from mainspring.model.tasks.retry import Retry

RUN = Python("report")


class Hiccup(Exception):
    pass


def test_without_options_a_job_has_the_defaults() -> None:
    assert define(RUN, {}) == Definition(RUN, retries_by_default=True)


@pytest.mark.parametrize(
    ("run", "retries"),
    [(RUN, 3), (http("GET", "https://shop.example/"), 3), (command(["true"]), 0), (command(["x.py"], python=True), 0)],
)
def test_how_often_a_job_is_retried_by_itself_depends_on_its_kind(run: Run, retries: int) -> None:
    assert define(run, {}).retry.retries == retries
    assert define(run, {"retries": 5}).retry.retries == 5
    assert define(run, {"backoff": ["1s", "5s"]}).retry.retries == 2


@pytest.mark.parametrize("options", [{"backoff": "fixed"}, {"retry_delay": 1}, {"retry_on": [3]}])
def test_how_a_command_is_retried_says_nothing_without_how_often(options: Options) -> None:
    with pytest.raises(ValidationError, match="a command is not retried by itself; give retries too"):
        define(command(["true"]), options)
    assert define(command(["true"]), {**options, "retries": 1}).retry.retries == 1


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"retries": 0}, "retry", Retry(retries=0)),
        ({"retries": 1000}, "retry", Retry(retries=1000)),
        ({"backoff": "linear"}, "retry", Retry(backoff="linear")),
        ({"backoff": ["1s", 5, "1m"]}, "retry", Retry(retries=3, backoff="fixed", delays=(1.0, 5.0, 60.0))),
        ({"backoff": [1, 2], "retries": 9}, "retry", Retry(retries=9, backoff="fixed", delays=(1.0, 2.0))),
        ({"retry_delay": "2s", "max_retry_delay": "1h"}, "retry", Retry(delay=2.0, max_delay=3600.0)),
        ({"retry_on": [OSError, "Busy", 75]}, "retry", Retry(retry_on=("builtins.OSError", "Busy", "75"))),
        ({"abort_on": KeyError}, "retry", Retry(abort_on=("builtins.KeyError",))),
        ({"abort_on": "timeout"}, "retry", Retry(abort_on=("timeout",))),
        ({"abort_on": Hiccup}, "retry", Retry(abort_on=(f"{Hiccup.__module__}.Hiccup",))),
        ({"timeout": "10m"}, "timeout", 600.0),
        ({"timeout": timedelta(seconds=3)}, "timeout", 3.0),
        ({"timeout": None}, "timeout", None),
        ({"keep_succeeded": "90m"}, "keep_succeeded", 5400.0),
        ({"keep_failed": 0}, "keep_failed", 0.0),
        ({"grace": 0}, "grace", 0.0),
        ({"delivery": "at_most_once"}, "delivery", "at_most_once"),
        ({"delivery": "at_most_once", "retries": 0}, "delivery", "at_most_once"),
        ({"priority": "high"}, "priority", 7),
        ({"requires": {"zone": "a"}}, "requires", {"zone": "a"}),
        ({"placement": "resources"}, "placement", Placement("resources")),
        ({"needs": {"gpu": 1, "memory_gb": 0.5}}, "placement", Placement(needs={"gpu": 1.0, "memory_gb": 0.5})),
        ({"prefer": {"zone": "a"}}, "placement", Placement(prefer={"zone": "a"})),
        ({"sticky": "customer"}, "placement", Placement(sticky="customer")),
        ({"description": "line\nline"}, "description", "line\nline"),
    ],
)
def test_an_option_is_taken(options: Options, field: str, expected: object) -> None:
    assert getattr(define(RUN, options), field) == expected


BAD: dict[str, list[Any]] = {
    "retries": [-1, 1001, 1.5, "3", True, None],
    "backoff": ["quick", "", [], [1] * 101, ["soon"], [-1], 5, None],
    "retry_delay": [-1, "soon", None],
    "max_retry_delay": [-1, "11y"],
    "retry_on": [[True], [""], [None], [1.5], ["a\x00"], [int], None, 1.5],
    "abort_on": [["x" * 201], [b"x"]],
    "keep_succeeded": [-1, "11y", "always", True],
    "timeout": [0, -1, "0s", "never", float("inf"), True],
    "grace": [-1, "x"],
    "delivery": ["exactly_once", "", None, 1],
    "priority": ["urgent", "10", "-1", 10, -1, 5.0, True, "", None, "５"],
    "requires": [{"": "a"}, {"zone": ""}, {"zone": 1}, {1: "a"}, {"zone": "a\x00"}, ["zone"], None, {"@zone": "a"}],
    "placement": ["luck", "", 1, ["resources"]],
    "needs": [
        {"gpu": 0},
        {"gpu": -1},
        {"gpu": 1e-7},
        {"gpu": 1e-320},
        {"gpu": "1"},
        {"gpu": True},
        {"gpu": float("nan")},
        {"@gpu": 1},
        {"": 1},
        ["gpu"],
    ],
    "prefer": [{"zone": 1}, {"": "a"}, ["zone"], None, {"@zone": "a"}],
    "sticky": ["", 1, "a\x00"],
    "description": ["a\x00", 5, None, "x" * 10_001],
    "colour": ["red"],
}


def test_a_broadcast_that_needs_amounts_is_refused_because_they_would_not_be_counted() -> None:
    with pytest.raises(ValidationError, match=r"^needs: a broadcast"):
        define(RUN, {"broadcast": True, "needs": {"gpu": 1}})


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in BAD.items() for value in values],
    ids=lambda value: ascii(value)[:24],
)
def test_a_bad_option_is_named(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=rf"^{option}: ") as refused:
        define(RUN, {option: value})  # type: ignore[misc]
    assert refused.value.field == option


def test_an_at_most_once_job_cannot_ask_for_retries() -> None:
    with pytest.raises(ValidationError, match="never runs again"):
        define(RUN, {"delivery": "at_most_once", "retries": 1})


def test_the_labels_of_a_job_add_to_those_of_its_application() -> None:
    definition = define(RUN, {"requires": {"zone": "b"}}, requires={"app": "shop", "zone": "a"})
    assert definition.requires == {"app": "shop", "zone": "b"}


def test_a_definition_survives_json() -> None:
    definition = define(
        command(
            ["dump.py", "shop"],
            env={"PGHOST": "db"},
            cwd="/srv",
            stdin="x",
            user="postgres",
            limits={"memory": "512MB", "cpu": "1m", "files": "256"},
            python=True,
            warm=["json", "email.message"],
        ),
        {"retries": 2, "backoff": [1, 2], "retry_on": [75], "timeout": "1h", "requires": {"zone": "a"}},
    )
    assert msgspec.json.decode(msgspec.json.encode(definition), type=Definition) == definition


@pytest.mark.parametrize(
    ("given", "level"), [("low", 2), ("normal", 5), ("high", 7), ("critical", 9), ("0", 0), (9, 9)]
)
def test_a_priority_is_a_word_or_a_digit(given: str | int, level: int) -> None:
    assert priority_level(given) == level


def test_limits_are_written_as_people_do() -> None:
    run = command(["true"], limits={"memory": "1.5GB", "cpu": "1m30s", "files": "256"})
    assert run.limits == ProcessLimits(memory=3 << 29, cpu=90.0, files=256)
    assert in_words(run.limits) == {"memory": "1536 MB", "cpu": "90 s", "files": "256"}


@pytest.mark.parametrize("limits", [None, {}, {"memory": None}])
def test_no_limits_leave_nothing_in_the_definition(limits: Any) -> None:
    assert msgspec.json.encode(command(["true"], limits=limits)) == b'{"type":"command","argv":["true"]}'


def test_a_command_is_a_list_and_a_shell_line_only_when_asked_for() -> None:
    assert command(["echo", "a b"]) == Command(("echo", "a b"))
    assert command("echo a | cat", shell=True) == Command(("echo a | cat",), shell=True)
    with pytest.raises(ValidationError, match="shell=True"):
        command("echo a")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("argv", {"argv": []}),
        ("argv", {"argv": [""]}),
        ("argv", {"argv": ["echo", "a\x00b"]}),
        ("argv", {"argv": ["echo", "\ud800"]}),
        ("argv", {"argv": ["echo", 5]}),
        ("argv", {"argv": ["x"] * (MAX_ARGV + 1)}),
        ("argv", {"argv": ["x" * (MAX_ARGV_BYTES + 1)]}),
        ("argv", {"argv": ["é" * MAX_ARGV_BYTES]}),
        ("env", {"env": {"": "x"}}),
        ("env", {"env": {"A=B": "x"}}),
        ("env", {"env": {"A\x00": "x"}}),
        ("env", {"env": {"A": "x\x00"}}),
        ("env", {"env": {"A": 5}}),
        ("env", {"env": {5: "x"}}),
        ("env", {"env": {"MAINSPRING_TASK": "1"}}),
        ("env", {"env": {f"A{n}": "x" * 100_000 for n in range(MAX_ENVIRONMENT_BYTES // 100_000 + 1)}}),
        ("cwd", {"cwd": "a\x00"}),
        ("cwd", {"cwd": "x" * 4097}),
        ("stdin", {"stdin": "a\x00"}),
        ("stdin", {"stdin": "x" * (1024 * 1024 + 1)}),
        ("user", {"user": ""}),
        ("user", {"user": "a\x00"}),
        ("limits", {"limits": {"memory": "much"}}),
        ("limits", {"limits": {"memory": "1kB"}}),
        ("limits", {"limits": {"cpu": 0}}),
        ("limits", {"limits": {"cpu": "512MB"}}),
        ("limits", {"limits": {"files": 1}}),
        ("limits", {"limits": {"files": "1.5"}}),
        ("limits", {"limits": {"files": True}}),
        ("limits", {"limits": {"disk": "1GB"}}),
        ("limits", {"limits": ["memory"]}),
        ("python", {"argv": ["x.py"], "python": True, "shell": True}),
        ("argv", {"argv": ["-c", "print()"], "python": True}),
        ("argv", {"argv": ["-m"], "python": True}),
        ("warm", {"warm": ["json"]}),
        ("warm", {"argv": ["x.py"], "python": True, "warm": "json"}),
        ("warm", {"argv": ["x.py"], "python": True, "warm": ["a b"]}),
        ("warm", {"argv": ["x.py"], "python": True, "warm": ["os; print()"]}),
        ("warm", {"argv": ["x.py"], "python": True, "warm": [5]}),
        ("warm", {"argv": ["x.py"], "python": True, "warm": ["a"] * (MAX_WARM + 1)}),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_command_that_could_not_start_is_refused(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=rf"^{field}: ") as refused:
        command(**{"argv": ["true"], **given})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("option", "meant"),
    [("crom", "cron"), ("retrys", "retries"), ("timezone", "tz"), ("catchup", "catch_up"), ("interval", "every")],
)
def test_an_unknown_option_says_which_one_may_be_meant(option: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=f"^{option}: no such option, did you mean {meant}\\? a job has retries"):
        define(RUN, {option: 1})  # type: ignore[misc]


def test_an_unknown_option_lists_those_of_the_job_and_of_its_schedule() -> None:
    with pytest.raises(ValidationError, match="^xyzzy: no such option; a job has retries, .*; its schedule has cron, "):
        define(RUN, {"xyzzy": 1})  # type: ignore[typeddict-unknown-key]
