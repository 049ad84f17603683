"""Settings of the cluster: changed with the version that was read, or refused."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR

from mainspring.errors import StaleVersion, ValidationError
from mainspring.operations import settings
from mainspring.store.postgres.database import Connection


async def test_a_setting_is_changed_and_its_version_grows(conn: Connection) -> None:
    before = await settings.show(conn, ACTOR)
    after = await settings.edit(conn, ACTOR, placement="least_tasks", version=before.version)
    assert after.placement == "least_tasks"
    assert after.version == before.version + 1
    with pytest.raises(StaleVersion) as stale:
        await settings.edit(conn, ACTOR, placement="round_robin", version=before.version)
    assert stale.value.details == {"version": after.version}
    assert (await settings.show(conn, ACTOR)).placement == "least_tasks"


async def test_a_strategy_that_nobody_knows_is_refused(conn: Connection) -> None:
    with pytest.raises(ValidationError):
        await settings.edit(conn, ACTOR, placement="by_colour")
