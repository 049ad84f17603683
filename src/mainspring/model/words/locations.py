"""Locations: the addresses, hosts and origins that settings name. Pure: nothing is resolved.

Next: config.py
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from mainspring.errors import ValidationError, shown

_HOST = re.compile(r"(?!-)[A-Za-z0-9._-]{1,253}")


def address(text: str, field: str = "listen") -> tuple[str, int]:
    """HOST:PORT; the host may be an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdecimal()
    if is_number and (len(port) > 5 or int(port) > 65535):
        raise ValidationError(f"{field}: there is no port {port}; 0 to 65535", field=field)
    if not colon or not host or not is_number:
        raise ValidationError(f"{field}: {shown(text)}; write HOST:PORT, such as 127.0.0.1:7070", field=field)
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_web(
    public_url: str | None, allowed_hosts: Sequence[str], cors_origins: Sequence[str], trusted_proxies: Sequence[str]
) -> None:
    """ValidationError for the first setting of the HTTP API that is not what it has to be."""
    if public_url is not None:
        _check_public_url(public_url)
    for host in allowed_hosts:
        if not _is_host(host):
            advice = "write names or addresses without port, such as jobs.example,10.0.0.5"
            raise ValidationError(f"allowed_hosts: {shown(host)}; {advice}", field="allowed_hosts")
    for origin in cors_origins:
        parts = _split(origin)
        if parts is None or origin != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
            advice = "write the whole origin and nothing after it, such as https://intranet.example:8443"
            raise ValidationError(f"cors_origins: {shown(origin)}; {advice}", field="cors_origins")
    for proxy in trusted_proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError:
            advice = "write addresses or networks, such as 10.0.0.5,10.1.0.0/16"
            raise ValidationError(f"trusted_proxies: {shown(proxy)}; {advice}", field="trusted_proxies") from None


def _check_public_url(url: str) -> None:
    parts = _split(url)
    if parts is None or parts.query or parts.fragment or "@" in parts.netloc or "?" in url or "#" in url:
        advice = "write https://HOST, with a path if the proxy has one, such as https://example.org/jobs"
        raise ValidationError(f"public_url: {shown(url)}; {advice}", field="public_url")


def _split(url: str) -> SplitResult | None:
    """The parts of an HTTP URL; None if it is none."""
    try:
        parts = urlsplit(url)
        _port = parts.port  # ValueError if it is no number
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not _is_host(parts.hostname or "") or re.search(r"\s", url):
        return None
    return parts


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return _HOST.fullmatch(host) is not None
    return True
