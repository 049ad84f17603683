"""Addresses, hosts and origins in settings."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.config import load
from mainspring.errors import ValidationError


@pytest.mark.parametrize(
    "given",
    [
        {"public_url": "https://example.org"},
        {"public_url": "http://10.0.0.5:8080/jobs/"},
        {"public_url": "https://[2001:db8::1]:8443"},
        {"allowed_hosts": "jobs.example,10.0.0.5,::1,localhost,my_host"},
        {"cors_origins": "https://intranet.example,http://localhost:5173"},
        {"trusted_proxies": "10.0.0.0/8,::1,192.168.1.1"},
        {"api_listen": "[::1]:8080"},
        {"api": "off"},
        {"api": True},
        {"api": "ON"},
        {"degraded_after": "2m"},
    ],
    ids=repr,
)
def test_what_is_right_is_taken(given: dict[str, Any]) -> None:
    load(given, environment={})


@pytest.mark.parametrize(
    "given",
    [
        {"public_url": "example.org"},
        {"public_url": "ftp://example.org"},
        {"public_url": "https://user:secret@example.org"},
        {"public_url": "https://example.org/?a=b"},
        {"public_url": "https://example.org/#x"},
        {"public_url": "https://example.org:port"},
        {"public_url": "https://exa mple.org"},
        {"allowed_hosts": "https://jobs.example"},
        {"allowed_hosts": "jobs.example:7070"},
        {"allowed_hosts": "*"},
        {"cors_origins": "intranet.example"},
        {"cors_origins": "https://intranet.example/"},
        {"cors_origins": "*"},
        {"cors_origins": "https://me@intranet.example"},
        {"trusted_proxies": "proxy.example"},
        {"trusted_proxies": "10.0.0.1/8"},
        {"api_listen": "8080"},
        {"api_listen": "here:99999"},
        {"api": "perhaps"},
        {"degraded_after": 0},
    ],
    ids=repr,
)
def test_what_is_wrong_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        load(given, environment={})
    assert refused.value.field == next(iter(given))
    assert refused.value.message.startswith(f"{refused.value.field}: ")
