"""Settings of the cluster: checked, audited one by one, changed with the version that was read, or refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.operations.conftest import ACTOR

from mainspring.errors import Forbidden, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.settings import DEFAULTS, SETTINGS, RunTimeSettings
from mainspring.operations import settings
from mainspring.store.access import audit
from mainspring.store.postgres.database import Connection

VALUES: dict[str, tuple[Any, Any]] = {  # by name: what is given, and what is in force then
    "placement": ("least_tasks", "least_tasks"),
    "aging": ("off", "off"),
    "max_queued": (500, 500),
    "default_timeout": ("2h", 7200.0),
    "default_retries": (2, 2),
    "default_expires": ("10m", 600.0),
    "metrics_jobs": (0, 0),
    "heartbeat_url": ("https://hc.example/1", "https://hc.example/1"),
}


async def test_a_setting_is_changed_and_its_version_grows(conn: Connection) -> None:
    before = await settings.show(conn, ACTOR)
    after = await settings.edit(conn, ACTOR, {"placement": "least_tasks"}, version=before.version)
    assert after.placement == "least_tasks"
    assert after.version == before.version + 1
    with pytest.raises(StaleVersion) as stale:
        await settings.edit(conn, ACTOR, {"placement": "round_robin"}, version=before.version)
    assert stale.value.details == {"version": after.version}
    assert (await settings.show(conn, ACTOR)).placement == "least_tasks"


def test_the_registry_has_every_setting_and_its_default_passes_its_own_check() -> None:
    assert tuple(SETTINGS) == RunTimeSettings.__struct_fields__
    assert SETTINGS.keys() == VALUES.keys(), "a setting without a test"
    for name, setting in SETTINGS.items():
        if setting.default is not None:
            assert setting.check(setting.default, field=name) == setting.default


@pytest.mark.parametrize("name", VALUES)
async def test_each_setting_is_set_audited_and_reset(conn: Connection, name: str) -> None:
    given, stored = VALUES[name]
    changed = await settings.edit(conn, ACTOR, {name: given})
    assert getattr(changed, name) == stored != getattr(DEFAULTS, name)
    [detail] = [one for one in changed.details if one.is_set]
    assert (detail.name, detail.value, detail.version, detail.updated_by) == (name, stored, 1, ACTOR.name)
    reset = await settings.edit(conn, ACTOR, {name: None})
    assert getattr(reset, name) == getattr(DEFAULTS, name)
    assert not any(one.is_set for one in reset.details)
    entries = (await audit.search(conn, subject=f"setting:{name}")).entries
    changes = [entry.changes and entry.changes[name] for entry in entries]
    assert [(one.old, one.new) for one in changes if one] == [(stored, None), (None, stored)]


async def test_what_is_set_to_what_it_is_changes_nothing(conn: Connection) -> None:
    once = await settings.edit(conn, ACTOR, {"aging": 30})
    assert await settings.edit(conn, ACTOR, {"aging": "30s", "max_queued": None}) == once
    assert len((await audit.search(conn, action="setting.change")).entries) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"placement": "by_colour"}, "placement"),
        ({"aging": 0}, "aging"),
        ({"aging": "soon"}, "aging"),
        ({"aging": True}, "aging"),
        ({"aging": [1]}, "aging"),
        ({"max_queued": 0}, "max_queued"),
        ({"max_queued": "many"}, "max_queued"),
        ({"max_queued": 1.5}, "max_queued"),
        ({"default_timeout": -1}, "default_timeout"),
        ({"default_retries": 10_000}, "default_retries"),
        ({"default_expires": "off"}, "default_expires"),
        ({"metrics_jobs": None, "ageing": 60}, "ageing"),
        ({"heartbeat_url": "ftp://example.org"}, "heartbeat_url"),
        ({"heartbeat_url": "https://example.org/?token=***"}, "heartbeat_url"),
    ],
)
async def test_a_value_that_makes_no_sense_is_refused_by_name(
    conn: Connection, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        await settings.edit(conn, ACTOR, change)
    assert refused.value.field == field
    assert (await settings.show(conn, ACTOR)).version == 0


async def test_a_heartbeat_url_does_not_come_out_again(conn: Connection) -> None:
    secret = "0f6e1d2c-1111-2222-3333-944455556666"
    view = await settings.edit(conn, ACTOR, {"heartbeat_url": f"https://hc.example/{secret}?key=hunter2"})
    assert view.heartbeat_url == "https://hc.example/***?key=***"
    entries = (await audit.search(conn, subject="setting:heartbeat_url")).entries
    for told in (view, entries):
        text = msgspec.json.encode(told).decode()
        assert secret not in text
        assert "hunter2" not in text
    again = await settings.edit(conn, ACTOR, {"heartbeat_url": view.heartbeat_url, "aging": "off"})
    assert again.version == view.version + 1, "written back as it was read, it stays"
    kept = await conn.fetchval("select value from mainspring.setting where name = 'heartbeat_url'")
    assert secret in kept
    with pytest.raises(ValidationError, match="which hides a value"):
        await settings.edit(conn, ACTOR, {"heartbeat_url": "https://other.example/***"})


async def test_who_reaches_only_some_jobs_changes_no_settings(conn: Connection) -> None:
    with pytest.raises(Forbidden):
        await settings.edit(conn, Actor("ci", Role.ADMIN, jobs=("report*",)), {"aging": "off"})
