"""The receiver of alerts: takes what servers send, refuses some of it, and keeps all.

Every rule that works without configuration is in force: agents are lost and servers die, so all kinds of them fire. The
events of one, `failed`, are compared with the history.
Next: tests/torture/alert_invariants.py
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainspring.store.postgres.database import Connection
from tests.alerting import add_channel
from tests.receiver import LOOPBACK, Receiver, receiving
from tests.torture.evidence import Receipt

ALLOW = {"MAINSPRING_HTTP_ALLOW": ",".join(LOOPBACK)}  # for all processes
REFUSED = 0.2  # of the messages
NOTED_WITHIN = 60.0  # seconds after the last end
RULE = "failed"

_UNNOTED = f"""
    select (select count(*) from mainspring.task_history where state in (11, 12, 15) and parent_id is null)
         > (select coalesce(sum(count), 0) from mainspring.alert where rule = '{RULE}')
        or exists (select from mainspring.alert_delivery where state = 'pending' and attempts = 0)
"""


@asynccontextmanager
async def receiver(seed: int) -> AsyncIterator[Receiver]:
    chance = random.Random(f"alerts {seed}")
    async with receiving() as receiver:
        receiver.statuses = [503 if chance.random() < REFUSED else 204 for _ in range(500)]
        receiver.statuses.append(204)
        yield receiver


async def begin(conn: Connection, receiver: Receiver) -> None:
    """One channel: all rules tell it."""
    await add_channel(conn, receiver.url)


async def settle(conn: Connection) -> None:
    """Wait until the leader has noted all failures and has tried to send what it has to say."""
    until = time.monotonic() + NOTED_WITHIN
    while await conn.fetchval(_UNNOTED) and time.monotonic() < until:
        await asyncio.sleep(0.2)


def receipts(receiver: Receiver) -> list[Receipt]:
    return [
        Receipt(one.id, int(one.headers["Mainspring-Attempt"]), hashlib.sha256(one.raw).hexdigest())
        for one in receiver.got
    ]
