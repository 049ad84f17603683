"""Secrets: encrypted in the database, never shown, kept while something refers to them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, same_in_json
from tests.secret_keys import Ring

from mainspring.errors import (
    Conflict,
    Forbidden,
    MainspringError,
    NameTaken,
    SecretNotFound,
    SecretUnavailable,
    StaleVersion,
    ValidationError,
)
from mainspring.model.access.actors import Actor
from mainspring.model.alerts.channels import ChannelSpec
from mainspring.model.secrets.encryption import unseal
from mainspring.model.secrets.keys import Keys
from mainspring.model.secrets.references import SecretReference
from mainspring.model.tasks.define_job import Options, command, define
from mainspring.model.tasks.jobs import Definition
from mainspring.operations.alerting import channels
from mainspring.operations.definitions import jobs, secrets
from mainspring.operations.definitions.secrets import MOST_BYTES, SecretChange
from mainspring.store.access import secrets as store
from mainspring.store.postgres.database import Connection, Database

VALUE = "hunter2 hunter2"


@pytest.fixture
def ring() -> Ring:
    return Ring()


def using(name: str, **options: Any) -> Definition:
    return define(command(["psql"], env={"PGPASSWORD": SecretReference(name)}), cast(Options, options))


async def whole(conn: Connection, table: str) -> str:
    """All that a table holds, as text; bytes as they are."""
    rows = await conn.fetch(f"select t::text from mainspring.{table} t")
    raw = await conn.fetch(f"select * from mainspring.{table}")
    return repr(rows) + repr([tuple(row) for row in raw])


async def value_of(conn: Connection, ring: Ring, name: str) -> str:
    [stored] = await store.sealed(conn, [name])
    return unseal(ring.keys, name, stored.version, stored.sealed)


async def test_the_database_and_the_audit_hold_no_plain_text(conn: Connection, ring: Ring) -> None:
    made = await secrets.put(conn, ACTOR, "db", VALUE, labels={"zone": "eu"}, keys=ring)
    assert (made.created, made.secret.version, made.secret.key_id) == (True, 1, "1")
    assert made.secret.labels == {"zone": "eu"}
    assert same_in_json(made, SecretChange)
    changed = await secrets.put(conn, ACTOR, "db", VALUE + "!", keys=ring)
    assert (changed.created, changed.secret.version, changed.secret.labels) == (False, 2, {"zone": "eu"})
    assert await value_of(conn, ring, "db") == VALUE + "!"
    for table in ("secret", "audit"):
        assert "hunter" not in await whole(conn, table)
    actions = await conn.fetch("select action, subject, actor from mainspring.audit order by id")
    assert [tuple(row) for row in actions] == [
        ("secret.create", "secret:db", "test"),
        ("secret.change", "secret:db", "test"),
    ]
    shown = await secrets.show(conn, ACTOR, "db")
    assert "hunter" not in repr(shown)
    assert (await secrets.listing(conn, ACTOR)).items == [shown]


async def test_a_row_that_was_moved_to_another_name_does_not_decrypt(conn: Connection, ring: Ring) -> None:
    await secrets.put(conn, ACTOR, "theirs", VALUE, keys=ring)
    await conn.execute("update mainspring.secret set name = 'ours'")
    with pytest.raises(SecretUnavailable, match="does not decrypt"):
        await value_of(conn, ring, "ours")


async def test_a_secret_is_kept_while_a_job_or_a_channel_refers_to_it(conn: Connection, ring: Ring) -> None:
    await secrets.put(conn, ACTOR, "db", VALUE, keys=ring)
    await jobs.put(conn, ACTOR, "dump", using("db"))
    await channels.put(conn, ACTOR, "ops", ChannelSpec("slack", SecretReference("db")))
    shown = await secrets.show(conn, ACTOR, "db")
    assert (shown.jobs, shown.channels) == (["dump"], ["ops"])
    with pytest.raises(Conflict, match="job 'dump' and 1 more refer to it") as raised:
        await secrets.delete(conn, ACTOR, "db")
    assert raised.value.details == {"jobs": ["dump"], "channels": ["ops"]}
    await jobs.delete(conn, ACTOR, "dump")
    with pytest.raises(Conflict, match="channel 'ops' refers to it"):
        await secrets.delete(conn, ACTOR, "db")
    await channels.delete(conn, ACTOR, "ops")
    await secrets.delete(conn, ACTOR, "db")
    with pytest.raises(SecretNotFound):
        await secrets.show(conn, ACTOR, "db")


@pytest.mark.parametrize("refers", ["a job", "a channel"])
async def test_a_secret_is_not_deleted_while_something_that_will_refer_to_it_is_written(
    conn: Connection, database: Database, ring: Ring, refers: str
) -> None:
    await secrets.put(conn, ACTOR, "db", VALUE, keys=ring)
    async with database.acquire() as other:
        async with conn.transaction():
            if refers == "a job":
                await jobs.put(conn, ACTOR, "dump", using("db"))
            else:
                await channels.put(conn, ACTOR, "ops", ChannelSpec("slack", SecretReference("db")))
            deleting = asyncio.create_task(secrets.delete(other, ACTOR, "db"))
            async with asyncio.timeout(20):
                while not await conn.fetchval("select exists (select from pg_locks where not granted)"):
                    assert not deleting.done()
                    await asyncio.sleep(0)
        with pytest.raises(Conflict, match="refers to it"):
            await deleting


async def test_a_job_or_channel_that_refers_to_no_secret_is_refused_by_its_member(conn: Connection, ring: Ring) -> None:
    with pytest.raises(ValidationError, match="mainspring secret set db") as raised:
        await jobs.put(conn, ACTOR, "dump", using("db"))
    assert raised.value.field == "run.env"
    with pytest.raises(ValidationError, match="there is no secret 'db'") as raised:
        await channels.put(conn, ACTOR, "ops", ChannelSpec("webhook", "https://a.example", SecretReference("db")))
    assert raised.value.field == "secret"
    await secrets.put(conn, ACTOR, "db", VALUE, labels={"zone": "eu"}, keys=ring)
    with pytest.raises(ValidationError, match="labels zone=eu; let the job require them"):
        await jobs.put(conn, ACTOR, "dump", using("db"))
    await jobs.put(conn, ACTOR, "dump", using("db", requires={"zone": "eu"}))


async def test_rotation_encrypts_all_again_or_none(conn: Connection) -> None:
    old, both = Ring("old"), Ring("new", "other")
    await secrets.put(conn, ACTOR, "one", VALUE, labels={"zone": "eu"}, keys=old)
    await secrets.put(conn, ACTOR, "two", VALUE + "2", keys=both)
    with pytest.raises(SecretUnavailable, match="'old', which this process does not have"):
        await secrets.rotate(conn, ACTOR, keys=both)
    assert [one.key_id for one in (await secrets.listing(conn, ACTOR)).items] == ["old", "new"]
    both.keys = Keys({**dict(both.keys.items()), **dict(old.keys.items())})
    done = await secrets.rotate(conn, ACTOR, keys=both)
    assert (done.key_id, done.rotated, done.secrets) == ("new", 1, 2)
    first, second = (await secrets.listing(conn, ACTOR)).items
    assert (first.key_id, first.labels, second.key_id, second.version) == ("new", {"zone": "eu"}, "new", 1)
    assert await value_of(conn, both, "one") == VALUE
    assert (await secrets.rotate(conn, ACTOR, keys=both)).rotated == 0
    assert await conn.fetchval("select count(*) from mainspring.audit where action = 'secret.rotate'") == 1
    with pytest.raises(SecretUnavailable, match="has no key for them"):
        await secrets.rotate(conn, ACTOR, keys=Ring.empty())


async def test_a_lost_key_is_asked_for_and_no_other_takes_its_place(conn: Connection, ring: Ring) -> None:
    await secrets.put(conn, ACTOR, "db", VALUE, keys=ring)
    with pytest.raises(SecretUnavailable, match="restore the file of keys"):
        await secrets.put(conn, ACTOR, "new", VALUE, keys=Ring.empty())
    with pytest.raises(SecretUnavailable, match="restore the file of keys"):
        await secrets.rotate(conn, ACTOR, keys=Ring.empty())
    with pytest.raises(SecretUnavailable, match="'db' does not decrypt with the key '1'"):
        await secrets.rotate(conn, ACTOR, keys=Ring("1"))  # another key under the same id
    assert await value_of(conn, ring, "db") == VALUE


async def test_a_version_is_demanded_and_a_name_is_taken(conn: Connection, ring: Ring) -> None:
    with pytest.raises(SecretNotFound):
        await secrets.put(conn, ACTOR, "db", VALUE, version=1, keys=ring)
    await secrets.put(conn, ACTOR, "db", VALUE, keys=ring)
    with pytest.raises(NameTaken):
        await secrets.put(conn, ACTOR, "db", VALUE, replace=False, keys=ring)
    await secrets.put(conn, ACTOR, "db", VALUE, version=1, keys=ring)
    with pytest.raises(StaleVersion):
        await secrets.put(conn, ACTOR, "db", VALUE, version=1, keys=ring)
    with pytest.raises(StaleVersion):
        await secrets.delete(conn, ACTOR, "db", version=1)


@pytest.mark.parametrize(
    "value", ["", "nul\x00here", "\ud800hunter2", "x" * (MOST_BYTES + 1), "ä" * (MOST_BYTES // 2 + 1)]
)
async def test_a_value_that_fits_no_environment_is_refused_and_not_quoted(
    conn: Connection, ring: Ring, value: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        await secrets.put(conn, ACTOR, "db", value, keys=ring)
    assert raised.value.field == "value"
    assert not value or value[:5] not in raised.value.message
    await secrets.put(conn, ACTOR, "db", "x" * MOST_BYTES, keys=ring)


async def test_without_a_key_nothing_is_stored_and_the_error_says_what_to_type(conn: Connection) -> None:
    for source in (None, Ring.empty()):
        with pytest.raises(SecretUnavailable, match="mainspring secret key ID"):
            await secrets.put(conn, ACTOR, "db", VALUE, keys=source)
    assert (await secrets.listing(conn, ACTOR)).items == []


async def test_an_actor_of_some_jobs_sees_their_secrets_and_sets_none(conn: Connection, ring: Ring) -> None:
    await secrets.put(conn, ACTOR, "db", VALUE, keys=ring)
    await secrets.put(conn, ACTOR, "api", VALUE, keys=ring)
    for name in ("dump", "other"):
        await jobs.put(conn, ACTOR, name, using("db"))
    narrow = Actor("x", jobs=("du*",))
    assert [(one.name, one.jobs) for one in (await secrets.listing(conn, narrow)).items] == [("db", ["dump"])]
    with pytest.raises(SecretNotFound):
        await secrets.show(conn, narrow, "api")
    for change in (
        secrets.put(conn, narrow, "db", VALUE, keys=ring),
        secrets.delete(conn, narrow, "db"),
        secrets.rotate(conn, narrow, keys=ring),
    ):
        with pytest.raises(Forbidden):
            await change


async def test_bad_names_are_refused(conn: Connection, ring: Ring) -> None:
    for name in (BAD_NAME, "..", ""):
        for call in (secrets.put(conn, ACTOR, name, VALUE, keys=ring), secrets.show(conn, ACTOR, name)):
            with pytest.raises(MainspringError):
                await call
