"""What a schedule will do next, with what the clocks do to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from mainspring.model.forecasting.preview import preview
from mainspring.model.schedules.schedules import Kind, Policies, Schedule


def notes(
    kind: Kind, expression: str, tz: str, after: str, count: int, **policies: Any
) -> list[tuple[str, str | None]]:
    schedule = Schedule("report", "job", kind, expression, tz, Policies(**policies))
    shown = preview(schedule, datetime.fromisoformat(after), count)
    return [(fire.at.isoformat(), fire.note) for fire in shown.fires]


def test_its_json_has_local_time_with_offset_and_utc() -> None:
    schedule = Schedule("report", "job", "cron", "0 9 * * *", "Europe/Paris")
    shown = msgspec.json.decode(msgspec.json.encode(preview(schedule, datetime(2026, 3, 27, 12, tzinfo=UTC), 2)))
    assert shown == {
        "words": "At 09:00 every day",
        "fires": [
            {"at": "2026-03-28T09:00:00+01:00", "utc": "2026-03-28T08:00:00Z", "note": None, "skipped_by": None},
            {
                "at": "2026-03-29T09:00:00+02:00",
                "utc": "2026-03-29T07:00:00Z",
                "note": "clocks go forward: +01:00 → +02:00",
                "skipped_by": None,
            },
        ],
        "kind": "cron",
        "expression": "0 9 * * *",
        "a_day": None,
    }


def test_a_time_that_was_moved_says_so() -> None:
    assert notes("cron", "30 2 * * *", "Europe/Paris", "2026-03-27T12:00:00Z", 3) == [
        ("2026-03-28T02:30:00+01:00", None),
        (
            "2026-03-29T03:00:00+02:00",
            "clocks go forward: +01:00 → +02:00; 02:30 does not exist that day: moved to 03:00",
        ),
        ("2026-03-30T02:30:00+02:00", None),
    ]
    skipped = notes("cron", "30 2 * * *", "Europe/Paris", "2026-03-28T12:00:00Z", 1, gap="skip")
    assert skipped == [("2026-03-30T02:30:00+02:00", None)]


@pytest.mark.parametrize("expression", ["0 2,3 * * *", "0 * * * *"])
def test_a_time_that_is_due_after_the_gap_anyway_was_not_moved(expression: str) -> None:
    found = notes("cron", expression, "Europe/Paris", "2026-03-29T00:30:00Z", 1)
    assert found == [("2026-03-29T03:00:00+02:00", None)]


def test_a_time_that_comes_twice_says_which_it_is() -> None:
    first, second = (f"02:30 comes twice that day: this is the {which}" for which in ("first", "second"))
    back = "clocks go back: +02:00 → +01:00"
    after = "2026-10-24T12:00:00Z"
    assert notes("cron", "30 2 * * *", "Europe/Paris", after, 2, fold="both") == [
        ("2026-10-25T02:30:00+02:00", first),
        ("2026-10-25T02:30:00+01:00", f"{back}; {second}"),
    ]
    assert notes("cron", "30 2 * * *", "Europe/Paris", after, 2) == [
        ("2026-10-25T02:30:00+02:00", first),
        ("2026-10-26T02:30:00+01:00", back),
    ]
    anchor = datetime(2026, 1, 1, 1, 30, 15, tzinfo=UTC)
    assert notes("every", "86400", "Europe/Paris", "2026-10-25T00:00:00Z", 1, anchor=anchor) == [
        ("2026-10-25T02:30:15+01:00", "02:30:15 comes twice that day: this is the second")
    ]


def test_a_schedule_without_plan_times_shows_none() -> None:
    shown = preview(Schedule("worker", "job", "daemon", "2"), datetime(2026, 1, 1, tzinfo=UTC), 5)
    assert (shown.words, shown.fires) == ("2 replicas kept running", [])
    assert notes("cron", "0 9 * * *", "UTC", "2026-01-01T00:00:00Z", 0) == []
