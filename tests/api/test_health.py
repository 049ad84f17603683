"""GET /health: since when a check fails of which the database tells nothing."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.api.app import Api
from mainspring.api.handlers.scrape import Noticed
from mainspring.errors import StoreUnavailable
from mainspring.model.access.actors import Role
from mainspring.operations.condition.health import Check, Health, Status
from mainspring.store.postgres.database import Connection
from tests.api.conftest import MakeCaller

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Away:
    """A PostgreSQL that does not answer."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        raise StoreUnavailable("PostgreSQL does not answer")


async def test_an_outage_of_postgresql_has_lasted_since_the_first_answer_that_told_it(
    api: Api, as_role: MakeCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = await as_role(Role.VIEWER)

    async def since() -> str | None:
        checks = (await viewer.get("/api/v1/health")).json()["checks"]
        found: str | None = next(one["since"] for one in checks if one["code"] == "store_unavailable")
        return found

    assert await since() is None
    with monkeypatch.context() as outage:
        outage.setattr(api, "connections", Away())
        first = await since()
        assert first is not None
        assert await since() == first
    assert await since() is None


def test_what_is_noticed_is_forgotten_once_it_is_well_and_not_while_it_is_not_checked() -> None:
    noticed = Noticed()

    def since(at: datetime, *checks: Check) -> list[datetime | None]:
        return [check.since for check in noticed.complete(Health(Status.DEGRADED, list(checks)), at).checks]

    skew = Check("clock_skew", Status.DEGRADED, "")
    outage = Check("store_unavailable", Status.UNHEALTHY, "")
    assert since(NOON, skew) == [NOON]
    assert since(NOON + MINUTE, outage) == [NOON + MINUTE]
    assert since(NOON + 2 * MINUTE, skew, outage) == [NOON, NOON + MINUTE]
    assert since(NOON + 3 * MINUTE, Check("clock_skew", Status.HEALTHY, "")) == [None]
    assert since(NOON + 4 * MINUTE, skew) == [NOON + 4 * MINUTE]
    assert since(NOON, Check("held", Status.DEGRADED, "", NOON - MINUTE)) == [NOON - MINUTE]
