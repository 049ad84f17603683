"""What the code of an application defines, beside what sets of manifests own."""

from __future__ import annotations

from typing import Any

import pytest

import mainspring
from mainspring.errors import Conflict
from mainspring.model.access.actors import Actor
from mainspring.model.manifests.manifest import read_manifest
from mainspring.operations.definitions import calendars, jobs, schedules
from mainspring.operations.manifests import manifest
from mainspring.store.postgres.database import Connection

ACTOR = Actor("test")


def an_app(dsn: str) -> mainspring.App:
    app = mainspring.App("store", dsn=dsn)
    app.command("backup", ["pg_dump", "shop"], cron="@daily", calendars=["free"])
    app.calendar("free", ["sun"])
    return app


async def apply(conn: Connection, **sections: Any) -> None:
    given = read_manifest({"mainspring": 1, "set": "shop", **sections})
    seen = await manifest.plan(conn, ACTOR, given)
    await manifest.apply(conn, ACTOR, given, seen.hash)


async def test_what_code_defines_is_owned_by_its_application_also_after_a_restart(dsn: str, conn: Connection) -> None:
    for _ in range(2):
        async with an_app(dsn):
            pass
    assert (await jobs.show(conn, ACTOR, "backup")).app == "store"
    assert (await calendars.show(conn, ACTOR, "free")).app == "store"
    assert (await schedules.show(conn, ACTOR, "backup")).schedule.app == "store"
    assert [(await jobs.show(conn, ACTOR, "backup")).version, (await calendars.show(conn, ACTOR, "free")).version] == [
        1,
        1,
    ]
    for sections in (
        {"jobs": {"backup": {"command": ["pg_dump", "shop"]}}},
        {"calendars": {"free": ["sun"]}},
        {"schedules": {"backup": {"job": "backup", "cron": "@daily"}}},
    ):
        with pytest.raises(Conflict, match="defined by the code of the application 'store'"):
            await apply(conn, **sections)
    assert (await manifest.export(conn, ACTOR)).jobs == {}


@pytest.mark.parametrize(
    "sections",
    [
        {"jobs": {"backup": {"command": ["mine"]}}},
        {"calendars": {"free": ["mon"]}},
        {"jobs": {"j": {"command": ["a"]}}, "schedules": {"backup": {"job": "j", "every": "1h"}}},
    ],
    ids=["job", "calendar", "schedule"],
)
async def test_an_application_does_not_start_over_what_a_set_owns(dsn: str, conn: Connection, sections: Any) -> None:
    await apply(conn, **sections)
    with pytest.raises(Conflict, match="belongs to the set 'shop' of manifests"):
        async with an_app(dsn):
            pass
