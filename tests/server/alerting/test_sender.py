"""Sender, with a real receiver on loopback: what is told arrives, at least once and under one id."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from tests.alerting import SECRET, Time, add_channel, end_tasks, only_rule
from tests.receiver import LOOPBACK, Receiver, receiving
from tests.secret_keys import Ring

from mainspring.model.access.actors import Actor
from mainspring.model.alerts.channels import ChannelSpec
from mainspring.model.alerts.kinds import KINDS
from mainspring.model.alerts.messages import test_message as made_test_message
from mainspring.model.secrets.references import SecretReference
from mainspring.operations.alerting import channels as channel_operations
from mainspring.operations.definitions import secrets
from mainspring.server.alerting import sender as sender_module
from mainspring.server.alerting.evaluator import Evaluator
from mainspring.server.alerting.sender import Sender
from mainspring.store.alerts import channels, deliveries
from mainspring.store.postgres.database import Connection, Database


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def time(conn: Connection) -> Time:
    return Time(conn)


@pytest.fixture
async def sender(database: Database) -> AsyncIterator[Sender]:
    sender = Sender(database, LOOPBACK)
    yield sender
    await sender.close()


async def add_message(conn: Connection, channel: str = "ops", rule: str | None = None) -> UUID:
    id, at = uuid4(), await conn.fetchval("select mainspring.now()")
    message = msgspec.json.encode(made_test_message(str(id), at, "here", channel)).decode()
    await deliveries.add(conn, rule, [deliveries.New(id, channel, message)], at)
    return id


async def state(conn: Connection, id: UUID) -> str:
    found = await deliveries.find(conn, id)
    assert found is not None
    return found.state


async def test_a_message_is_signed_over_the_time_and_the_body(
    conn: Connection, receiver: Receiver, sender: Sender
) -> None:
    await add_channel(conn, receiver.url)
    id = await add_message(conn)
    assert await sender.step() == 1
    [got] = receiver.got
    signed = got.headers["Mainspring-Timestamp"].encode() + b"." + got.raw
    wanted = "sha256=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(got.headers["Mainspring-Signature"], wanted)
    assert (got.id, got.body["id"], got.headers["Mainspring-Attempt"]) == (str(id), str(id), "1")
    assert await state(conn, id) == "delivered"
    assert await sender.step() == 0


async def test_a_message_of_a_disabled_channel_has_no_next_try(conn: Connection, receiver: Receiver) -> None:
    await add_channel(conn, receiver.url)
    await conn.execute("update mainspring.channel set enabled = false")
    await add_message(conn)
    assert await deliveries.claim(conn, 10, 60.0) == []
    assert await deliveries.next_try(conn) is None, "else the leader would ask ten times a second"


async def test_the_check_of_the_manual_lets_through_what_is_genuine_only(
    conn: Connection, receiver: Receiver, sender: Sender
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "alerts.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # as a reader would paste it
    is_genuine = names["is_genuine"]
    await add_channel(conn, receiver.url)
    await add_message(conn)
    await sender.step()
    [got] = receiver.got
    assert is_genuine(SECRET, got.headers, got.raw)
    assert not is_genuine(SECRET + "x", got.headers, got.raw)
    assert not is_genuine(SECRET, got.headers, got.raw + b" ")
    later = str(int(got.headers["Mainspring-Timestamp"]) + 1)
    assert not is_genuine(SECRET, {**got.headers, "Mainspring-Timestamp": later}, got.raw)
    old = str(int(got.headers["Mainspring-Timestamp"]) - 3600)
    assert not is_genuine(SECRET, {**got.headers, "Mainspring-Timestamp": old}, got.raw)


def test_the_manual_has_every_kind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "alerts.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (\w*) ?\| (\*event:\*)?", page, re.MULTILINE)
    kinds = {name: (about, bool(event)) for name, about, event in told}
    assert {name: (kind.about, kind.is_event) for name, kind in KINDS.items()}.items() <= kinds.items()


async def test_slack_gets_text_and_no_name_can_call_everybody(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender, database: Database
) -> None:
    await add_channel(conn, receiver.url, kind="slack", secret=None)
    await only_rule(conn, "failed", kind="failed")
    evaluator = Evaluator(database)
    await evaluator.step()
    await end_tasks(conn, "<!channel> & co", 3, error="boom")
    for _ in range(5):
        await time.go(10)
        await evaluator.step()
    await sender.step()
    [got] = receiver.got
    assert list(got.body) == ["text"]
    assert "failed" in got.body["text"]
    assert "&lt;!channel&gt; &amp; co (3 new): 3 tasks of" in got.body["text"]
    assert "Mainspring-Signature" not in got.headers


async def test_a_message_that_is_refused_is_sent_again_under_the_same_id(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender
) -> None:
    receiver.statuses = [500, 500, 204]
    await add_channel(conn, receiver.url)
    id = await add_message(conn)
    await sender.step()
    assert await sender.step() == 0, "it waits"
    view = await deliveries.find(conn, id)
    assert view is not None
    assert (view.state, view.attempts, view.last_error) == ("pending", 1, "it answered 500: said")
    for _ in range(3):
        await time.go(12)
        await sender.step()
    assert [got.id for got in receiver.got] == [str(id)] * 3
    assert len({got.raw for got in receiver.got}) == 1, "the same bytes"
    assert [got.headers["Mainspring-Attempt"] for got in receiver.got] == ["1", "2", "3"]
    assert await state(conn, id) == "delivered"
    channel = await conn.fetchrow("select failing_since, delivered_at, last_error from mainspring.channel")
    assert channel["failing_since"] is None
    assert channel["delivered_at"] is not None


async def test_a_clock_that_is_set_back_holds_up_no_message(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender
) -> None:
    receiver.statuses = [500, 204]
    await add_channel(conn, receiver.url)
    await time.go(3600)
    refused, new = await add_message(conn), await add_message(conn)
    await sender.step()
    await conn.execute("update mainspring.alert_delivery set state = 'pending', ended_at = null where id = $1", new)
    await time.go(-3600)
    await sender.step()
    assert [await state(conn, refused), await state(conn, new)] == ["delivered", "delivered"]


async def test_a_leader_killed_between_sending_and_noting_tells_at_most_twice(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender, database: Database
) -> None:
    """The first leader dies while the receiver answers; the second finds the try noted, and waits for its end."""
    await add_channel(conn, receiver.url)
    id = await add_message(conn)
    sending = asyncio.create_task(sender.step())

    async def die() -> None:
        sending.cancel()

    receiver.before_answer = die
    with pytest.raises(asyncio.CancelledError):
        await sending
    receiver.before_answer = None
    successor = Sender(database, LOOPBACK)
    try:
        assert await successor.step() == 0, "the first one may still be sending"
        for _ in range(4):
            await time.go(sender_module.LEASE + 1)
            await successor.step()
    finally:
        await successor.close()
    assert [got.id for got in receiver.got] == [str(id)] * 2
    assert await state(conn, id) == "delivered"


async def test_two_leaders_send_a_message_once(
    conn: Connection, receiver: Receiver, sender: Sender, database: Database
) -> None:
    await add_channel(conn, receiver.url)
    ids = [str(await add_message(conn)) for _ in range(20)]
    other = Sender(database, LOOPBACK)
    try:
        for _ in range(4):
            await asyncio.gather(sender.step(), other.step())
    finally:
        await other.close()
    assert sorted(got.id for got in receiver.got) == sorted(ids)


async def test_an_address_that_is_not_allowed_is_not_dialled(
    conn: Connection, receiver: Receiver, database: Database
) -> None:
    await add_channel(conn, receiver.url)
    id = await add_message(conn)
    strict = Sender(database, [])
    try:
        await strict.step()
    finally:
        await strict.close()
    view = await deliveries.find(conn, id)
    assert view is not None
    assert "loopback" in (view.last_error or "")
    assert receiver.got == []


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://[fd00:ec2::254]/"])
async def test_metadata_is_never_called(conn: Connection, database: Database, url: str) -> None:
    await add_channel(conn, url)
    id = await add_message(conn)
    open_sender = Sender(database, ["0.0.0.0/0", "::/0"])
    try:
        await open_sender.step()
    finally:
        await open_sender.close()
    view = await deliveries.find(conn, id)
    assert view is not None
    assert "credentials of its machines" in (view.last_error or "")


async def test_a_redirect_is_not_followed(conn: Connection, receiver: Receiver, sender: Sender) -> None:
    receiver.statuses, receiver.headers = [302], {"Location": "http://169.254.169.254/"}
    await add_channel(conn, receiver.url)
    id = await add_message(conn)
    await sender.step()
    assert await state(conn, id) == "pending"
    assert len(receiver.got) == 1


async def test_a_receiver_that_hangs_holds_up_no_other(
    conn: Connection, receiver: Receiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "WITHIN", 0.3)
    async with receiving() as slow:
        slow.before_answer = asyncio.Event().wait  # type: ignore[assignment]
        await add_channel(conn, slow.url, "slow")
        await add_channel(conn, receiver.url)
        stuck, taken = await add_message(conn, "slow"), await add_message(conn)
        await sender.step()
        assert (await state(conn, stuck), await state(conn, taken)) == ("pending", "delivered")
        view = await deliveries.find(conn, stuck)
        assert view is not None
        assert view.last_error == "no answer within 0.3 s"


async def test_messages_of_a_rule_go_out_in_order(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender
) -> None:
    receiver.statuses = [503, 204]
    await add_channel(conn, receiver.url)
    first = await add_message(conn, rule="failed")
    await sender.step()
    await time.go(1)
    second = await add_message(conn, rule="failed")
    assert await sender.step() == 0, "the first one has not arrived"
    await time.go(30)
    while await sender.step():
        pass
    assert [got.id for got in receiver.got] == [str(first), str(first), str(second)]


async def test_a_receiver_may_say_when_to_try_again(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender
) -> None:
    receiver.statuses, receiver.headers = [429, 204], {"Retry-After": "300"}
    await add_channel(conn, receiver.url)
    await add_message(conn)
    await sender.step()
    await time.go(290)
    assert await sender.step() == 0
    await time.go(15)
    assert await sender.step() == 1


async def test_a_message_is_given_up_after_a_day_and_it_shows(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender
) -> None:
    receiver.statuses = [500]
    await add_channel(conn, receiver.url)
    id = await add_message(conn)
    await sender.step()
    assert await deliveries.undelivered(conn) is None
    await time.go(300)
    found = await deliveries.undelivered(conn)
    assert found is not None
    assert (found.messages, found.channels, found.error) == (1, ["ops"], "it answered 500: said")
    await time.go(86400)
    await sender.step()
    assert await state(conn, id) == "given_up"
    assert await deliveries.undelivered(conn) is not None
    await time.go(7200)
    assert await deliveries.undelivered(conn) is None, "what is long over is not told for ever"
    assert await sender.step() == 0


async def test_what_waits_for_a_channel_that_is_disabled_is_not_sent(
    conn: Connection, receiver: Receiver, sender: Sender
) -> None:
    await add_channel(conn, receiver.url)
    await conn.execute("update mainspring.channel set enabled = false")
    await add_message(conn)
    assert await sender.step() == 0
    assert receiver.got == []


async def test_messages_of_a_disabled_channel_are_no_trouble_and_are_given_up_once_they_are_old(
    conn: Connection, time: Time, receiver: Receiver, sender: Sender
) -> None:
    await add_channel(conn, receiver.url)
    old = await add_message(conn)
    await channels.put(conn, "ops", "webhook", receiver.url, None, False)
    await time.go(86400 * 2)
    assert await deliveries.undelivered(conn) is None
    fresh = await add_message(conn)
    await time.go(300)
    await channels.put(conn, "ops", "webhook", receiver.url, None, True)
    await sender.step()
    assert [await state(conn, id) for id in (old, fresh)] == ["given_up", "delivered"]
    assert len(receiver.got) == 1
    assert await deliveries.undelivered(conn) is None


async def test_a_channel_may_have_its_url_and_its_secret_from_secrets(
    conn: Connection, database: Database, receiver: Receiver
) -> None:
    ring = Ring()
    for name, value in (("hook", f"{receiver.url}?token=hunter2\n"), ("signs", SECRET)):
        await secrets.put(conn, Actor("test"), name, value, keys=ring)
    spec = ChannelSpec("webhook", SecretReference("hook"), SecretReference("signs"))
    shown = (await channel_operations.put(conn, Actor("test"), "ops", spec)).channel
    assert (shown.url, shown.is_signed) == ("secret hook", True)
    assert "hunter2" not in repr(await conn.fetch("select * from mainspring.channel"))
    id = await add_message(conn)
    without_keys, sender = Sender(database, LOOPBACK), Sender(database, LOOPBACK, ring.read)
    try:
        assert await without_keys.step() == 1
        found = await deliveries.find(conn, id)
        assert found is not None
        assert "which this process does not have" in (found.last_error or "")
        assert receiver.got == []
        await channels.put(conn, "ops", "webhook", SecretReference("hook"), SecretReference("signs"), True)
        assert await sender.step() == 1
    finally:
        await without_keys.close()
        await sender.close()
    [got] = receiver.got
    signed = got.headers["Mainspring-Timestamp"].encode() + b"." + got.raw
    assert got.headers["Mainspring-Signature"].endswith(hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest())
    assert await state(conn, id) == "delivered"
