"""Secrets: list, show, put, delete, rotate. No operation returns a value.

Next: store/access/secrets.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

import msgspec

from mainspring.errors import Conflict, NameTaken, SecretNotFound, SecretUnavailable, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.placement.define_placement import check_labels
from mainspring.model.secrets.encryption import seal, unseal
from mainspring.model.secrets.keys import NO_KEYS, Keys, KeySource
from mainspring.model.tasks.jobs import Definition, Http, secrets_of
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, reach
from mainspring.operations.parts.by_name import check_version
from mainspring.store.access import audit, secrets
from mainspring.store.access.secrets import SecretRow
from mainspring.store.postgres.connection import Connection

MOST_BYTES = 64 * 1024  # of a value
_WHY = "secrets are for the tasks"


class SecretView(msgspec.Struct, frozen=True):
    """All of a secret but its value, which is never shown."""

    name: str
    version: int
    key_id: str  # of the key that it is encrypted with
    labels: dict[str, str]  # that an agent must have to get it
    jobs: list[str]  # that refer to it
    channels: list[str]  # that refer to it
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    namespace: str = "default"


class SecretChange(msgspec.Struct, frozen=True):
    secret: SecretView
    changed: bool
    created: bool


class Rotation(msgspec.Struct, frozen=True):
    key_id: str  # of the key that encrypts all secrets now
    rotated: int  # secrets that had another one
    secrets: int  # that there are


async def listing(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[SecretView]:
    """Secrets by name, without their values. An actor that is narrowed to some jobs sees those that they use."""
    jobs, channels = await secrets.users(conn)
    found = await by_name.page(
        lambda after, count: secrets.listing(conn, after=after, limit=count),
        lambda secret: secret.name,
        lambda secret: not actor.jobs or any(map(actor.reaches, jobs.get(secret.name, ()))),
        filters={"list": "secrets"},
        cursor=cursor,
        limit=limit,
    )
    return Page([_view(actor, secret, jobs, channels) for secret in found.items], found.next)


async def show(conn: Connection, actor: Actor, name: str) -> SecretView:
    """One secret, without its value, and what refers to it."""
    found = await _shown(conn, actor, name)
    if actor.jobs and not found.jobs:
        raise _not_found(name)
    return found


async def put(
    conn: Connection,
    actor: Actor,
    name: str,
    value: str,
    *,
    labels: Mapping[str, str] | None = None,
    replace: bool = True,
    version: int | None = None,
    keys: KeySource | None = None,
) -> SecretChange:
    """Make a secret, or give it another value. Only agents with all of its labels get it.

    Without `labels` a secret keeps those it has. With `version`, only the secret that has this version is changed;
    without `replace`, none is. What is dispatched from now on gets the new value.
    """
    reach.check_all(actor, _WHY)
    check_path_name(name, field="name")
    _check_value(value)
    wanted = None if labels is None else check_labels(labels, field="labels")
    ring = await _keys(conn, keys)
    async with conn.transaction():
        present = await secrets.find(conn, name, lock=True)
        if present is None and version is not None:
            raise _not_found(name)
        if present is not None:
            check_version("secret", name, present.version, version)
            if not replace:
                raise NameTaken(f"there is a secret named {name!r}", field="name")
        before = None if present is None else _audited(present)
        number = 1 if present is None else present.version + 1
        given = wanted if wanted is not None else {} if present is None else present.labels
        sealed = seal(ring, name, number, value)
        if not await secrets.put(conn, name, number, sealed, given, actor.name):
            raise StaleVersion(f"secret {name!r} was set by another at the same time; set it again", field="version")
        made = await secrets.find(conn, name)
        assert made is not None
        action = "secret.create" if present is None else "secret.change"
        await audit.changed(conn, actor, action, f"secret:{name}", before, _audited(made))
        return SecretChange(await _shown(conn, actor, name), changed=True, created=present is None)


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Remove a secret. It is a conflict if a job or a channel refers to it."""
    reach.check_all(actor, _WHY)
    async with conn.transaction():
        present = await secrets.find(conn, check_path_name(name, field="secret"), lock=True)
        if present is None:
            raise _not_found(name)
        check_version("secret", name, present.version, version)
        jobs, channels = (by_secret.get(name, []) for by_secret in await secrets.users(conn, name))
        if jobs or channels:
            used = f"job {jobs[0]!r}" if jobs else f"channel {channels[0]!r}"
            more = f" and {len(jobs) + len(channels) - 1} more" if len(jobs) + len(channels) > 1 else ""
            message = f"secret {name!r}: {used}{more} refer{'' if more else 's'} to it; change that first"
            raise Conflict(message, field="secret", jobs=jobs[:100], channels=channels[:100])
        await secrets.delete(conn, name)
        await audit.changed(conn, actor, "secret.delete", f"secret:{name}", _audited(present), None)


