"""DSN: hosts and options of a connection string. Pure.

Parsed by hand: urllib treats brackets differently from one release of Python to the next.

    postgresql://user@a:5432,[::1]:5433/shop
    postgresql:///shop?host=a,b&port=5432,5433

Next: store/postgres/connecting/connect.py
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

from mainspring.errors import ValidationError

_WRITABLE = {"any", "primary", "read-write"}  # each of them means read-write here


class Host(NamedTuple):
    name: str
    port: int | None = None  # None: the driver takes it from the environment, or its default

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


class _Parts(NamedTuple):
    scheme: str
    credentials: str  # user:password, still quoted
    hosts: str
    path: str
    query: str

    @property
    def options(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(self.query).items()}

    def __str__(self) -> str:
        credentials = f"{self.credentials}@" if self.credentials else ""
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{credentials}{self.hosts}{self.path}{query}"


def _split(dsn: str) -> _Parts:
    scheme, _, rest = dsn.strip().partition("://")
    rest = rest.partition("#")[0]
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    credentials, _, hosts = authority.rpartition("@")  # as urllib does, so that a password may hold one
    return _Parts(scheme, credentials, hosts, slash + path, query)


def hosts_of(dsn: str) -> list[Host]:
    """The hosts of a DSN in its order; none if it names none or cannot be read, which `check` or the driver reports."""
    try:
        return _hosts(_split(dsn))
    except ValueError:
        return []


def _hosts(parts: _Parts) -> list[Host]:
    options = parts.options
    ports = [int(port) for port in options.get("port", "").split(",") if port]
    listed = parts.hosts
    names = [unquote(name) for name in listed.split(",")] if listed else options.get("host", "").split(",")
    if names == [""] or len(ports) not in (0, 1, len(names)):
        return []
    defaults = ports if len(ports) == len(names) else [ports[0] if ports else None] * len(names)
    return [_host(name, port) for name, port in zip(names, defaults, strict=True)]


def _host(text: str, port: int | None) -> Host:
    if text.startswith("/"):
        return Host(text, port)
    if text.startswith("["):
        name, closed, own_port = text[1:].partition("]")
        IPv6Address(name)  # ValueError if it is none
        if not closed or (own_port and not own_port.startswith(":")):
            raise ValueError(text)
        own_port = own_port.removeprefix(":")
    else:
        name, _, own_port = text.partition(":")
        if "[" in name or "]" in own_port:
            raise ValueError(text)
    return Host(name, int(own_port) if own_port else port)


def check(dsn: str) -> None:
    """ValidationError if brackets in the DSN hold no address, or if it asks for a server that cannot be written to."""
    parts = _split(dsn)
    if not parts.scheme or not dsn.strip().startswith(f"{parts.scheme}://"):
        return  # the driver reports what is wrong
    try:
        _hosts(parts)
    except ValueError:
        raise ValidationError(
            "dsn: cannot be read; write postgresql://user:password@host:5432/database, an IPv6 address in brackets, "
            "and in a password %23 for #, %2F for /, %3F for ?",
            field="dsn",
        ) from None
    asked = parts.options.get("target_session_attrs", "read-write")
    if asked not in _WRITABLE:
        raise ValidationError(
            f"dsn: target_session_attrs={asked}; Mainspring writes: use read-write, or leave it out", field="dsn"
        )


def option_of(dsn: str, name: str) -> str | None:
    """The value of a parameter behind the question mark."""
    return _split(dsn).options.get(name)


def without_hosts(dsn: str) -> str:
    """The DSN for a driver that gets host and port as arguments, so that it parses no brackets."""
    parts = _split(dsn)
    return str(parts._replace(hosts="", credentials=quote(parts.credentials, safe="%:!$&'()*+,;=~")))


def without_password(dsn: str) -> tuple[str, str | None]:
    """The DSN for a command line, which other users can see, and the password apart from it."""
    parts = _split(dsn)
    user, _, password = parts.credentials.partition(":")
    options = [option for option in parts.query.split("&") if not option.startswith("password=")]
    found = unquote(password) or parts.options.get("password")
    return str(parts._replace(credentials=user, query="&".join(options))), found


def at_database(dsn: str, name: str) -> str:
    """The DSN of another database of the same server."""
    return str(_split(dsn)._replace(path=f"/{name}"))
