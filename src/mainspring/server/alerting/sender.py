"""Sender: the leader posts messages to channels, and tries again those that were not taken.

A try is noted before it is made, so a message is sent at least once, and with the same id whenever it is sent again.
The addresses of receivers are checked like those of HTTP jobs.
Writes  store.alerts.deliveries
Next:   wire/http_client.py
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.errors import SecretUnavailable, ValidationError
from mainspring.loops import Alarm
from mainspring.model.alerts import messages
from mainspring.model.alerts.channels import check_channel_url
from mainspring.model.secrets.values import SecretValues
from mainspring.model.tasks.addresses import Allowed
from mainspring.model.tasks.retry import retry_after
from mainspring.server.secrets.opened import ReadKeys, no_keys, open_secrets
from mainspring.store.alerts import deliveries
from mainspring.store.alerts.deliveries import LONGEST_WAIT, Claimed
from mainspring.store.postgres.database import Database
from mainspring.version import VERSION

if TYPE_CHECKING:
    from mainspring.wire.http_client import CheckedClient

log = logging.getLogger("mainspring")

LOOK_EVERY = 15.0  # seconds, where nothing wakes it
AT_ONCE = 10  # messages
WITHIN = 10.0  # seconds for one try
LEASE = 20.0  # seconds after a try began that another leader may make the next
FIRST_WAIT = 5.0  # seconds until the second try; each wait is twice the one before
READ = 500  # bytes of an answer that are kept with an error


class Sender:
    def __init__(self, database: Database, allow: Sequence[str], read_keys: ReadKeys = no_keys) -> None:
        self._database = database
        self._read_keys = read_keys
        self._allowed = Allowed(allow)
        self._client: CheckedClient | None = None
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake)

    async def step(self) -> int:
        """Send what is due; returns how much that was."""
        async with self._database.acquire() as conn:
            claimed = await deliveries.claim(conn, AT_ONCE, LEASE)
            if not claimed:
                wait = await deliveries.next_try(conn)
                self._alarm.set(None if wait is None else max(0.1, wait))
                return 0
        done = await asyncio.gather(*map(self._deliver, claimed), return_exceptions=True)
        for error in done:
            if error is not None:  # an outcome could not be noted: that message is sent again; the others are done
                raise error
        return len(claimed)

    async def _deliver(self, one: Claimed) -> None:
        error, wait = await self._post_resolved(one)
        async with self._database.acquire() as conn:
            if error is None:
                await deliveries.delivered(conn, one.id)
                return
            wait = wait or min(FIRST_WAIT * 2 ** min(one.attempt - 1, 20), LONGEST_WAIT) * random.uniform(0.9, 1.1)
            await deliveries.failed(conn, one.id, one.attempt, error, wait)
        log.log(
            logging.WARNING if one.attempt == 1 else logging.INFO,
            "channel %s did not take message %s: %s; again in %.0f s", one.channel, one.id, error, wait,
        )  # fmt: skip

    async def _post_resolved(self, one: Claimed) -> tuple[str | None, float | None]:
        """Post with the secrets that the channel refers to; what the receiver answers is told without them."""
        names = {name for name in (one.url_from, one.secret_from) if name is not None}
        if not names:
            return await self._post(one)
        async with self._database.acquire() as conn:
            opened = await open_secrets(conn, self._read_keys, {0: names})
        try:
            values = {name: opened.value(name) for name in names}
            if one.url_from is not None:
                one = one._replace(url=check_channel_url(values[one.url_from].strip()))
            if one.secret_from is not None:
                one = one._replace(secret=values[one.secret_from])
        except (SecretUnavailable, ValidationError) as error:
            return error.message, None
        told, wait = await self._post(one)
        return None if told is None else SecretValues(values, {}).masked(told), wait

    async def _post(self, one: Claimed) -> tuple[str | None, float | None]:
        """Why the receiver did not take it, if so, and how many seconds it asks to wait."""
        assert one.url is not None
        client = await self._opened()
        module = import_module("mainspring.wire.http_client")
        body = messages.body(one.kind, one.message.encode())
        try:
            async with asyncio.timeout(WITHIN):
                response = await client.request("POST", one.url, _headers(one, body), body)
                try:
                    if response.status // 100 == 2:
                        return None, None
                    said = (await response.content.read(READ)).decode(errors="replace").replace("\0", "�").strip()
                    asked = retry_after(response.headers) if response.status in (429, 503) else None
                    told = f"it answered {response.status}" + (f": {said}" if said else "")
                    return told, None if asked is None else min(max(1.0, asked), LONGEST_WAIT)
                finally:
                    response.close()
        except (module.AddressRefused, module.BadUrl) as error:
            return str(error), None
        except TimeoutError:
            return f"no answer within {WITHIN:g} s", None
        except (module.ClientError, OSError) as error:
            return module.why(error), None

    async def _opened(self) -> CheckedClient:
        """aiohttp takes a quarter of a second to load: not on the event loop, and not before it is needed."""
        if self._client is None:
            module = await asyncio.to_thread(import_module, "mainspring.wire.http_client")
            self._client = self._client or module.CheckedClient(self._allowed)
        assert self._client is not None
        return self._client

    async def close(self) -> None:
        self._alarm.set(None)
        if self._client is not None:
            await self._client.close()


def _headers(one: Claimed, body: bytes) -> dict[str, str]:
    timestamp = int(one.now.timestamp())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"Mainspring/{VERSION}",
        "Mainspring-Delivery": str(one.id),
        "Mainspring-Attempt": str(one.attempt),
        "Mainspring-Timestamp": str(timestamp),
        "Idempotency-Key": str(one.id),
    }
    if one.secret is not None:
        headers["Mainspring-Signature"] = messages.signature(one.secret, timestamp, body)
    return headers
