"""An application whose handlers wait for the test, registered in the test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.server.agents.test_network import Shop

from mainspring.store.postgres.database import Database


@pytest.fixture
async def shop(dsn: str, database: Database) -> AsyncIterator[Shop]:
    shop = Shop(dsn)
    async with shop.app:
        yield shop
