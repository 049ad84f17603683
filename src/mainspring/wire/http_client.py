"""HTTP client of servers and agents: sends one request, once, to an address that was checked.

A name is resolved once for each request; every address it has must be allowed, and only those are dialled. aiohttp is
loaded with this module: import it when the first request is to be made.
Next: agent/executors/http_client.py
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from mainspring.model.tasks.addresses import Address, Allowed, literal

CONNECT = 10.0  # seconds: the name, the connection and TLS
SILENCE = 600.0  # seconds without a byte; a peer that vanished must not occupy its slot any longer
RESOLVERS = 16  # names that are resolved at the same time

Lookup = Callable[[str, int], Sequence[str]]


def system_lookup(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system knows them."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class AddressRefused(Exception):
    """The address must not be called; the message says why."""


class BadUrl(Exception):
    """Not a URL."""


ClientError = aiohttp.ClientError


class Unanswered(ClientError):
    """The connection broke before the response. The caller decides about a retry, not aiohttp."""


class CheckedClient:
    """Follows no redirects, keeps no cookies and no connections, and reads no proxy from the environment."""

    def __init__(self, allowed: Allowed, lookup: Lookup = system_lookup) -> None:
        self._resolver = CheckedResolver(allowed, lookup)
        # One connection for each request: none is stale, and none carries state over to the next.
        connector = aiohttp.TCPConnector(
            limit=0,
            force_close=True,
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=self._resolver.open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT, sock_read=SILENCE),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
            trust_env=False,
            middlewares=(_once,),
        )

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        """The response, once its headers have arrived; the caller closes it.

        Raises AddressRefused, BadUrl, and what aiohttp raises: `why` has words for it.
        """
        checked = self._resolver.check_literal(_url(url))
        limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        return await self._session.request(method, checked, headers=headers, data=body, allow_redirects=False, **limits)

    async def close(self) -> None:
        await self._session.close()
        await self._resolver.close()


class CheckedResolver(AbstractResolver):
    """Resolves names to addresses that may be called; raises AddressRefused for any other."""

    def __init__(self, allowed: Allowed, lookup: Lookup) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(
            RESOLVERS, "mainspring-names"
        )  # a slow name server delays only its own requests
        self._by_name: set[Address] = set()  # allowed because of the name that they belong to

    def check_literal(self, url: URL) -> URL:
        """Check an address given in place of a name, and write it in its usual form."""
        host = url.raw_host or ""
        address = literal(host)
        if address is None:
            if ":" in host:
                raise AddressRefused(f"{host} is not an address")
            return url
        self._check(host, address)
        return url if str(address) == host else url.with_host(str(address))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, host, port)
        addresses = [ip_address(text.partition("%")[0]) for text in dict.fromkeys(found)]
        for address in addresses:
            self._check(host, address)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    def _check(self, host: str, address: Address) -> None:
        refusal = self._allowed.refusal(host, address)
        if refusal is not None:
            raise AddressRefused(refusal)
        if self._allowed.refusal("", address) is not None:
            self._by_name.add(address)

    def open_socket(self, info: Any) -> socket.socket:
        """The last check, of the address that is dialled, however it was found."""
        family, kind, protocol, _, target = info
        address = literal(target[0])
        refusal = "not an address" if address is None else self._allowed.refusal("", address)
        if refusal is not None and address not in self._by_name:
            raise AddressRefused(f"{target[0]}: {refusal}")
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp repeats GET, PUT and DELETE when a connection breaks; a request is sent once."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Unanswered(str(error.strerror) if isinstance(error, OSError) else "") from error


def _url(text: str) -> URL:
    """Unchanged: a signed URL must not change in a single character."""
    try:
        return URL(text, encoded=text.isascii())
    except ValueError as error:
        raise BadUrl(f"{text.partition('?')[0]}: not a URL ({error})") from None


def why(error: BaseException) -> str:
    """What went wrong with a request, in a few words."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT:g} s"
        case TimeoutError():
            return f"no answer, not even a part of it, for {SILENCE:g} s"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} cannot be resolved: {error.os_error.strerror or error.os_error}"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {error.host} is not valid: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            return f"no connection: {error.os_error.strerror or error.os_error}"
        case Unanswered():
            return f"the connection was closed before the answer {error}".rstrip()
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
        case _:
            return f"{type(error).__name__}: {error}"
