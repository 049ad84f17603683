"""Which addresses an agent may call: public ones, others by allow-list, those of cloud metadata never.

Pure: it judges addresses and resolves no name. An address that carries another one inside (IPv4 in IPv6, by mapping or
by a tunnel) is judged by the one inside, because that is where the packets end.
Next: agent/executors/http_client.py
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
    for text in (
        *(
            "169.254.169.254",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::a9fe:a9fe",
        ),  # AWS, Azure, GCP and others
        *("169.254.170.2", "169.254.170.23", "fd00:ec2::23"),  # containers at AWS
        *("100.100.100.200", "168.63.129.16", "192.0.0.192"),  # Alibaba, Azure's host, Oracle
        *("169.254.0.23", "169.254.42.42", "fd00:42::42"),  # Tencent, Scaleway
    )
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

# From IANA's registries of special-purpose addresses; the first that holds an address names its kind.
_KINDS: tuple[tuple[IPv4Network | IPv6Network, str], ...] = tuple(
    (ip_network(text), kind)
    for text, kind in (
        ("0.0.0.0/8", "an unspecified"),
        ("10.0.0.0/8", "a private"),
        ("100.64.0.0/10", "a shared (carrier-grade NAT)"),
        ("127.0.0.0/8", "a loopback"),
        ("169.254.0.0/16", "a link-local"),
        ("172.16.0.0/12", "a private"),
        ("192.0.0.0/24", "a reserved"),
        ("192.0.2.0/24", "a documentation"),
        ("192.88.99.0/24", "a reserved"),
        ("192.168.0.0/16", "a private"),
        ("198.18.0.0/15", "a benchmarking"),
        ("198.51.100.0/24", "a documentation"),
        ("203.0.113.0/24", "a documentation"),
        ("224.0.0.0/4", "a multicast"),
        ("255.255.255.255/32", "a broadcast"),
        ("240.0.0.0/4", "a reserved"),
        ("::/128", "an unspecified"),
        ("::1/128", "a loopback"),
        ("64:ff9b:1::/48", "a private"),  # translation inside one network: only that network knows to where
        ("fc00::/7", "a private"),
        ("fe80::/10", "a link-local"),
        ("fec0::/10", "a private"),
        ("ff00::/8", "a multicast"),
        ("2001::/23", "a reserved"),
        ("2001:db8::/32", "a documentation"),
        ("3fff::/20", "a documentation"),
    )
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")  # all that is given out; the rest is reserved

_CARRIES_IPV4_AT_THE_END = tuple(
    IPv6Network(text) for text in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "::/96")
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = (0x00005EFE, 0x02005EFE)  # the upper half of the interface's part

_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


class Allowed:
    """What an agent may call beside public addresses: networks, and hosts whatever their address is."""

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
                f"{_told(host, address)}, where a cloud keeps the credentials of its machines; no setting allows that"
            )
        for end in ends or (address,):
            kind = kind_of(end)
            if kind is not None and name not in self._hosts and not self._holds(end):
                return f"{_told(host, address)}, {kind} address; if the agent is to call it, add it to http_allow"
        return None

    def _holds(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _told(host: str, address: Address) -> str:
    return f"{host} is {address}" if host != str(address) else host


def literal(host: str) -> Address | None:
    """The address that a host stands for by itself, also as 2130706433, 0177.0.0.1 or 127.1; None for a name."""
    text = host.removesuffix(".")
    if ":" in text:
        try:
            return IPv6Address(text.partition("%")[0])
        except ValueError:
            return None
    if not text.isascii() or text != "".join(text.split()):  # inet_aton reads no further than a space
        return None
    try:
        return IPv4Address(socket.inet_aton(text))
    except OSError:
        return None


def kind_of(address: Address) -> str | None:
    """What an address is if it is not a public one: "a private", "a loopback", …"""
    for network, kind in _KINDS:
        if address.version == network.version and address in network:
            return kind
    return "a reserved" if isinstance(address, IPv6Address) and address not in _PUBLIC_IPV6 else None


def inside(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address carries, to which it is translated or tunnelled."""
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    if number <= 1:  # unspecified and loopback carry nothing
        return ()
    if any(address in network for network in _CARRIES_IPV4_AT_THE_END):
        return (last,)
    if address in _SIX_TO_FOUR:
        return (IPv4Address(number >> 80 & 0xFFFFFFFF),)
    if address in _TEREDO:  # its server, and its client with all bits turned
        return (IPv4Address(number >> 64 & 0xFFFFFFFF), IPv4Address(~number & 0xFFFFFFFF))
    if number >> 32 & 0xFFFFFFFF in _ISATAP and kind_of(address) is None:
        return (last,)
    return ()
