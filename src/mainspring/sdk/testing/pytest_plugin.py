"""The pytest plugin: `mainspring_running` runs an application on a database of its own.

    async def test_report(mainspring_running):
        async with mainspring_running(app) as run:
            task = await report.enqueue("2026-11-15")
            await run.until_idle()
            assert await task.result() == 42

Loads nothing of Mainspring until a test asks for the fixture.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.fixture
def mainspring_running() -> Any:
    from mainspring.sdk.testing.run import running

    return running


def pytest_unconfigure() -> None:
    """At the end of each process of the test run: release the PostgreSQL that they share."""
    databases = sys.modules.get("mainspring.store.testing.databases")
    if databases is not None:
        databases.stop_servers()
