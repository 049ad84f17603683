"""Schedule spec: written, read back, and changed by a merge patch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.schedules.define_schedule import When, define_schedule
from mainspring.model.schedules.schedule_spec import ScheduleSpec, defined, patched, read_spec, spec_of

INSTANT = st.datetimes(datetime(2026, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
SECONDS = st.integers(1, 10**6) | st.floats(0.5, 10**5) | st.sampled_from(["10m", "250ms"])
NAMES = st.lists(st.sampled_from(["eu", "us", "."]), max_size=3)

KINDS = st.one_of(
    st.fixed_dictionaries({"cron": st.sampled_from(["0 9 * * MON-FRI", "@daily", "H H * * *", "*/5 * * * * *"])}),
    st.fixed_dictionaries({"every": SECONDS}, optional={"anchor": INSTANT}),
    st.fixed_dictionaries({"once": INSTANT}),
    st.fixed_dictionaries({"daily": st.sampled_from(["03:00", "09:00, 17:00"])}),
    st.fixed_dictionaries({"weekly": st.just("mon, thu 09:00")}),
    st.fixed_dictionaries({"monthly": st.just("last 18:00")}),
)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "tz": st.sampled_from(["Europe/Paris", "UTC"]),
        "gap": st.just("skip"),
        "fold": st.just("both"),
        "start": INSTANT,
        "max_runs": st.integers(1, 9),
        "jitter": SECONDS,
        "delay": SECONDS,
        "calendars": st.lists(st.just("free"), max_size=1),
        "scopes": NAMES,
        "catch_up": st.just("all"),
        "window": SECONDS,
        "max_per_tick": st.integers(1, 9),
        "misfire_after": SECONDS,
        "overlap": st.just("skip"),
        "first": st.just("latest"),
        "slo": st.fixed_dictionaries(
            {"lateness": st.sampled_from(["2s", 0.5, 30])},
            optional={"target": st.just(0.99), "window": st.sampled_from(["1d", 86400])},
        ),
        "ping_url": st.just("https://example.com/ping/1?a=b"),
    },
)
ARGS = st.dictionaries(st.text("ab", min_size=1, max_size=3), st.none() | st.integers(-9, 9) | st.just({"x": None}))


@given(KINDS, POLICIES, ARGS, st.booleans())
def test_whatever_can_be_defined_is_written_and_read_back_as_it_was(
    kind: Any, policies: Any, args: Any, enabled: bool
) -> None:
    schedule = define_schedule("s", "job", kind | policies, args=args, description="words")
    spec = spec_of(schedule, enabled=enabled)
    assert defined("s", spec) == schedule
    text = msgspec.json.encode(spec)
    assert msgspec.json.decode(text, type=ScheduleSpec) == spec
    assert read_spec(msgspec.json.decode(text)) == spec
    assert patched(msgspec.json.decode(text), {}) == spec


def test_a_daemon_is_written_with_its_replicas() -> None:
    schedule = define_schedule("s", "job", {"daemon": 3, "restart_delay": "5s"})
    spec = spec_of(schedule)
    assert (spec.daemon, spec.restart_delay, defined("s", spec)) == (3, 5.0, schedule)


def test_scopes_that_code_tells_stay_unless_others_are_given() -> None:
    schedule = define_schedule("s", "job", {"every": 60}, provider="tenants")
    spec = spec_of(schedule)
    assert defined("s", spec, provider="tenants") == schedule
    assert defined("s", msgspec.structs.replace(spec, scopes=[]), provider="tenants").policies.provider is None


BEFORE = msgspec.to_builtins(
    spec_of(define_schedule("s", "job", {"every": 60, "anchor": "2026-01-01T00:15Z", "overlap": "skip"}, args={"a": 1}))
)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ({"overlap": None}, {"every": 60, "anchor": "2026-01-01T00:15:00+00:00"}),
        ({"every": "2m"}, {"every": "2m", "anchor": "2026-01-01T00:15:00+00:00", "overlap": "skip"}),
        ({"daily": "03:00"}, {"daily": "03:00", "overlap": "skip"}),
        ({"cron": "0 9 * * *", "every": None}, {"cron": "0 9 * * *", "overlap": "skip"}),
        ({"anchor": None, "tz": "Europe/Paris"}, {"every": 60, "overlap": "skip", "tz": "Europe/Paris"}),
    ],
)
def test_a_patch_changes_what_it_names_and_another_kind_replaces(change: Any, after: Any) -> None:
    assert patched(BEFORE, change) == ScheduleSpec(**{"job": "job", "args": {"a": 1}, "tz": "UTC", **after})


def test_arguments_are_merged() -> None:
    assert patched(BEFORE, {"args": {"b": 2}}).args == {"a": 1, "b": 2}
    assert patched(BEFORE, {"args": {"a": None}}).args == {}


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ([], "spec", "is not an object"),
        ({"job": "a", "evry": 5}, "evry", "did you mean every?"),
        ({"job": "a", "timezone": "Europe/Paris"}, "timezone", "did you mean tz?"),
        ({"job": "a", "max_attempts": 3}, "max_attempts", "no such member; a schedule has"),
        ({"every": 5}, "job", "missing"),
        ({"job": "a"}, "cron", "nothing says when to run"),
        ({"job": "a", "every": 5, "daily": "03:00"}, "every", "were given"),
        ({"job": "..", "every": 5}, "job", "cannot be a name"),
        ({"job": "a", "every": 5, "args": [1]}, "args", "named arguments"),
        ({"job": "a", "every": 5, "enabled": "yes"}, "enabled", "true or false"),
        ({"job": "a", "every": 5, "scopes": "eu"}, "scopes", "give a list"),
        ({"job": 7, "every": 5}, "job", "is not a name"),
        ({"job": "a", "every": True}, "every", "is not a duration"),
        ({"job": "a", "cron": 5}, "cron", "write a text"),
        ({"job": "a", "every": 5, "description": 5}, "description", "is not text"),
        ({"job": "a", "daily": 5}, "daily", ""),
    ],
)
def test_what_is_wrong_is_named(given: Any, field: str, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        defined("s", read_spec(given))
    assert (caught.value.field, says in caught.value.message) == (field, True), caught.value.message


def test_every_option_of_a_schedule_is_in_the_spec() -> None:
    assert set(When.__annotations__) - set(ScheduleSpec.__struct_fields__) == {"replicas"}


def test_what_a_schedule_waits_for_is_written_and_read_back() -> None:
    schedule = define_schedule("s", "job", {"every": 60, "after": "load"})
    assert spec_of(schedule).after == "load"
    assert defined("s", spec_of(schedule)) == schedule
