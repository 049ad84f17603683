"""The hosts that a DSN names. Pure.

    postgresql://user@a:5432,b:5433/shop
    postgresql:///shop?host=a,b&port=5432,5433

Next: store/dial.py
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from mainspring.errors import ValidationError

_WRITABLE = {"any", "primary", "read-write"}  # each of them means read-write to us


class Host(NamedTuple):
    name: str
    port: int | None = None  # none: the driver knows, from the environment or by default

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


def hosts_of(dsn: str) -> list[Host]:
    """The hosts of a DSN in its order; none if it names none, or cannot be read: then the driver says what is wrong."""
    try:
        parts = urlsplit(dsn)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        ports = [int(port) for port in query.get("port", "").split(",") if port]
        inside = parts.netloc.partition("@")[2] if "@" in parts.netloc else parts.netloc
        names = [unquote(name) for name in inside.split(",")] if inside else query.get("host", "").split(",")
        if names == [""] or len(ports) not in (0, 1, len(names)):
            return []
        defaults = ports if len(ports) == len(names) else [ports[0] if ports else None] * len(names)
        return [_host(name, port) for name, port in zip(names, defaults, strict=True)]
    except ValueError:
        return []


def _host(text: str, port: int | None) -> Host:
    if text.startswith("/"):
        return Host(text, port)
    if text.startswith("["):
        name, _, own_port = text[1:].partition("]")
        own_port = own_port.removeprefix(":")
    else:
        name, _, own_port = text.partition(":")
    return Host(name, int(own_port) if own_port else port)


def check_session_attributes(dsn: str) -> None:
    """ValidationError if the DSN asks for a server that cannot be written to."""
    try:
        asked = parse_qs(urlsplit(dsn).query).get("target_session_attrs", ["read-write"])[-1]
    except ValueError:
        return  # the driver says what is wrong with it
    if asked not in _WRITABLE:
        raise ValidationError(
            f"dsn: target_session_attrs={asked}; Mainspring writes: use read-write, or leave it out", field="dsn"
        )
