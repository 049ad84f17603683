"""SpreadClaims: what a server claims while a hold of everything is let go."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring.model.limits.holds import SPREAD, Hold, Holds
from mainspring.server.dispatch import spread
from mainspring.server.dispatch.spread import SpreadClaims
from mainspring.store.postgres.database import Database

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def released(seconds: float) -> Holds:
    held_at = NOON - timedelta(hours=1)
    return Holds(Hold(None, held_at, "ops", None, False, NOON, NOON + timedelta(seconds=seconds), waiting=6000))


async def test_a_release_that_is_told_to_hurry_is_spread_no_longer(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_of_it(*_: Any) -> float:
        return 1.0

    monkeypatch.setattr(spread, "share", all_of_it)
    catalogue = SimpleNamespace(holds=released(SPREAD))
    claims = SpreadClaims(cast(Any, catalogue), cast(Any, SimpleNamespace(id=None)), asyncio.Event())
    dedicated = Database(dsn).dedicated()
    assert await claims.most(dedicated) == 10
    catalogue.holds = released(0.0)
    assert await claims.most(dedicated) is None, "the leader has not ended the hold yet"
    await dedicated.close()
