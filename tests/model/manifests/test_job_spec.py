"""Job spec: a job by the options that people give, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.model.tasks.test_read_definition import LIMITS, OPTIONS, RUNS, SECONDS

from mainspring.errors import ValidationError
from mainspring.model.manifests.job_spec import JobSpec, job_spec_of, read_job
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.jobs import Argument, Definition, Python, Run
from mainspring.model.tasks.read_definition import read_definition

MORE = st.fixed_dictionaries(
    {},
    optional={
        "stalls_after": SECONDS,
        "max_queued": st.integers(1, 500),
        "expires": SECONDS,
        "keep_succeeded": SECONDS,
        "keep_failed": SECONDS,
    },
)


@given(RUNS, OPTIONS, MORE, LIMITS)
def test_whatever_can_be_defined_is_said_and_read_back_as_it_was(
    run: Run, options: Any, more: Any, limits: Any
) -> None:
    try:
        definition = define(run, options | more | limits)
    except ValidationError:
        assume(False)
    spec = job_spec_of(definition)
    assert read_job(spec) == definition
    text = msgspec.json.encode(spec)
    assert read_job(msgspec.json.decode(text)) == definition
    through_struct = msgspec.json.encode(msgspec.json.decode(text, type=JobSpec))
    assert read_job(msgspec.json.decode(through_struct)) == definition, "as an answer of the API is read"
    if not isinstance(run, Python):
        assert "definition" not in spec, "the options can say it"


def test_what_the_options_cannot_say_is_said_by_the_definition() -> None:
    python = define(Python("report", ("scope",), arguments=(Argument("day"),)), {})
    assert job_spec_of(python) == {"definition": msgspec.to_builtins(python)}
    odd = read_definition(
        {"run": {"type": "command", "argv": ["a"]}, "retry": {"retries": 7}, "retries_by_default": True}
    )
    assert list(job_spec_of(odd)) == ["definition"]
    assert read_job(job_spec_of(odd)) == odd


def test_durations_are_written_as_people_write_them() -> None:
    definition = define(command(["a"]), {"timeout": 5400, "grace": 0.25, "retries": 2, "backoff": [10, 90]})
    assert job_spec_of(definition) == {
        "command": ["a"],
        "backoff": ["10s", "1m30s"],
        "timeout": "1h30m",
        "grace": "250ms",
    }


def test_every_option_of_a_job_is_a_member() -> None:
    from mainspring.model.tasks.define_job import Options

    assert set(Options.__annotations__) <= set(JobSpec.__struct_fields__)


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ("echo", None, "is not a job"),
        ({}, "command", "nothing says what to run; give one of command, http, handler, definition"),
        ({"command": ["a"], "http": "GET http://a/"}, "http", "command and http are given"),
        ({"command": ["a"], "timout": "1m"}, "timout", "did you mean timeout?"),
        ({"command": ["a"], "zzz": 1}, "zzz", "no such member of a job; there are"),
        ({"command": "echo hello"}, "command", "give a list"),
        ({"command": ["a"], "headers": {}}, "headers", "belongs to a job with `http`, not `command`"),
        ({"http": "http://a/", "cwd": "/"}, "cwd", "belongs to a job with `command`"),
        ({"http": 7}, "http", "write METHOD URL"),
        ({"http": "POST ftp://a/"}, "url", "write http://"),
        ({"command": ["a"], "timeout": "soon"}, "timeout", "is not a duration"),
        ({"command": ["a"], "env": {"A": True}}, "env", "is not text"),
        ({"definition": {"run": {"type": "command"}}}, "definition.run.argv", "missing"),
        ({"definition": {}, "timeout": 1}, "timeout", "write it in there"),
    ],
)
def test_a_mistake_names_its_member(given: Any, field: str | None, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_job(given)
    assert (caught.value.field, says in caught.value.message) == (field, True), caught.value.message


def test_a_call_without_a_method_is_a_get() -> None:
    found: Definition = read_job({"http": "https://shop.example/ping", "expect": [204, "3xx"]})
    assert found == read_job({"http": " get  https://shop.example/ping ", "expect": ["204", "3xx"]})
