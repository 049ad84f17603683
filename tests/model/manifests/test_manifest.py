"""Manifest: its members, and several mistakes at once, each with its place."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import MOST_FAULTS, ValidationError
from mainspring.model.manifests.manifest import MOST_OBJECTS, Wanted, read_manifest, wanted_in_steps
from mainspring.operations.requests.large_json import at_once

SHOP: dict[str, Any] = {
    "mainspring": 1,
    "set": "shop",
    "jobs": {"report": {"command": ["./report.sh"], "timeout": "10m", "retries": 3}},
    "schedules": {"report-daily": {"job": "report", "daily": "09:00", "tz": "Europe/Paris", "overlap": "skip"}},
    "calendars": {"holidays": ["12-25", "SUN", "12-25"]},
}


def wanted(given: Any) -> Wanted:
    return at_once(wanted_in_steps(read_manifest(given)))


def test_a_manifest_says_jobs_schedules_and_calendars() -> None:
    found = wanted(SHOP)
    assert (found.set, found.calendars) == ("shop", {"holidays": ("12-25", "sun")})
    assert found.jobs["report"].timeout == 600.0
    assert found.schedules["report-daily"].schedule.expression == "0 9 * * *"
    assert found.schedules["report-daily"].enabled is None


def test_sections_may_be_left_out_or_empty() -> None:
    assert wanted({"mainspring": 1, "jobs": None}) == Wanted(None, {}, {}, {})


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"mainspring": 2}, "mainspring", 'write "mainspring: 1"'),
        ({"mainspring": True}, "mainspring", 'write "mainspring: 1"'),
        ({"mainspring": None}, "mainspring", 'write "mainspring: 1"'),
        ({"job": {}}, "job", "did you mean jobs?"),
        ({"jobs": []}, "jobs", "give them by name"),
        ({"set": 7}, "set", "is not a name"),
        ({"set": " "}, "set", "is not a name"),
    ],
)
def test_a_mistake_at_the_top_is_named(change: Any, field: str, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_manifest(SHOP | change)
    assert (caught.value.field, says in caught.value.message) == (field, True), caught.value.message


@pytest.mark.parametrize("given", [None, [], "mainspring: 1", 7])
def test_what_is_no_object_is_no_manifest(given: Any) -> None:
    with pytest.raises(ValidationError, match="is not a manifest"):
        read_manifest(given)


def test_several_mistakes_are_told_at_once_each_with_its_path() -> None:
    given = {
        "mainspring": 1,
        "jobs": {"a": {"comand": ["x"]}, "b": {"command": ["x"], "retries": -1}, "..": {"command": ["x"]}},
        "schedules": {"s": {"job": "a", "crom": "* * * * *"}, "t": {"job": "a", "cron": "61 * * * *"}, "u": 7},
        "calendars": {"c": ["13-13"], "d": "sun"},
    }
    with pytest.raises(ValidationError) as caught:
        wanted(given)
    told = caught.value.details["errors"]
    assert isinstance(told, list)
    assert [one["field"] for one in told] == [
        "jobs.a.comand", "jobs.b.retries", "jobs....name", "schedules.s.crom", "schedules.t.cron", "schedules.u",
        "calendars.c.day", "calendars.d.days",
    ]  # fmt: skip
    assert told[0]["message"].startswith("jobs.a.comand: no such member of a job; did you mean command?")
    assert told[3]["message"].startswith("schedules.s.crom: no such member, did you mean cron?")


def test_there_is_an_end_to_mistakes_and_to_objects() -> None:
    with pytest.raises(ValidationError) as caught:
        wanted({"mainspring": 1, "jobs": {f"job {n}": {} for n in range(100)}})
    assert len(caught.value.details["errors"]) == MOST_FAULTS  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="divide it into several sets"):
        read_manifest({"mainspring": 1, "calendars": {str(n): [] for n in range(MOST_OBJECTS + 1)}})
