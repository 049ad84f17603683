"""The HTTP client of an agent: the shared one, whose errors become the ends of attempts.

It loads aiohttp, so the executor imports it when the first HTTP job is armed.
Next: agent/executors/http_body.py
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from mainspring.agent.attempt import EXHAUSTED, AttemptFailed, Exhausted
from mainspring.agent.executors.http_request import Request
from mainspring.model.tasks.addresses import Allowed
from mainspring.wire.http_client import AddressRefused, BadUrl, CheckedClient, Lookup, system_lookup, why

__all__ = ["Client", "Lookup", "system_lookup"]


class Client:
    def __init__(self, allowed: Allowed, lookup: Lookup) -> None:
        self._client = CheckedClient(allowed, lookup)

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, once its headers have arrived. Leaving the block closes the connection."""
        try:
            response = await self._client.request(request.method, request.url, request.headers, request.body)
            try:
                yield response
            finally:
                response.close()
        except (AddressRefused, BadUrl) as error:
            raise _refused(error) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if _is_exhausted(error):
                raise Exhausted(f"{request.shown}: no socket: {why(error)}") from None
            raise AttemptFailed("http_unreachable", f"{request.shown}: {why(error)}") from None

    async def status_of(self, url: str) -> int | None:
        """The status that a GET gets, however long it takes; None if the response is not HTTP. Raises OSError."""
        try:
            response = await self._client.request(
                "GET", url, {"User-Agent": "mainspring"}, timeout=aiohttp.ClientTimeout(total=None)
            )
        except (AddressRefused, BadUrl) as error:
            raise _refused(error) from None
        except aiohttp.ClientConnectorError:
            raise
        except aiohttp.ClientError:
            return None
        response.close()
        return response.status

    async def close(self) -> None:
        await self._client.close()


def _refused(error: AddressRefused | BadUrl) -> AttemptFailed:
    return AttemptFailed("bad_url" if isinstance(error, BadUrl) else "address_refused", str(error), final=True)


def _is_exhausted(error: BaseException) -> bool:
    """Whether there was no descriptor for the socket, or for looking up the name, which does not say so."""
    cause = getattr(error, "os_error", error)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as refusal:
            cause = refusal
    return isinstance(cause, OSError) and cause.errno in EXHAUSTED
