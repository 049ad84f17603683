"""Addresses: which ones may be called. Public ones, others by allow-list, those of cloud metadata never.

Pure: resolves no name. An IPv6 address that carries an IPv4 address, by mapping or by a tunnel, is judged by the IPv4
address, because that is where the packets end.
Next: wire/http_client.py
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from mainspring.errors import ValidationError

Address = IPv4Address | IPv6Address

# Where clouds hand out the credentials of their machines.
METADATA = frozenset(
    ip_address(text)
    for texts in (
        "169.254.169.254 fd00:ec2::254 fd20:ce::254 fe80::a9fe:a9fe",  # AWS, Azure, GCP and others
        "169.254.170.2 169.254.170.23 fd00:ec2::23",  # containers at AWS
        "100.100.100.200 168.63.129.16 192.0.0.192",  # Alibaba, Azure's host, Oracle
        "169.254.0.23 169.254.42.42 fd00:42::42",  # Tencent, Scaleway
    )
    for text in texts.split()
)
METADATA_HOSTS = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "instance-data.ec2.internal",
    }
)

# From IANA's registries of special-purpose addresses: what `ipaddress` does not know, or not by this name.
_SPECIAL = tuple(
    (ip_network(text), kind)
    for kind, texts in {
        "an unspecified": "0.0.0.0/8 ::/128",
        "a private": "fec0::/10 64:ff9b:1::/48",  # the latter is translated inside one network, by its own rules
        "a shared (carrier-grade NAT)": "100.64.0.0/10",
        "a documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
        "a benchmarking": "198.18.0.0/15",
        "a broadcast": "255.255.255.255/32",
        "a reserved": "192.0.0.0/24 192.88.99.0/24 2001::/23",
    }.items()
    for text in texts.split()
)

_ENDS_IN_IPV4 = tuple(IPv6Network(text) for text in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "::/96"))
_ISATAP = (0x00005EFE, 0x02005EFE)  # the upper half of the interface id

_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


class Allowed:
    """The allow-list beside public addresses: networks, and hosts at any address."""

    def __init__(self, given: Sequence[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[str] = set()
        for text in given:
            entry = text.strip().lower().removesuffix(".")
            try:
                self._networks.append(ip_network(entry))
            except ValueError as error:
                if literal(entry) is not None or not _HOST.fullmatch(entry):
                    raise ValidationError(
                        f"http_allow: {text!r} is neither a network nor a host ({error});"
                        " write 10.0.0.0/8,intranet.example",
                        field="http_allow",
                    ) from None
                self._hosts.add(entry)

    def refusal(self, host: str, address: Address) -> str | None:
        """Why `host` must not be called at `address`, or None if it may."""
        name = host.lower().removesuffix(".")
        ends = inside(address)
        if name in METADATA_HOSTS or not METADATA.isdisjoint((address, *ends)):
            return (
                f"{_shown(host, address)}, where a cloud keeps the credentials of its machines; no setting allows that"
            )
        for end in ends or (address,):
            kind = kind_of(end)
            if kind is not None and name not in self._hosts and not self._holds(end):
                return f"{_shown(host, address)}, {kind} address; if it is to be called, add it to http_allow"
        return None

    def _holds(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _shown(host: str, address: Address) -> str:
    return f"{host} is {address}" if host != str(address) else host


def literal(host: str) -> Address | None:
    """The address that a host is, also written as 2130706433, 0177.0.0.1 or 127.1; None for a name."""
    text = host.removesuffix(".")
    if ":" in text:
        try:
            return IPv6Address(text.partition("%")[0])
        except ValueError:
            return None
    if not text.isascii() or text != "".join(text.split()):  # inet_aton stops at a space
        return None
    try:
        return IPv4Address(socket.inet_aton(text))
    except OSError:
        return None


def kind_of(address: Address) -> str | None:
    """What an address is if it is not a public one: "a private", "a loopback", …"""
    for network, kind in _SPECIAL:
        if address.version == network.version and address in network:
            return kind
    if address.is_loopback:
        return "a loopback"
    if address.is_link_local:
        return "a link-local"
    if address.is_multicast:
        return "a multicast"
    if address.is_private and not address.is_reserved:
        return "a private"
    return None if address.is_global and not address.is_reserved else "a reserved"


def inside(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address carries, to which it is translated or tunnelled."""
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    if number <= 1:  # unspecified and loopback carry nothing
        return ()
    if any(address in network for network in _ENDS_IN_IPV4):
        return (last,)
    if address.sixtofour:
        return (address.sixtofour,)
    if address.teredo:
        return address.teredo  # its server and its client
    if number >> 32 & 0xFFFFFFFF in _ISATAP and kind_of(address) is None:
        return (last,)
    return ()
