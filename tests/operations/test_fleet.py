"""Agents: list, show, drain, undrain; the placement strategy."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, add_agent

from mainspring.errors import NotFound, ValidationError
from mainspring.operations import fleet
from mainspring.store.postgres.database import Connection


async def test_an_agent_is_listed_and_drained(conn: Connection) -> None:
    await add_agent(conn)
    assert [(view.name, view.status) for view in await fleet.listing(conn, ACTOR)] == [("eve", "active")]
    assert (await fleet.drain(conn, ACTOR, "eve")).changed
    assert not (await fleet.drain(conn, ACTOR, "eve")).changed, "it drains already"
    assert [view.status for view in await fleet.show(conn, ACTOR, "eve")] == ["draining"]
    assert (await fleet.undrain(conn, ACTOR, "eve")).changed
    assert not (await fleet.undrain(conn, ACTOR, "eve")).changed


async def test_an_agent_that_was_never_there_is_not_found(conn: Connection) -> None:
    for operation in (fleet.show, fleet.drain, fleet.undrain):
        with pytest.raises(NotFound):
            await operation(conn, ACTOR, "adam")
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
