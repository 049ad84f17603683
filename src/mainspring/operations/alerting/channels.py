"""Channels: where alerts are sent. Their URLs and secrets do not come out again.

Next: store/alerts/channels.py
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET

from mainspring.errors import ChannelNotFound, NameTaken, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import MASK
from mainspring.model.alerts.channels import ChannelSpec, checked, read_channel, shown_url
from mainspring.model.alerts.messages import test_message
from mainspring.model.secrets.references import SecretReference, Value
from mainspring.model.words.merge_patch import merge_patch
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, reach
from mainspring.operations.parts.by_name import check_version
from mainspring.store.access import audit
from mainspring.store.access import secrets as stored_secrets
from mainspring.store.alerts import channels, deliveries
from mainspring.store.alerts.channels import ChannelView, Stored
from mainspring.store.postgres.connection import Connection


class ChannelChange(msgspec.Struct, frozen=True):
    channel: ChannelView
    changed: bool
    created: bool
    secret: str | None  # that was made for it: it is not told again


class TestDelivery(msgspec.Struct, frozen=True):
    channel: str
    delivery: UUID  # of the message; `GET /deliveries/{id}` tells what became of it


async def listing(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[ChannelView]:
    """All channels by name."""
    return await by_name.page(
        lambda after, count: channels.listing(conn, after=after, limit=count),
        lambda channel: channel.name,
        lambda _: True,
        filters={"list": "channels"},
        cursor=cursor,
        limit=limit,
    )


async def show(conn: Connection, actor: Actor, name: str) -> ChannelView:
    """One channel, without its secrets."""
    return await _find(conn, name)


async def put(
    conn: Connection, actor: Actor, name: str, spec: ChannelSpec, *, replace: bool = True, version: int | None = None
) -> ChannelChange:
    """Make a channel, or change it into this one. A new webhook without a secret gets one, which is shown this once.

    With `version`, only the channel that has this version is changed; without `replace`, none is.
    """
    reach.check_all(actor, "channels tell of tasks")
    check_path_name(name, field="name")
    wanted = checked(spec)
    async with conn.transaction():
        present = await channels.lock(conn, name)
        if present is None and version is not None:
            raise _not_found(name)
        if present is not None:
            check_version("channel", name, present.version, version)
            if not replace:
                raise NameTaken(f"there is a channel named {name!r}", field="name")
        return await _put(conn, actor, name, present, wanted)


async def edit(
    conn: Connection, actor: Actor, name: str, change: dict[str, Any], *, version: int | None = None
) -> ChannelChange:
    """Apply a JSON merge patch (RFC 7396) to a channel: `{"enabled": false}`, `{"secret": null}`."""
    reach.check_all(actor, "channels tell of tasks")
    async with conn.transaction():
        present = await channels.lock(conn, check_path_name(name, field="channel"))
        if present is None:
            raise _not_found(name)
        check_version("channel", name, present.version, version)
        before = {"kind": present.kind, "url": present.url, "secret": present.secret, "enabled": present.enabled}
        before = msgspec.to_builtins(before)
        replaced = ("url", "secret")  # a reference is one value: no patch of its members
        before = {name: value for name, value in before.items() if name not in replaced or name not in change}
        if "secret" in change and change["secret"] is None:
            before["secret"], change = None, {key: value for key, value in change.items() if key != "secret"}
        elif present.secret is None:
            before.pop("secret", None)
        wanted = read_channel(merge_patch(before, change))
        return await _put(conn, actor, name, present, checked(wanted))


async def _put(conn: Connection, actor: Actor, name: str, present: Stored | None, wanted: ChannelSpec) -> ChannelChange:
    """Write a channel that the caller has checked and, if there is one, locked."""
    made = None
    if wanted.secret is not UNSET:
        secret = wanted.secret
    elif wanted.kind != "webhook":
        secret = None
    elif present is not None:
        secret = present.secret
    else:
        secret = made = f"whsec_{secrets.token_urlsafe(32)}"
    new = (wanted.kind, wanted.url, secret, wanted.enabled)
    await _check_references(conn, wanted.url, secret)
    changed = present is None or tuple(present)[:4] != new
    if changed:
        await channels.put(conn, name, *new)
        action = "channel.create" if present is None else "channel.change"
        await audit.changed(conn, actor, action, f"channel:{name}", _audited(present), _audited(new, present))
        await channels.hint(conn)
    return ChannelChange(await _find(conn, name), changed=changed, created=present is None, secret=made)


async def _check_references(conn: Connection, url: Value, secret: Value | None) -> None:
    """Refuse references to secrets that there are not."""
    for field, value in (("url", url), ("secret", secret)):
        if isinstance(value, SecretReference) and not await stored_secrets.labels_of(conn, [value.secret], keep=True):
            raise ValidationError(
                f"{field}: there is no secret {value.secret!r}; `mainspring secret set {value.secret}` makes one",
                field=field,
            )


def _audited(channel: Sequence[Any] | None, before: Stored | None = None) -> dict[str, Any] | None:
    """A channel as the audit keeps it: what is secret is hidden, but that it was changed is not."""
    if channel is None:
        return None
    kind, url, secret, enabled = channel[:4]
    is_other = before is not None and secret != before.secret
    shown = shown_url(kind, url)
    if before is not None and url != before.url and shown == shown_url(before.kind, before.url):
        shown += " (other credentials)"
    hidden = f"{MASK} (another one)" if is_other else MASK
    if isinstance(secret, SecretReference):
        hidden = f"secret {secret.secret}"
    return {"kind": kind, "url": shown, "secret": None if secret is None else hidden, "enabled": enabled}


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Remove a channel; what waits for it is not sent."""
    reach.check_all(actor, "channels tell of tasks")
    async with conn.transaction():
        present = await channels.lock(conn, check_path_name(name, field="channel"))
        if present is None:
            raise _not_found(name)
        check_version("channel", name, present.version, version)
        await channels.delete(conn, name)
        await audit.changed(conn, actor, "channel.delete", f"channel:{name}", _audited(present), None)


async def send_test(conn: Connection, actor: Actor, name: str) -> TestDelivery:
    """Have the leader send a test message."""
    reach.check_all(actor, "channels tell of tasks")
    async with conn.transaction():
        await _find(conn, name)
        id, at = uuid4(), await conn.fetchval("select mainspring.now()")
        installation = str(await conn.fetchval("select id from mainspring.installation"))
        message = msgspec.json.encode(test_message(str(id), at, installation, name)).decode()
        await deliveries.add(conn, None, [deliveries.New(id, name, message)], at)
        await audit.record(conn, actor, "channel.test", f"channel:{name}", {"delivery": str(id)})
        await channels.hint(conn)
    return TestDelivery(name, id)


async def _find(conn: Connection, name: str) -> ChannelView:
    found = await channels.find(conn, check_path_name(name, field="channel"))
    if found is None:
        raise _not_found(name)
    return found


def _not_found(name: str) -> ChannelNotFound:
    return ChannelNotFound(f"no channel named {name!r}; `mainspring channel list` shows what there is", field="channel")
