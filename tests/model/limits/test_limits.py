"""Define limits: every option is checked, and its error says what is wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.errors import ValidationError
from mainspring.model.limits.limits import Limits, Rate, in_words, plain_key
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import Definition, Python


def defined(**options: Any) -> Limits | None:
    return define(Python("job"), options).gate  # type: ignore[arg-type]


def test_a_job_without_limits_says_nothing_of_them() -> None:
    assert defined() is None
    assert b"gate" not in msgspec.json.encode(define(Python("job"), {}))


@pytest.mark.parametrize(
    ("options", "gate"),
    [
        ({"max_running": 5}, Limits(max_running=5)),
        ({"concurrency_key": "shop:{shop}"}, Limits(key="shop:{shop}")),
        ({"concurrency_key": "k", "concurrency_limit": 3}, Limits(key="k", key_limit=3)),
        ({"rate": "100/minute"}, Limits(rate=Rate(100, 60.0))),
        ({"rate": " 5 / s ", "burst": 20}, Limits(rate=Rate(5, 1.0, 20))),
        ({"rate": "1000/second"}, Limits(rate=Rate(1000, 1.0, 100))),
        ({"rate": "1/day"}, Limits(rate=Rate(1, 86400.0))),
        (
            {"rate": "10/second", "rate_per": "key", "concurrency_key": "{c}", "concurrency_limit": None},
            Limits(key="{c}", key_limit=None, rate=Rate(10, 1.0, 1, per_key=True)),
        ),
    ],
)
def test_limits_are_taken_as_they_are_written(options: dict[str, Any], gate: Limits) -> None:
    definition = define(Python("job"), options)  # type: ignore[arg-type]
    assert definition.gate == gate
    assert msgspec.json.decode(msgspec.json.encode(definition), type=Definition) == definition


@pytest.mark.parametrize(
    ("field", "options"),
    [
        *(("max_running", {"max_running": bad}) for bad in (0, -1, 10_001, 1.5, True, "5")),
        *(("concurrency_limit", {"concurrency_key": "k", "concurrency_limit": bad}) for bad in (0, -1, 1001, True)),
        ("concurrency_limit", {"concurrency_limit": 3}),
        ("concurrency_limit", {"concurrency_key": "k", "concurrency_limit": None}),
        *(
            ("concurrency_key", {"concurrency_key": bad})
            for bad in ("", "a\x00b", "a\nb", "x" * 201, 7, "{", "a}", "{}", "{a.b}", "{{a}}", "{a b}")
        ),
        *(
            ("rate", {"rate": bad})
            for bad in ("100/fortnight", "0/second", "-1/second", "10001/second", "100", 100, "1.5/second", "٣/second")
        ),
        *(("burst", {"rate": "1/second", "burst": bad}) for bad in (0, -1, 10_001, True, "2")),
        ("burst", {"burst": 2}),
        ("rate_per", {"rate_per": "key"}),
        ("rate_per", {"rate": "1/second", "rate_per": "key"}),
        ("rate_per", {"rate": "1/second", "rate_per": "agent"}),
        ("max_running", {"broadcast": True, "max_running": 1}),
        ("rate", {"broadcast": True, "rate": "1/second"}),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        defined(**options)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


def test_limits_are_told_in_words() -> None:
    gate = defined(max_running=5, concurrency_key="{c}", rate="10/second", burst=2, rate_per="key")
    assert in_words(gate) == {
        "max_running": "5",
        "concurrency_key": "{c}",
        "concurrency_limit": "1",
        "rate": "10/second for each key, burst 2",
    }
    assert in_words(None) == {}
    assert gate is not None
    assert gate.arguments == ["c"]


def test_a_key_is_shown_without_its_namespace() -> None:
    assert (plain_key("shop:7"), plain_key("far\x1fshop:7")) == ("shop:7", "shop:7")
