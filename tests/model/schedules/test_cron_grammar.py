"""What is not cron is refused, in words that name the field and say what to write."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import ValidationError
from mainspring.model.schedules.expressions.cron import Cron


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("", "empty; write five fields"),
        ("   ", "empty; write five fields"),
        (None, "is not text"),
        (5, "is not text"),
        (b"0 9 * * *", "is not text"),
        ("0 9 * *", "4 fields; write five fields"),
        ("9", "1 field; write five fields"),
        ("0 9 * * * *  * *", "8 fields"),
        ("0 0 9 * * MON 2026", "Quartz's year"),
        ("0 9 * * MON 2026", "2026 looks like a year"),
        ("? 9 * * *", r"minute: \? stands alone.*write \*"),
        ("0 9 * ? *", r"month: \? stands alone"),
        ("0 9 1,? * *", r"day of month: \? stands alone"),
        ("0 9 * * ?/2", r"day of week: \? stands alone"),
        ("0 9 W * *", "day of month: W is not .*write 15W"),
        ("0 9 W15 * *", "day of month: W15 is not .*write 15W"),
        ("0 9 1-5W * *", "day of month: 1-5W is not .*write 15W"),
        ("0 9 15W/2 * *", "day of month: 15W/2 is not .*write 15W"),
        ("0 9 32W * *", "day of month: 32 is out of range"),
        ("0 9 0W * *", "day of month: 0 is out of range"),
        ("0 9 * * 5W", "day of week: 5W"),
        ("0 9 31W 2 *", "day of month: .*never fires"),
        ("0 9 L-3 * *", "day of month: L-3: .*write L"),
        ("0 9 L/2 * *", "day of month: L/2"),
        ("0 9 * * L", "day of week: .*write 5L"),
        ("0 9 * L *", "month: L is not known"),
        ("0 9 * * 8L", "day of week: 8 is out of range"),
        ("0 9 * * MON#6", "day of week: MON#6 .*write MON#1 to MON#5"),
        ("0 9 * * MON#0", "day of week: MON#0"),
        ("0 9 * * MON#", "day of week: MON#"),
        ("0 9 * * #2", "day of week: #2"),
        ("0 9 * * MON-FRI#2", "day of week: MON-FRI#2"),
        ("0 9 1#2 * *", "day of month: .*# belongs to the day of week"),
        ("@reboot", 'use every="5m"'),
        ("@every 90s", 'use every="90s"'),
        ("@every", 'use every="5m"'),
        ("@fortnightly", "write one of @hourly"),
        ("@daily 5", "@daily is not known|write one of"),
        ("0 9 * * FRI-MON", "day of week: .*write FRI-SAT,SUN-MON"),
        ("0 9 * * FRI-SUN", "day of week: .*write FRI-SAT,SUN$"),
        ("0 9 * * 6-1", "day of week: .*write 6,0-1"),
        ("0 22-2 * * *", "hour: .*write 22-23,0-2"),
        ("50-10 * * * *", "minute: .*write 50-59,0-10"),
        ("0 9 * NOV-FEB *", "month: .*write NOV-DEC,JAN-FEB"),
        ("0 9 * 11-2 *", "month: .*write 11-12,1-2"),
        ("0 22-4/2 * * *", "hour: .*list the values"),
        ("60 * * * *", "minute: 60 is out of range; write 0 to 59"),
        ("0 24 * * *", "hour: 24 is out of range; write 0 to 23"),
        ("0 9 0 * *", "day of month: 0 is out of range; write 1 to 31"),
        ("0 9 32 * *", "day of month: 32"),
        ("0 9 * 0 *", "month: 0"),
        ("0 9 * 13 *", "month: 13"),
        ("0 9 * * 8", "day of week: 8"),
        ("60 0 9 * * *", "second: 60"),
        ("0 9 1-32 * *", "day of month: 32"),
        ("0 " + "9" * 400 + " * * *", "hour: .* is out of range"),
        ("-1 9 * * *", "minute: -1 is not understood"),
        ("1.5 9 * * *", "minute: 1.5 is not understood"),
        ("*/0 * * * *", "minute: .*step of 0"),
        ("5/0 * * * *", "minute: .*step of 0"),
        ("*/90 * * * *", 'minute: .*use every="90m"'),
        ("*/61 * * * *", 'minute: .*use every="61m"'),
        ("*/90 * * * * *", 'second: .*use every="90s"'),
        ("0 */36 * * *", 'hour: .*use every="36h"'),
        ("0 0 */40 * *", 'day of month: .*use every="40d"'),
        ("0 0 1 */13 *", "month: .*list the values"),
        ("0 0 * * */8", "day of week: .*list the values"),
        ("*/-5 * * * *", "minute: "),
        ("*/ * * * *", "minute: "),
        ("*-5 * * * *", "minute: "),
        ("*5 * * * *", "minute: "),
        ("1-2-3 * * * *", "minute: "),
        ("1/2/3 * * * *", "minute: "),
        ("1,,2 * * * *", "minute: an empty value"),
        (",1 * * * *", "minute: an empty value"),
        ("0 9 * * MONDAY", "day of week: MONDAY .*write MON"),
        ("0 9 * JANUARY *", "month: JANUARY .*write JAN"),
        ("0 9 * MON *", "month: MON is not known here; write 1 to 12, or JAN to DEC"),
        ("noon 9 * * *", "minute: NOON is not known"),
        ("０ 9 * * *", r"U\+FF10 is not allowed"),
        ("٣ 9 * * *", r"U\+0663 is not allowed"),
        ("0 9 * * *\n", r"U\+000A is not allowed"),
        ("0 9 * * *\x00", r"U\+0000 is not allowed"),
        ("0\u00a09 * * *", r"U\+00A0 is not allowed"),
        ("0 9 * * *\u202e", r"U\+202E is not allowed"),
        ("0 9 * * \ud800", r"U\+D800 is not allowed"),
        ("0 9 * * " + ",".join(["1"] * 300), "at most 500"),
        ("0 0 30 2 *", "day of month: .*never fires"),
        ("0 0 31 2,4,6,9,11 *", "day of month: .*never fires"),
        ("0 0 LW * */7", "never fires"),
        ("H(29-0) * * * *", "minute: .*runs backwards"),
        ("H(0-60) * * * *", "minute: 60"),
        ("H(0-9)/20 * * * *", "minute: .*10 values"),
        ("H/0 * * * *", "minute: .*step of 0"),
        ("0 0 H(1-31) * *", r"day of month: .*write H\(1-28\)"),
        ("0 0 * * H(1-7)", r"day of week: .*write H\(1-6\)"),
        ("H5 * * * *", "minute: "),
        ("H( * * * *", "minute: "),
    ],
)
def test_what_is_not_cron_is_refused_with_advice(expression: Any, advice: str) -> None:
    with pytest.raises(ValidationError, match=f"^cron: .*(?:{advice})") as caught:
        Cron(expression, "UTC")
    assert caught.value.field == "cron"
    assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    ("policy", "advice"),
    [
        ({"gap": "first"}, "gap: 'first'; use skip, shift"),
        ({"fold": "third"}, "fold: 'third'; use first, second, both"),
    ],
)
def test_an_unknown_policy_is_refused_at_once_and_not_on_the_night_of_the_change(
    policy: dict[str, Any], advice: str
) -> None:
    with pytest.raises(ValidationError, match=advice) as caught:
        Cron("0 9 * * *", "UTC", **policy)
    assert caught.value.field in policy
