"""Schedules as an application's code writes them: what is refused, and what comes of what is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

import mainspring
from mainspring import testing
from mainspring.errors import ValidationError
from mainspring.store.schedules import schedules


def job(**options: Any) -> Callable[[mainspring.App], Any]:
    async def report(day: str, scope: str = "") -> None: ...

    return lambda app: app.job(**options)(report)


async def tenant(scope: str) -> None: ...


@pytest.mark.parametrize(
    ("define", "field", "advice"),
    [
        (job(cron="61 * * * *"), "cron", "out of range"),
        (job(every="1h", cron="@daily"), "cron", "give one of"),
        (job(tz="Europe/Paris"), "cron", "nothing says when to run"),
        (job(every="1h", args=5), "args", "a dict of named arguments"),
        (job(every="1h", args={"dya": "mon"}), "args", "unexpected keyword"),
        (job(args={"day": "mon"}), "args", "belong to a schedule"),
        (job(crn="@daily"), "crn", "cron"),
        (lambda app: app.job(every="1h")(tenant), "args", "scope"),
        (lambda app: app.calendar("rest", "sun"), "days", "give a list of days"),
        (lambda app: app.calendar("rest", 5), "days", "give a list of days"),
        (lambda app: app.calendar("rest", ["2026-02-30"]), "days", "2026-02-30"),
        (lambda app: mainspring.App("shop", version=cast(int, "7")), "version", "give a number"),
        (lambda app: mainspring.App("shop", version=2**31), "version", "give a number"),
    ],
)
def test_what_makes_no_schedule_is_refused_where_it_is_written(
    define: Callable[[mainspring.App], Any], field: str, advice: str
) -> None:
    with pytest.raises(ValidationError, match=advice) as refused:
        define(mainspring.App("shop"))
    assert refused.value.field == field


async def test_what_the_code_defines_is_there_when_it_runs_and_runs_at_its_time() -> None:
    app = mainspring.App("shop")
    seen: list[tuple[str, str | None]] = []

    @app.job(cron="0 9 * * *", tz="Europe/Paris", scopes=lambda: ["eu", "us"])
    async def report(day: str) -> None:
        seen.append((day, mainspring.current_task().scope))

    report.schedule("report-late", daily="18:00", args={"day": "given"})
    app.calendar("rest", ["12-25"])
    app.command("backup", ["true"], every="1h", calendars=["rest"])
    async with testing.running(app) as run:
        async with app.database.acquire() as conn:
            made = {one.schedule.name: one for one in await schedules.listing(conn)}
        assert made.keys() == {"report", "report-late", "backup"}
        assert all(one.enabled and one.app == "shop" for one in made.values())
        assert made["backup"].schedule.policies.excluded == ("12-25",)
        now = await run.advance("1d")
        await run.until_idle()
    assert {scope for _, scope in seen} == {None, "eu", "us"}
    assert {day for day, scope in seen if scope is None} == {"given"}
    days = {day for day, scope in seen if scope is not None}
    assert days <= {(now - timedelta(days=back)).date().isoformat() for back in range(3)}, "filled in by the plan"


async def test_a_start_that_fails_changes_nothing() -> None:
    async with testing.database() as dsn:
        first = mainspring.App("shop", dsn=dsn)
        first.command("backup", ["true"], every="1h")
        async with first:
            pass
        second = mainspring.App("shop", dsn=dsn)
        second.command("backup", ["true"], every="2h")
        second.command("other", ["true"], every="2h", calendars=["nobody made it"])
        with pytest.raises(mainspring.MainspringError, match="no calendar"):
            await second.open()
        async with first, first.database.acquire() as conn:
            assert [(one.schedule.name, one.schedule.expression) for one in await schedules.listing(conn)] == [
                ("backup", "3600")
            ]
