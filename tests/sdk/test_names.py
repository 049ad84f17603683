"""Names of two applications in one database: a prefix keeps them apart, and a clash says so."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import App, Conflict, JobNotFound, ValidationError
from mainspring.store.schedules import schedules
from mainspring.store.tasks import jobs


async def report() -> str:
    return "made"


def shop(dsn: str, name: str = "shop", **options: Any) -> App:
    app = App(name, dsn=dsn, poll=0.1, **options)
    app.job(report)
    return app


async def test_a_prefix_goes_before_every_job_and_schedule(dsn: str) -> None:
    app = App("shop", prefix="shop.", dsn=dsn, poll=0.1)
    job = app.job(cron="0 9 * * *")(report)
    app.command("backup", ["true"], every="1h")
    job.schedule("report-eu", cron="0 8 * * *")
    async with app.running():
        assert await (await job.enqueue()).result(timeout=10) == "made"
        async with app.database.acquire() as conn:
            assert [found.name for found in (await jobs.listing(conn)).items] == ["shop.backup", "shop.report"]
            found = {stored.schedule.name: stored.schedule.job for stored in await schedules.listing(conn)}
    assert found == {"shop.report": "shop.report", "shop.report-eu": "shop.report", "shop.backup": "shop.backup"}
    assert job.name == "shop.report"
    assert app["report"] is app["shop.report"] is job
    with pytest.raises(JobNotFound, match="it has: shop.backup, shop.report"):
        app["other"]


async def test_two_applications_with_the_same_names_share_a_database_by_a_prefix(dsn: str) -> None:
    first, second = shop(dsn, "first"), shop(dsn, "second", prefix="second.")
    async with first.running(), second.running():
        assert await (await first["report"].enqueue()).result(timeout=10) == "made"
        assert await (await second["report"].enqueue()).result(timeout=10) == "made"


async def test_a_clash_of_jobs_names_the_way_out(dsn: str) -> None:
    async with shop(dsn, "first"):
        with pytest.raises(Conflict) as refused:
            await shop(dsn, "second").open()
    assert refused.value.message == (
        "a job named 'report' belongs to the application 'first'; give this one another name, or all of this "
        'application\'s a prefix, App("second", prefix="second."), or delete that one, with its schedules, if it is '
        "gone for good: `mainspring job delete`"
    )


async def test_a_clash_of_schedules_names_the_way_out(dsn: str) -> None:
    for name in ("first", "second"):
        app = App(name, dsn=dsn)
        app.command(f"{name}-clean", ["true"]).schedule("nightly", cron="0 1 * * *")
        if name == "first":
            async with app:
                pass
        else:
            with pytest.raises(Conflict, match=r'prefix, App\("second", prefix="second."\)'):
                await app.open()


@pytest.mark.parametrize("prefix", [None, 5, " x", "a\x00", "x" * 200])
def test_what_is_no_prefix_is_refused(prefix: Any) -> None:
    with pytest.raises(ValidationError, match="^prefix: "):
        App("shop", prefix=prefix)


def test_a_name_that_its_prefix_makes_too_long_is_refused() -> None:
    app = App("shop", prefix="p" * 150)
    with pytest.raises(ValidationError, match="name: 210 characters; at most 200"):
        app.command("x" * 60, ["true"])
