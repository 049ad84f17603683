"""Read definition: the JSON form of a job, with the checks that its options have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.tasks.define_http import http
from mainspring.model.tasks.define_job import command, define, handler
from mainspring.model.tasks.jobs import Argument, Definition, Run
from mainspring.model.tasks.read_definition import read_definition

ECHO = {"type": "command", "argv": ["echo"]}

NAME = st.text("abcxyz_-. /é", min_size=1, max_size=8).filter(lambda name: name == name.strip())
TEXT = st.text('abc {}\n"é', max_size=12)
SECONDS = st.one_of(st.integers(1, 10**6), st.floats(0.2, 10**6), st.sampled_from(["10m", "1h30m", "250ms"]))

COMMANDS = st.builds(
    command,
    st.lists(TEXT.filter(bool), min_size=1, max_size=3),
    shell=st.booleans(),
    cwd=st.none() | TEXT,
    env=st.dictionaries(st.text("ABC_", min_size=1, max_size=4), TEXT, max_size=2),
    stdin=st.none() | TEXT,
    user=st.none() | NAME,
    limits=st.none() | st.fixed_dictionaries({}, optional={"memory": st.just("2MB"), "cpu": SECONDS}),
)
SCRIPTS = st.builds(command, st.just(["a.py"]), python=st.just(True), warm=st.lists(st.just("json"), max_size=2))
CALLS = st.builds(
    http,
    st.sampled_from(["get", "POST"]),
    st.just("https://shop.example/ping"),
    headers=st.dictionaries(st.text("AB-", min_size=1, max_size=4).map(str.upper), st.text("ab", max_size=4)),
    json=st.dictionaries(NAME, st.integers(-9, 9)),
    expect=st.lists(st.sampled_from(["2xx", 204, "200-299"]), max_size=2),
    redirects=st.integers(0, 20),
)
ARGUMENTS = st.builds(Argument, NAME, st.sampled_from(["any", "integer"]), st.booleans())
HANDLERS = st.builds(
    handler,
    NAME.filter(lambda name: name not in (".", "..")),
    st.just(("scope",)) | st.just(()),
    chunk=st.integers(1, 1000),
    chunk_wait=st.none() | st.floats(0.0, 60.0),
    arguments=st.lists(ARGUMENTS, max_size=2).map(tuple),
) | st.builds(handler, NAME.filter(lambda name: name not in (".", "..")), st.just(("scope",)) | st.just(()))
RUNS: st.SearchStrategy[Run] = st.one_of(COMMANDS, SCRIPTS, CALLS, HANDLERS)

LABELS = st.dictionaries(NAME, NAME, max_size=2)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "retries": st.integers(0, 5),
        "backoff": st.one_of(
            st.sampled_from(["fixed", "linear", "exponential", "jitter"]), st.lists(SECONDS, min_size=1, max_size=4)
        ),
        "retry_delay": SECONDS,
        "max_retry_delay": SECONDS,
        "retry_on": st.lists(st.one_of(st.integers(-9, 255), NAME, st.just(OSError)), max_size=2),
        "abort_on": st.lists(NAME, max_size=2),
        "timeout": st.none() | SECONDS,
        "grace": SECONDS,
        "delivery": st.sampled_from(["at_least_once", "at_most_once", "effectively_once"]),
        "priority": st.sampled_from(["low", "critical", 0, 9]),
        "requires": LABELS,
        "health": st.builds(lambda every: {"command": ["check"], "every": every}, SECONDS)
        | st.just({"http": "http://127.0.0.1/", "failures": 2, "start": "1m"}),
        "broadcast": st.booleans(),
        "placement": st.sampled_from(["round_robin", "capability"]),
        "needs": st.dictionaries(NAME, st.floats(0.1, 9), max_size=2),
        "prefer": LABELS,
        "sticky": NAME,
        "description": TEXT,
    },
)
LIMITS = st.sampled_from(
    [
        {},
        {"max_running": 7},
        {"concurrency_key": "shop"},
        {"concurrency_key": "shop:{shop}", "concurrency_limit": 5, "max_running": 9},
        {"rate": "100/minute"},
        {"rate": "1/second", "burst": 1},
        {"rate": "5000/day", "burst": 9, "rate_per": "key", "concurrency_key": "{shop}", "concurrency_limit": None},
    ]
)


@given(RUNS, OPTIONS, LIMITS)
def test_whatever_can_be_defined_is_read_from_its_json_as_it_was(run: Run, options: Any, limits: Any) -> None:
    try:
        definition = define(run, options | limits)
    except ValidationError:
        assume(False)
    text = msgspec.json.encode(definition)
    assert read_definition(msgspec.json.decode(text)) == definition
    assert msgspec.json.encode(read_definition(msgspec.json.decode(text))) == text, "and is stored as it was"


def test_the_retries_of_a_command_are_none_unless_something_says_so() -> None:
    assert read_definition({"run": ECHO}).retry.retries == 0
    assert read_definition({"run": ECHO, "retry": {"delay": "10s"}}).retry.retries == 3, "as the stored form has it"
    assert read_definition({"run": {"type": "http", "method": "GET", "url": "http://a/"}}).retry.retries == 3


def test_durations_are_seconds_or_text() -> None:
    found = read_definition({"run": ECHO, "timeout": "10m", "grace": 2, "retry": {"retries": 1, "delays": ["1m", 90]}})
    assert (found.timeout, found.grace, found.retry.delays) == (600.0, 2.0, (60.0, 90.0))


def test_defaults_of_arguments_in_the_key_are_kept() -> None:
    gate = {"key": "shop:{shop}", "defaults": {"shop": "1"}}
    found: Definition = read_definition({"run": ECHO, "gate": gate})
    assert found.gate is not None
    assert found.gate.defaults == {"shop": "1"}
    assert read_definition(msgspec.to_builtins(found)) == found


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ([], "definition", "is not an object"),
        ({}, "run", "missing"),
        ({"run": "echo"}, "run.type", "give one of command, http, python"),
        ({"run": {"type": "shell"}}, "run.type", "give one of"),
        ({"run": {"type": "command"}}, "run.argv", "missing"),
        ({"run": {"type": "command", "argv": "echo"}}, "run.argv", "give a list"),
        ({"run": {**ECHO, "envv": {}}}, "run.envv", "did you mean run.env?"),
        ({"run": {**ECHO, "env": {"A=": "1"}}}, "run.env", "not the name of a variable"),
        ({"run": {**ECHO, "limits": {"disk": 1}}}, "run.limits", "cannot be limited"),
        ({"run": {"type": "http", "method": "GET"}}, "run.url", "missing"),
        ({"run": {"type": "http", "method": "GET", "url": "ftp://a"}}, "run.url", "run.url: write http://"),
        ({"run": {"type": "python", "handler": ".."}}, "run.handler", "cannot be a name"),
        ({"run": {"type": "python", "handler": "a", "takes": ["b"]}}, "run.takes", "give a list of scope"),
        ({"run": {"type": "python", "handler": "a", "arguments": ["b"]}}, "run.arguments", "name, type, required"),
        ({"run": ECHO, "timeot": 1}, "timeot", "did you mean timeout?"),
        ({"run": ECHO, "timeout": "long"}, "timeout", "is not a duration"),
        ({"run": ECHO, "retry": 3}, "retry", "is not an object"),
        ({"run": ECHO, "retry": {"retries": -1}}, "retry.retries", "retry.retries: -1"),
        ({"run": ECHO, "retry": {"max_retries": 1}}, "retry.max_retries", "did you mean retry.retries?"),
        ({"run": ECHO, "retry": {"delay": -1}}, "retry.delay", "out of range"),
        ({"run": ECHO, "retry": {"delays": "1s"}}, "retry.delays", "a list of durations"),
        ({"run": ECHO, "retry": {"delays": [1], "backoff": "linear"}}, "retry.backoff", "leave it out"),
        ({"run": ECHO, "placement": {"strategy": "best"}}, "placement.strategy", "use round_robin"),
        ({"run": ECHO, "placement": {"needs": {"gpu": -1}}}, "placement.needs", "at least"),
        ({"run": ECHO, "health": {}}, "health", "give one of command"),
        ({"run": ECHO, "health": {"url": "x"}}, "health", "is not a URL"),
        ({"run": ECHO, "gate": {"max_running": 0}}, "gate.max_running", "give a number"),
        ({"run": ECHO, "gate": {"key_limit": 2}}, "gate.key_limit", "give concurrency_key too"),
        ({"run": ECHO, "gate": {"rate": {"count": 1, "per": 7}}}, "gate.rate.per", "give seconds"),
        ({"run": ECHO, "gate": {"rate": {"per": 1}}}, "gate.rate.count", "how many"),
        ({"run": ECHO, "gate": {"rate": {"count": 1, "per": 1, "burst": 0}}}, "gate.rate.burst", "give a number"),
        ({"run": ECHO, "gate": {"key": "a", "defaults": {"b": "1"}}}, "gate.defaults", "arguments in the key"),
        ({"run": ECHO, "delivery": "once"}, "delivery", "use at_least_once"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(given: Any, field: str, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_definition(given)
    assert (caught.value.field, says in caught.value.message) == (field, True), caught.value.message
