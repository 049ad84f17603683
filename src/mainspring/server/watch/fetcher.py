"""Fetcher: GET an address that people gave, as a sign of life; the answer does not matter beyond its status.

The address is checked like that of an HTTP job. aiohttp is loaded in a thread, when the first address is fetched.
Next: wire/http_client.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.model.tasks.addresses import Allowed
from mainspring.version import VERSION

if TYPE_CHECKING:
    from mainspring.wire.http_client import CheckedClient

WITHIN = 10.0  # seconds

_HEADERS = {"User-Agent": f"Mainspring/{VERSION}"}


class Fetcher:
    def __init__(self, allow: Sequence[str]) -> None:
        self._allowed = Allowed(allow)
        self._client: CheckedClient | None = None

    async def fetch(self, url: str, headers: dict[str, str] | None = None) -> str | None:
        """Why it was not taken, in words without the address; None: it was."""
        module = await asyncio.to_thread(import_module, "mainspring.wire.http_client")
        if self._client is None:
            self._client = module.CheckedClient(self._allowed)
        assert self._client is not None
        try:
            async with asyncio.timeout(WITHIN):
                response = await self._client.request("GET", url, _HEADERS | (headers or {}))
                response.close()
                return None if response.status // 100 == 2 else f"it answered {response.status}"
        except (module.AddressRefused, module.BadUrl) as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {WITHIN:g} s"
        except (module.ClientError, OSError) as error:
            return str(module.why(error))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