async def rotate(conn: Connection, actor: Actor, *, keys: KeySource | None = None) -> Rotation:
    """Encrypt all secrets with the first key again: those that have another one. All of them, or none.

    Those that have the first one are decrypted too: another key may bear its id.
    """
    reach.check_all(actor, _WHY)
    ring = await _keys(conn, keys)
    key_id, _ = ring.encrypting()
    async with conn.transaction():
        stored = await secrets.lock_all(conn)
        values = {each.name: unseal(ring, each.name, each.version, each.sealed) for each in stored}
        others = [each for each in stored if each.sealed.key_id != key_id]
        for each in others:
            sealed = seal(ring, each.name, each.version + 1, values[each.name])
            await secrets.put(conn, each.name, each.version + 1, sealed, each.labels, actor.name)
        if others:
            used = sorted({each.sealed.key_id for each in others})
            detail = {"key": key_id, "instead_of": used, "secrets": len(others)}
            await audit.record(conn, actor, "secret.rotate", "secrets", detail)
    return Rotation(key_id, len(others), len(stored))


async def _keys(conn: Connection, source: KeySource | None) -> Keys:
    """The keys of this process. One is made with the first secret only: with another, those that there are would stay
    unreadable, and their backup could not be put beside it."""
    found = NO_KEYS if source is None else await asyncio.to_thread(source.read)
    if found.first is not None or source is None:
        return found
    if await secrets.any_stored(conn):
        raise SecretUnavailable(
            "there are secrets, and this process has no key for them: restore the file of keys, which is secret.keys in"
            " the data directory of an embedded PostgreSQL, or give it the keys that the servers have"
        )
    return await asyncio.to_thread(source.read_or_make)


async def check_references(conn: Connection, definition: Definition) -> None:
    """Refuse a job that refers to a secret that there is not, or whose agents need not have the labels for it."""
    if names := secrets_of(definition.run):
        check_secrets(definition, await secrets.labels_of(conn, sorted(names), keep=True), prefix="run.")


def check_secrets(definition: Definition, there: Mapping[str, Mapping[str, str]], *, prefix: str = "") -> None:
    """The same, given the labels of the secrets that there are, by name."""
    field = f"{prefix}{'headers' if isinstance(definition.run, Http) else 'env'}"
    for name in sorted(secrets_of(definition.run)):
        if name not in there:
            raise ValidationError(
                f"{field}: there is no secret {name!r}; `mainspring secret set {name}` makes one", field=field
            )
        lacking = {label: text for label, text in there[name].items() if definition.requires.get(label) != text}
        if lacking:
            told = ", ".join(f"{label}={text}" for label, text in lacking.items())
            raise ValidationError(
                f"{field}: secret {name!r} is for agents with the labels {told}; let the job require them", field=field
            )


def _check_value(value: object) -> None:
    """Never quotes the value."""
    if not isinstance(value, str) or not value:
        raise ValidationError("value: give a text, which is not empty", field="value")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValidationError("value: holds a lone surrogate, which is not text", field="value") from None
    if size > MOST_BYTES:
        raise ValidationError(f"value: longer than {MOST_BYTES:,} bytes", field="value")
    if "\x00" in value:
        raise ValidationError("value: holds a NUL character, which no environment can", field="value")


async def _shown(conn: Connection, actor: Actor, name: str) -> SecretView:
    found = await secrets.find(conn, check_path_name(name, field="secret"))
    if found is None:
        raise _not_found(name)
    return _view(actor, found, *(await secrets.users(conn, name)))


def _view(
    actor: Actor, secret: SecretRow, jobs: Mapping[str, list[str]], channels: Mapping[str, list[str]]
) -> SecretView:
    return SecretView(
        name=secret.name,
        version=secret.version,
        key_id=secret.key_id,
        labels=secret.labels,
        jobs=[job for job in jobs.get(secret.name, ()) if actor.reaches(job)],
        channels=list(channels.get(secret.name, ())),
        created_at=secret.created_at,
        created_by=secret.created_by,
        updated_at=secret.updated_at,
        updated_by=secret.updated_by,
    )


def _audited(secret: SecretRow) -> dict[str, object]:
    return {"version": secret.version, "key": secret.key_id, "labels": secret.labels}


def _not_found(name: str) -> SecretNotFound:
    return SecretNotFound(f"no secret named {name!r}; `mainspring secret list` shows what there is", field="secret")
