"""Define health: health checks from options."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import ValidationError
from mainspring.model.daemons.define_health import define_health
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.jobs import Health


def test_a_command_or_a_url_with_its_times() -> None:
    assert define_health({"command": ["pg_isready", "-q"]}) == Health(argv=("pg_isready", "-q"))
    given = {"http": "http://127.0.0.1:8080/healthz", "every": "2s", "timeout": 1, "failures": 5, "start": "1m"}
    assert define_health(given) == Health((), "http://127.0.0.1:8080/healthz", 2.0, 1.0, 5, 60.0)


def test_it_is_an_option_of_a_job() -> None:
    assert define(command(["true"]), {"health": {"command": ["true"]}}).health == Health(argv=("true",))
    assert define(command(["true"]), {}).health is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("true", "give a dict"),
        ({}, "give one of command"),
        ({"command": ["true"], "http": "http://localhost"}, "give one of command"),
        ({"command": "true"}, "give a list of arguments"),
        ({"command": []}, "give a list of arguments"),
        ({"command": [1]}, "is not text"),
        ({"command": ["a\0"]}, "NUL"),
        ({"http": "localhost:8080"}, "is not a URL"),
        ({"http": "ftp://localhost"}, "is not a URL"),
        ({"http": "http://"}, "is not a URL"),
        ({"http": "http://localhost:99999"}, "is not a URL"),
        ({"http": "http://localhost/a b"}, "is not a URL"),
        ({"http": "http://localhost/\r\nX: y"}, "is not a URL"),
        ({"command": ["true"], "every": 0}, "health"),
        ({"command": ["true"], "timeout": "-1s"}, "health"),
        ({"command": ["true"], "failures": 0}, "failures: 0"),
        ({"command": ["true"], "failures": True}, "failures: True"),
        ({"command": ["true"], "interval": 1}, "no option 'interval'"),
    ],
)
def test_each_refusal_says_what_is_wrong(given: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        define_health(given)
    assert message in refused.value.message
    assert refused.value.field == "health"
