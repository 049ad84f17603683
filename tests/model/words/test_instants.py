"""Instants as people give them: with an offset, or by the clocks of a timezone."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.words.instants import instant_text, parse_instant

PARIS, LONDON = ZoneInfo("Europe/Paris"), ZoneInfo("Europe/London")


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-15T09:00:00", "2026-11-15T08:00:00"),
        ("2026-11-15 09:00", "2026-11-15T08:00:00"),
        ("2026-07-15T09:00:00.250", "2026-07-15T07:00:00.250"),
        ("2026-11-15", "2026-11-14T23:00:00"),
        ("2026-11-15T09:00:00+05:00", "2026-11-15T04:00:00"),
        ("2026-11-15T09:00:00Z", "2026-11-15T09:00:00"),
        ("2026-10-25T02:30:00+01:00", "2026-10-25T01:30:00"),
    ],
)
def test_a_time_without_an_offset_is_read_in_the_zone(text: str, utc: str) -> None:
    assert parse_instant(text, field="at", zone=PARIS) == datetime.fromisoformat(utc).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2026-10-25T02:30:00", "write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"),
        ("2026-03-29T02:30:00", "does not exist in Europe/Paris: the clocks go from 02:00:00 to 03:00:00"),
        ("1969-12-31T00:00:00", "outside 1970 to 2200"),
        ("0001-01-01T00:00:00", "outside 1970 to 2200"),
        ("9999-12-31T23:59:59", "outside 1970 to 2200"),
        ("tomorrow", "is not an instant"),
    ],
)
def test_a_local_time_that_says_no_instant_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_instant(text, field="at", zone=PARIS)
    assert told in refused.value.message
    assert refused.value.field == "at"


def test_without_a_zone_an_offset_is_needed() -> None:
    with pytest.raises(ValidationError, match="has no offset; write"):
        parse_instant("2026-11-15T09:00:00", field="run_at")


@given(st.datetimes(), st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe", "America/Caracas"]))
def test_any_local_time_is_an_instant_that_shows_it_or_is_refused(local: datetime, zone: str) -> None:
    with contextlib.suppress(ValidationError):
        instant = parse_instant(local.isoformat(), field="at", zone=ZoneInfo(zone))
        assert instant.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local


@pytest.mark.parametrize(
    ("at", "timespec", "text"),
    [
        (datetime(2026, 11, 15, 9, tzinfo=UTC), "auto", "2026-11-15 09:00:00Z"),
        (datetime(2026, 11, 15, 9, 0, 0, 250000, tzinfo=LONDON), "milliseconds", "2026-11-15 09:00:00.250Z"),
        (datetime(2026, 7, 15, 9, tzinfo=LONDON), "seconds", "2026-07-15 09:00:00+01:00"),
    ],
)
def test_an_instant_in_utc_ends_in_z_as_in_json(at: datetime, timespec: str, text: str) -> None:
    assert instant_text(at, timespec) == text
    assert msgspec.json.encode(at).decode().strip('"')[-1] == text[-1]
