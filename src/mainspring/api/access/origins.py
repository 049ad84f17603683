"""Origins: where a request came from, by which scheme and name, behind trusted proxies too; and whether it may.

A browser must not be tricked into calling a server for another site: the Host must be one of ours (DNS rebinding), and
what changes something must come from our own pages (Origin, Sec-Fetch-Site).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mainspring.api.problems import WrongHost
from mainspring.errors import Forbidden, ValidationError, shown

_HOST = re.compile(r"[\w.-]+(:\d{1,5})?|\[[\da-fA-F:.]+\](:\d{1,5})?")
COOKIE = "mainspring"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

# Headers that a page of another site may send, and may read.
ALLOWED = (
    "Authorization", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match", "Last-Event-ID",
    "Mainspring-Request-Id",
)  # fmt: skip
EXPOSED = ("Mainspring-Request-Id", "ETag", "Location", "Retry-After", "Idempotency-Replayed")


class Origin(NamedTuple):
    address: str  # of the client
    scheme: str
    host: str  # as the client wrote it, with its port

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}"

    @property
    def cookie(self) -> str:
        """The name of a session's cookie.

        It has the port, because browsers send a cookie to all ports of a host: of two installations on one host, a
        login to the second must not be a logout from the first.
        """
        port = self.host.rpartition("]")[2].partition(":")[2]
        return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


class Origins:
    """`hosts` are names beside those of the listening address; `trusted` are proxies whose headers are believed.

    `any_host`: another application, in which we are mounted, knows under which names it is served.
    """

    def __init__(
        self,
        *,
        public_url: str | None = None,
        hosts: Sequence[str] = (),
        trusted: Sequence[str] = (),
        cors: Sequence[str] = (),
        any_host: bool = False,
    ) -> None:
        public = urlsplit(public_url or "")
        self.public_url = public_url
        self._public_host, self._public_path = (public.hostname or "").lower(), public.path.rstrip("/")
        self._hosts = {*_LOOPBACK, socket.gethostname().lower(), *(host.lower() for host in hosts)}
        if public.hostname:
            self._hosts.add(public.hostname.lower())
        self._trusted = [_network(text) for text in trusted]
        self.cors = frozenset(cors)
        self._any_host = any_host

    def of(self, scope: Any, headers: dict[str, str]) -> Origin:
        client = scope.get("client")
        address = client[0] if client else "unknown"
        scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "http"), scope.get("scheme", "http"))
        host = headers.get("host", "")
        if self._is_trusted(address):
            address = self._forwarded_for(headers.get("x-forwarded-for", ""), address)
            scheme = "https" if headers.get("x-forwarded-proto", scheme).strip() == "https" else "http"
            host = headers.get("x-forwarded-host", host).partition(",")[0].strip()
        return Origin(address, scheme, host)

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted:
            return False
        try:
            given = ipaddress.ip_address(address)
        except ValueError:
            return address == "unknown"  # a Unix socket, which only a proxy of ours opens
        return any(given in network for network in self._trusted)

    def _forwarded_for(self, given: str, address: str) -> str:
        """The last address that no proxy of ours has: what stands before it anybody may have written."""
        for hop in reversed([part.strip() for part in given.split(",") if part.strip()]):
            address = hop[:64]
            if not self._is_trusted(address):
                break
        return address

    def base(self, scope: Any, origin: Origin) -> str:
        """The path below which the client reaches us: where we are mounted, or that of `public_url`.

        A request under another name than that of `public_url` did not come through its proxy.
        """
        mounted: str = scope.get("root_path", "").rstrip("/")
        return mounted or (self._public_path if _name(origin.host) == self._public_host else "")

    def check_host(self, origin: Origin, server: Any) -> None:
        name = _name(origin.host)
        if self._any_host or name in self._hosts:
            return
        here = server[0] if server else None
        if name and _is_address(name) and (here is None or name == here or _is_any(here)):
            return
        raise WrongHost(
            f"host: {shown(origin.host)} is no name of this server; use one that it knows, or add it to the setting "
            "allowed_hosts",
            field="host",
        )

    def check_not_foreign(self, origin: Origin, headers: dict[str, str]) -> None:
        """Refuse what a browser sends for a page of another site; a program that is none may come."""
        if "origin" in headers or "sec-fetch-site" in headers:
            self.check_same(origin, headers)

    def check_same(self, origin: Origin, headers: dict[str, str]) -> None:
        """Refuse a request that a browser made for a page of another site."""
        site, claimed = headers.get("sec-fetch-site"), headers.get("origin")
        ours = {_place(self.public_url or ""), f"https://{origin.host.lower()}"} - {""}
        if not origin.is_secure:  # then https is ours too: a proxy that is not trusted may have ended TLS
            ours.add(f"http://{origin.host.lower()}")
        is_other = site not in (None, "same-origin") or (claimed is not None and _place(claimed) not in ours)
        if is_other or (site is None and claimed is None):
            raise Forbidden(
                "origin: what changes something must come from the console's own pages; a program sends a token in "
                "the header Authorization instead",
                field="origin",
            )

    def cors_headers(self, headers: dict[str, str]) -> list[tuple[str, str]]:
        """What lets a page of a site that `cors` names read the answer."""
        claimed = headers.get("origin")
        if claimed is None or claimed not in self.cors:
            return []
        return [
            ("Access-Control-Allow-Origin", claimed),
            ("Access-Control-Expose-Headers", ", ".join(EXPOSED)),
            ("Vary", "Origin"),
        ]

    def preflight(self, headers: dict[str, str]) -> list[tuple[str, str]]:
        """What such a page may send."""
        if headers.get("origin") not in self.cors:
            return []
        return [
            ("Access-Control-Allow-Methods", headers.get("access-control-request-method", "GET")),
            ("Access-Control-Allow-Headers", ", ".join(ALLOWED)),
            ("Access-Control-Max-Age", "600"),
        ]


def _place(url: str) -> str:
    """SCHEME://HOST:PORT of a URL; empty if it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else ""


@lru_cache(256)  # a client sends the same one with every request
def _name(host: str) -> str:
    """The name in HOST:PORT; empty if it is not one, as when two Host headers were sent."""
    if not _HOST.fullmatch(host):
        return ""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_any(address: str) -> bool:
    return _is_address(address) and ipaddress.ip_address(address).is_unspecified


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValidationError(
            f"trusted_proxies: {shown(text)}; give addresses or networks such as 10.0.0.0/8", field="trusted_proxies"
        ) from None
