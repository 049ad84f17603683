"""Schedules from what people give: every option, and every refusal with its field and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import count, cycle
from typing import Any

import msgspec
import pytest

from mainspring.errors import ValidationError
from mainspring.model.placement.segments import SEGMENTS
from mainspring.model.schedules.define_schedule import (
    MAX_SCOPES,
    When,
    check_fires,
    check_scopes,
    define_schedule,
    has_schedule,
)
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.schedules.timing import timing
from mainspring.model.watch.slo import Slo

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
PARIS = timezone(timedelta(hours=1))


def defined(options: dict[str, Any], **more: Any) -> Schedule:
    return define_schedule("nightly", "report", options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "expression"),
    [
        ({"cron": "0 9 * * MON-FRI"}, "cron", "0 9 * * MON-FRI"),
        ({"cron": "*/5 * * * * *"}, "cron", "*/5 * * * * *"),
        ({"cron": "@daily"}, "cron", "@daily"),
        ({"every": 30}, "every", "30"),
        ({"every": "1h30m"}, "every", "5400"),
        ({"every": timedelta(milliseconds=100)}, "every", "0.1"),
        ({"once": NOON}, "once", "2026-11-15T12:00:00+00:00"),
        ({"once": "2026-11-15T13:00:00+01:00"}, "once", "2026-11-15T12:00:00+00:00"),
        ({"once": datetime(2026, 11, 15, 13, tzinfo=PARIS)}, "once", "2026-11-15T12:00:00+00:00"),
        ({"daily": "09:00"}, "cron", "0 9 * * *"),
        ({"weekly": "mon, thu 09:00"}, "cron", "0 9 * * MON,THU"),
        ({"monthly": "last 18:00"}, "cron", "0 18 L * *"),
        ({"daemon": 3}, "daemon", "3"),
    ],
)
def test_each_kind(options: dict[str, Any], kind: str, expression: str) -> None:
    schedule = defined(options)
    assert (schedule.kind, schedule.expression, schedule.timezone) == (kind, expression, "UTC")
    assert schedule.policies == Policies()
    assert 0 <= schedule.segment < SEGMENTS


@pytest.mark.parametrize(
    ("option", "given", "policy", "kept"),
    [
        ("gap", "skip", "gap", "skip"),
        ("fold", "both", "fold", "both"),
        ("start", "2026-11-15T13:00+01:00", "start", NOON),
        ("end", NOON, "end", NOON),
        ("max_runs", 1, "max_runs", 1),
        ("max_runs", 1_000_000_000, "max_runs", 1_000_000_000),
        ("jitter", "30s", "jitter", 30.0),
        ("delay", "1m", "delay", 60.0),
        ("calendars", ["de", "fr", "de"], "calendars", ("de", "fr")),
        ("scopes", ["eu", "us", "eu"], "scopes", ("eu", "us")),
        ("scopes", (), "scopes", ()),
        ("scopes", lambda: ["eu"], "scopes", ()),
        ("catch_up", "all", "catch_up", "all"),
        ("window", "2d", "window", 172800.0),
        ("window", 0, "window", 0.0),
        ("max_per_tick", 1000, "max_per_tick", 1000),
        ("misfire_after", "5m", "misfire_after", 300.0),
        ("overlap", "terminate_running", "overlap", "terminate_running"),
        ("after", "load", "after", "load"),
        ("first", "latest", "first", "latest"),
        ("slo", {"lateness": "2s"}, "slo", Slo(2.0, 0.999, 30 * 86400.0)),
        ("slo", {"lateness": 0.5, "target": 0.99, "window": "7d"}, "slo", Slo(0.5, 0.99, 7 * 86400.0)),
        ("slo", None, "slo", None),
        ("ping_url", "https://hc.example/ping/7", "ping_url", "https://hc.example/ping/7"),
    ],
)
def test_each_option(option: str, given: Any, policy: str, kept: Any) -> None:
    schedule = defined({"cron": "@hourly", option: given})
    assert getattr(schedule.policies, policy) == kept
    stored = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    assert stored == schedule, "what is stored is what was defined"


def test_the_rest_of_what_makes_a_schedule() -> None:
    schedule = defined(
        {"every": "1h", "anchor": "2026-11-15T12:30Z", "tz": "Europe/Paris"},
        args={"day": 1},
        provider="tenants",
        description="Nightly",
    )
    assert schedule.timezone == "Europe/Paris"
    assert schedule.policies == Policies(
        anchor=NOON + timedelta(minutes=30),
        args={"day": 1},
        provider="tenants",
        description="Nightly",
    )
    assert timing(schedule).after(NOON) == NOON + timedelta(minutes=30)


@pytest.mark.parametrize("args", [{"days": (1, 2)}, {"at": NOON}, {"nested": {"tags": ({"a": ()},)}}])
def test_arguments_are_kept_as_the_database_gives_them_back(args: dict[str, Any]) -> None:
    """Else a schedule would differ from what is stored, and change at every start of its application."""
    schedule = defined({"cron": "@daily"}, args=args)
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "cron", "nothing says when to run; give one of cron, every, once, daily, weekly, monthly, daemon"),
    ({"tz": "UTC"}, "cron", "nothing says when to run"),
    ({"cron": "@daily", "every": 5}, "cron", "cron, every were given; give one of"),
    ({"once": NOON, "daily": "9:00"}, "once", "once, daily were given"),
    ({"cron": "@daily", "crom": 1}, "crom", "crom: no such option; there are cron, every"),
    ({"cron": ""}, "cron", "cron"),
    ({"cron": "0 9 30 2 *"}, "cron", "never"),
    ({"cron": "61 * * * *"}, "cron", "minute"),
    ({"cron": "* * *"}, "cron", "five fields"),
    ({"cron": "* " * 5000}, "cron", "cron"),
    ({"cron": "０ 9 * * *"}, "cron", "cron"),
    ({"cron": 5}, "cron", "cron"),
    ({"cron": None}, "cron", "cron"),
    ({"cron": "0 9 * * *\x00"}, "cron", "cron"),
    ({"every": 0}, "every", "every: 0 s is out of range; give between 0.1 s and 10 years"),
    ({"every": -5}, "every", "every: -5 s is out of range"),
    ({"every": "-5s"}, "every", "not a duration; write seconds (90), or text such as"),
    ({"every": 0.01}, "every", "give between 0.1 s"),
    ({"every": "100000w"}, "every", "10 years"),
    ({"every": float("nan")}, "every", "out of range"),
    ({"every": float("inf")}, "every", "out of range"),
    ({"every": 10**400}, "every", "out of range"),
    ({"every": True}, "every", "not a duration"),
    ({"every": None}, "every", "every: None says nothing; leave it out, or say when"),
    ({"once": "tomorrow"}, "once", "write 2026-11-15T09:00:00+01:00"),
    ({"once": datetime(2026, 1, 1)}, "once", "has no offset"),
    ({"once": "1969-12-31T00:00Z"}, "once", "outside 1970 to 2200"),
    ({"once": "2200-01-01T00:00Z"}, "once", "outside 1970 to 2200"),
    ({"once": 5}, "once", "not a datetime"),
    ({"once": None}, "once", "once"),
    ({"daily": "25:00"}, "daily", "daily"),
    ({"daily": "mon 09:00"}, "daily", "daily"),
    ({"daily": None}, "daily", "daily"),
    ({"weekly": "09:00"}, "weekly", "no day of the week"),
    ({"monthly": "31 february"}, "monthly", "monthly"),
    ({"cron": "every weekday at 9"}, "cron", 'is in plain words; write cron "0 9 * * MON-FRI"'),
    ({"cron": "every 30s"}, "cron", "is in plain words; use every for it"),
    ({"cron": "sometimes"}, "cron", "field"),
    ({"daemon": 0}, "daemon", "daemon: 0; give 1 to 1,000"),
    ({"daemon": 1001}, "daemon", "give 1 to 1,000"),
    ({"daemon": False}, "daemon", "give 1 to 1,000"),
    ({"daemon": None}, "daemon", "daemon"),
    ({"cron": "@daily", "tz": "Mars/Olympus"}, "tz", "Mars/Olympus"),
    ({"cron": "@daily", "tz": "europe/paris"}, "tz", "europe/paris"),
    ({"cron": "@daily", "tz": "../../etc/passwd"}, "tz", "passwd"),
    ({"cron": "@daily", "tz": ""}, "tz", "tz"),
    ({"cron": "@daily", "tz": None}, "tz", "tz"),
    ({"every": 5, "tz": "Nowhere"}, "tz", "Nowhere"),
    ({"once": NOON, "tz": "Nowhere"}, "tz", "Nowhere"),
    ({"cron": "@daily", "anchor": NOON}, "anchor", "anchor: belongs to `every`"),
    ({"once": NOON, "anchor": NOON}, "anchor", "belongs to `every`"),
    ({"every": 5, "anchor": "noon"}, "anchor", "is not an instant"),
    ({"cron": "@daily", "gap": "jump"}, "gap", "gap: 'jump'; use skip, shift"),
    ({"cron": "@daily", "fold": "third"}, "fold", "use first, second, both"),
    ({"cron": "@daily", "fold": []}, "fold", "use first, second, both"),
    ({"cron": "@daily", "start": "2026"}, "start", "start"),
    ({"cron": "@daily", "end": datetime(2026, 1, 1)}, "end", "has no offset"),
    ({"cron": "@daily", "start": NOON, "end": NOON}, "end", "is not after the start"),
    ({"cron": "@daily", "start": NOON, "end": NOON - timedelta(1)}, "end", "is not after the start"),
    ({"cron": "@daily", "max_runs": 0}, "max_runs", "give 1 to 1,000,000,000"),
    ({"cron": "@daily", "max_runs": -1}, "max_runs", "give 1 to"),
    ({"cron": "@daily", "max_runs": 1.5}, "max_runs", "give 1 to"),
    ({"cron": "@daily", "jitter": -1}, "jitter", "out of range"),
    ({"cron": "@daily", "jitter": "soon"}, "jitter", "not a duration"),
    ({"cron": "@daily", "delay": -0.5}, "delay", "out of range"),
    ({"cron": "@daily", "delay": "11y"}, "delay", "not a duration"),
    ({"cron": "@daily", "calendars": "de"}, "calendars", "give a list of names"),
    ({"cron": "@daily", "calendars": ["de\x00"]}, "calendars", "U+0000"),
    ({"cron": "@daily", "calendars": 5}, "calendars", "give a list of names"),
    ({"cron": "@daily", "scopes": "eu"}, "scopes", "give a list of texts such as ['eu', 'us']"),
    ({"cron": "@daily", "scopes": 5}, "scopes", "give a list"),
    ({"cron": "@daily", "scopes": ["eu", ""]}, "scopes", "is not a name"),
    ({"cron": "@daily", "scopes": [1]}, "scopes", "is not a name"),
    ({"cron": "@daily", "scopes": ["a\x00b"]}, "scopes", "U+0000 is not allowed"),
    ({"cron": "@daily", "scopes": ["a\u202eb"]}, "scopes", "U+202E is not allowed"),
    ({"cron": "@daily", "scopes": ["\ud800"]}, "scopes", "U+D800"),
    ({"cron": "@daily", "scopes": ["x" * 201]}, "scopes", "201 characters; at most 200"),
    ({"cron": "@daily", "scopes": [str(n) for n in range(MAX_SCOPES + 1)]}, "scopes", "at most 10000"),
    ({"cron": "@daily", "catch_up": "some"}, "catch_up", "use skip, latest, all"),
    ({"cron": "@daily", "window": -1}, "window", "give between 0 s and 10 years"),
    ({"cron": "@daily", "max_per_tick": 0}, "max_per_tick", "give 1 to 1,000"),
    ({"cron": "@daily", "max_per_tick": 31536000}, "max_per_tick", "max_per_tick: 31536000; give 1 to 1,000"),
    ({"cron": "@daily", "misfire_after": 0}, "misfire_after", "out of range"),
    ({"cron": "@daily", "misfire_after": -1}, "misfire_after", "out of range"),
    ({"cron": "@daily", "overlap": "never"}, "overlap", "use allow, skip, queue, queue_all, cancel_running"),
    ({"cron": "@daily", "after": ".."}, "after", "cannot be a name"),
    ({"daemon": 1, "after": "load"}, "after", "means nothing for a daemon"),
    ({"cron": "@daily", "first": "now"}, "first", "use next, latest"),
    ({"cron": "@daily", "slo": "2s"}, "slo", 'write {"lateness": "2s", "target": 0.999, "window": "30d"}'),
    ({"cron": "@daily", "slo": {}}, "slo", "slo.lateness: missing"),
    ({"cron": "@daily", "slo": {"lateness": "2s", "goal": 1}}, "slo", "slo.goal: no such member; there are lateness"),
    ({"cron": "@daily", "slo": {"lateness": 0}}, "slo", "slo.lateness: 0 s is out of range"),
    ({"cron": "@daily", "slo": {"lateness": "2 fortnights"}}, "slo", "slo.lateness: '2 fortnights' is not a duration"),
    ({"cron": "@daily", "slo": {"lateness": "2d"}}, "slo", "slo.lateness: 172800 s; give at most 1 d"),
    ({"cron": "@daily", "slo": {"lateness": 1, "target": 1}}, "slo", "slo.target: 1; give a share from 0.5 to"),
    ({"cron": "@daily", "slo": {"lateness": 1, "target": "99%"}}, "slo", "slo.target: '99%'"),
    ({"cron": "@daily", "slo": {"lateness": 1, "window": "1m"}}, "slo", "slo.window: 60 s is out of range"),
    ({"cron": "@daily", "slo": {"lateness": 1, "window": "1000d"}}, "slo", "give at most 90 d"),
    ({"cron": "@daily", "ping_url": "ftp://x/"}, "ping_url", "ping_url: write http://HOST/PATH"),
    ({"daemon": 1, "slo": {"lateness": 1}}, "slo", "means nothing for a daemon"),
    ({"daemon": 1, "ping_url": "https://hc.example"}, "ping_url", "means nothing for a daemon"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "field", "message"), REFUSED, ids=[f"{number} {field}" for number, (_, field, _) in enumerate(REFUSED)]
)
def test_each_refusal_names_its_field_and_says_what_to_write(options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        defined(options)
    assert refused.value.field == field
    assert message in refused.value.message
    assert len(refused.value.message) < 500, "who gives ten thousand of something is not told all of them"


@pytest.mark.parametrize(
    ("more", "field", "message"),
    [
        ({"args": {"x": float("nan")}}, "args", "not a JSON number"),
        ({"args": {"x": "\x00"}}, "args", "NUL"),
        ({"args": {"x": "x" * 65_536}}, "args", "at most 64 kB. Store the data elsewhere"),
        ({"args": {"x": object()}}, "args", "cannot be written as JSON"),
        ({"args": {"x": 2**60}}, "args", "2^53"),
        ({"description": "\x00"}, "description", "NUL"),
        ({"description": "x" * 10_001}, "description", "at most 10,000"),
        ({"description": 5}, "description", "is not text"),
    ],
)
def test_what_goes_with_it_is_checked_too(more: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("^", r"\^")) as refused:
        defined({"cron": "@daily"}, **more)
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201, "a\u202eb", None])
def test_names_are_checked(name: Any) -> None:
    for schedule, job, field in ((name, "report", "name"), ("nightly", name, "job")):
        with pytest.raises(ValidationError) as refused:
            define_schedule(schedule, job, {"cron": "@daily"})
        assert refused.value.field == field


def forever() -> Iterator[str]:
    for number in count():
        yield str(number)


@pytest.mark.parametrize("endless", [forever(), cycle(["eu"])], ids=["ever new ones", "ever the same"])
def test_scopes_that_never_end_are_refused(endless: Iterator[str]) -> None:
    with pytest.raises(ValidationError, match="at most 10000"):
        check_scopes(endless)


def test_as_many_scopes_as_are_allowed() -> None:
    assert len(check_scopes(str(number) for number in range(MAX_SCOPES))) == MAX_SCOPES


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"once": "2026-11-15T12:00Z"}, "once"),
        ({"cron": "@daily", "end": "2026-11-15T12:00Z"}, "end"),
        ({"cron": "0 9 1 1 *", "start": "2027-02-01T00:00Z", "end": "2027-03-01T00:00Z"}, "end"),
        ({"every": "1d", "end": "2026-11-15T11:00Z"}, "end"),
    ],
)
def test_what_would_never_run_is_refused(options: dict[str, Any], field: str) -> None:
    schedule = defined(options)
    with pytest.raises(ValidationError, match="no plan time would ever come") as refused:
        check_fires(schedule, NOON)
    assert refused.value.field == field


def test_what_will_run_is_not_refused() -> None:
    for options in ({"once": "2026-11-15T12:00:01Z"}, {"daemon": 1}, {"cron": "0 0 29 2 *"}):
        check_fires(defined(options), NOON)


def test_which_options_make_a_schedule() -> None:
    assert not has_schedule({"retries": 3})
    assert all(has_schedule({name: 1}) for name in When.__annotations__)


def test_the_segment_of_a_name_is_the_same_everywhere() -> None:
    assert defined({"cron": "@daily"}).segment == 72
    segments = {Schedule(f"s{n}", "j", "every", "1").segment for n in range(2000)}
    assert segments == set(range(SEGMENTS))


def test_instants_without_an_offset_are_by_the_clocks_of_the_schedule() -> None:
    schedule = defined({"once": "2026-12-24T18:00:00", "tz": "Europe/Paris", "start": "2026-12-24"})
    assert schedule.expression == "2026-12-24T17:00:00+00:00"
    assert schedule.policies.start == datetime(2026, 12, 23, 23, tzinfo=UTC)
    assert defined({"once": "2026-12-24T18:00:00"}).expression == "2026-12-24T18:00:00+00:00"
    with pytest.raises(ValidationError, match="comes twice in Europe/Paris"):
        defined({"once": "2026-10-25T02:30:00", "tz": "Europe/Paris"})
