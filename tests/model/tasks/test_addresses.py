"""Which addresses an agent may call."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mainspring.errors import ValidationError
from mainspring.model.tasks.addresses import METADATA, METADATA_HOSTS, Allowed, literal

PUBLIC = ["1.1.1.1", "93.184.216.34", "172.32.0.1", "192.169.0.1", "100.128.0.1", "198.20.0.1", "223.255.255.255"]
PUBLIC += ["2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"]

REFUSED = [
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("10.1.2.3", "private"),
    ("100.64.0.1", "shared"),
    ("100.127.255.255", "shared"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("169.254.1.1", "link-local"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.0.0.1", "reserved"),
    ("192.0.2.1", "documentation"),
    ("192.88.99.1", "reserved"),
    ("192.168.1.1", "private"),
    ("198.19.0.1", "benchmarking"),
    ("198.51.100.1", "documentation"),
    ("203.0.113.1", "documentation"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("fc00::1", "private"),
    ("fd12:3456::1", "private"),
    ("fe80::1", "link-local"),
    ("fec0::1", "private"),
    ("ff02::1", "multicast"),
    ("100::1", "reserved"),
    ("2001:db8::1", "documentation"),
    ("2001:2::1", "reserved"),
    ("3fff::1", "documentation"),
    ("5f00::1", "reserved"),
    ("64:ff9b:1::1", "private"),
    ("::ffff:127.0.0.1", "loopback"),  # mapped
    ("::ffff:0:10.0.0.1", "private"),  # translated
    ("::127.0.0.1", "loopback"),  # compatible
    ("64:ff9b::10.0.0.1", "private"),  # NAT64
    ("2002:7f00:1::1", "loopback"),  # 6to4
    ("2002:c0a8:101::1", "private"),
    ("2001:0:a00:1::fefe:fefe", "private"),  # Teredo, by its server
    ("2001:0:101:101::f5ff:fffe", "private"),  # Teredo, by its client 10.0.0.1
    ("2606:4700::5efe:10.0.0.1", "private"),  # ISATAP
    ("2606:4700::200:5efe:127.0.0.1", "loopback"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_called(address: str) -> None:
    assert Allowed().refusal("shop.example", ip_address(address)) is None


@pytest.mark.parametrize(("address", "kind"), REFUSED)
def test_other_addresses_are_refused_by_their_kind(address: str, kind: str) -> None:
    refusal = Allowed().refusal("shop.example", ip_address(address))
    assert refusal is not None
    assert kind in refusal
    assert "shop.example" in refusal
    assert "http_allow" in refusal


METADATA_ADDRESSES = sorted(str(address) for address in METADATA)
METADATA_ADDRESSES += ["::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1", "::169.254.169.254"]


@pytest.mark.parametrize("address", METADATA_ADDRESSES)
def test_metadata_is_refused_whatever_is_allowed(address: str) -> None:
    everything = Allowed(["0.0.0.0/0", "::/0", "shop.example"])
    refusal = everything.refusal("shop.example", ip_address(address))
    assert refusal is not None
    assert "no setting" in refusal


@pytest.mark.parametrize("host", [*sorted(METADATA_HOSTS), "Metadata.Google.Internal", "metadata.google.internal."])
def test_names_of_metadata_are_refused_whatever_their_address(host: str) -> None:
    assert Allowed(["0.0.0.0/0"]).refusal(host, ip_address("1.1.1.1")) is not None


ALLOWED = [
    ("10.0.0.0/8", "any", "10.9.9.9", True),
    ("10.0.0.0/8", "any", "::ffff:10.9.9.9", True),
    ("10.0.0.0/8", "any", "64:ff9b::10.9.9.9", True),
    ("10.0.0.0/8", "any", "11.0.0.1", True),  # public
    ("10.0.0.0/8", "any", "172.16.0.1", False),
    ("10.0.0.0/8", "any", "::1", False),
    ("::/0", "any", "::ffff:10.9.9.9", False),  # it ends at an IPv4 address
    ("127.0.0.1", "any", "127.0.0.1", True),
    ("127.0.0.1", "any", "127.0.0.2", False),
    ("fd00::/8", "any", "fd12::1", True),
    ("intranet.example", "intranet.example", "10.0.0.1", True),
    ("Intranet.Example.", "INTRANET.example.", "10.0.0.1", True),
    ("intranet.example", "www.intranet.example", "10.0.0.1", False),
    ("localhost", "localhost", "::1", True),
]


@pytest.mark.parametrize(("allow", "host", "address", "may"), ALLOWED)
def test_an_allow_list_opens_networks_and_hosts(allow: str, host: str, address: str, may: bool) -> None:
    assert (Allowed([allow]).refusal(host, ip_address(address)) is None) is may


@pytest.mark.parametrize(
    "entry", ["10.0.0.1/8", "10.0.0.0/33", "10.0", "2130706433", "a b", "", "*.example", "http://x"]
)
def test_what_is_neither_a_network_nor_a_host_cannot_be_allowed(entry: str) -> None:
    with pytest.raises(ValidationError, match="http_allow") as caught:
        Allowed([entry])
    assert caught.value.field == "http_allow"


LITERALS = [
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1.", "127.0.0.1"),
    ("2130706433", "127.0.0.1"),
    ("0x7f000001", "127.0.0.1"),
    ("0177.0.0.1", "127.0.0.1"),
    ("0x7f.1", "127.0.0.1"),
    ("127.1", "127.0.0.1"),
    ("2852039166", "169.254.169.254"),
    ("0", "0.0.0.0"),
    ("::1", "::1"),
    ("fe80::1%25eth0", "fe80::1"),
    ("::ffff:7f00:1", "::ffff:127.0.0.1"),
    ("shop.example", None),
    ("1.2.3.4.5", None),
    ("256.0.0.1", None),
    ("127.0.0.1 x", None),
    ("::g", None),
    ("", None),
]


@pytest.mark.parametrize(("host", "address"), LITERALS)
def test_addresses_are_known_however_they_are_written(host: str, address: str | None) -> None:
    assert literal(host) == (None if address is None else ip_address(address))
