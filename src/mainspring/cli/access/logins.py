"""Logins: the tokens that `mainspring login URL` keeps, by name, for `--server NAME`.

They are in `~/.config/mainspring/logins.json`, which only its owner can read: {"prod": {"url": …, "token": …}}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from mainspring.compose.private_files import read_private, write_private
from mainspring.errors import NotFound, ValidationError
from mainspring.model.tasks.define_http import check_url
from mainspring.model.words.names import check_name

with suppress(ImportError):  # there is none for Windows
    import fcntl


class Login(msgspec.Struct, frozen=True):
    url: str
    token: str


def logins_file(environment: Mapping[str, str] = os.environ) -> Path:
    config_home = Path(environment.get("XDG_CONFIG_HOME", ""))
    return (config_home if config_home.is_absolute() else Path.home() / ".config") / "mainspring" / "logins.json"


def read_logins(path: Path) -> dict[str, Login]:
    """By name. AccessDenied if others can read the file."""
    text = read_private(path)
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Login])
    except msgspec.MsgspecError:  # its message could quote a token
        raise ValidationError(f"{path} is not what `mainspring login` writes; remove it and log in again") from None


def find_login(path: Path, name: str) -> Login:
    """The login of this name. NotFound says which there are."""
    found = read_logins(path)
    if name not in found:
        if name == "localhost" or ":" in name or "." in name:
            raise NotFound(f"no login named {name!r}; for an address write http://{name} or https://{name}")
        there = ", ".join(sorted(found)) or "none"
        raise NotFound(f"no login named {name!r}; there are: {there}. `mainspring login URL --name {name}` makes it")
    return found[name]


def keep_login(path: Path, name: str, login: Login) -> None:
    """Add a login, or replace the one of this name. Two processes that do so at once both succeed."""
    with _locked(path):
        found = read_logins(path)
        write_private(path, msgspec.json.encode({**found, name: login}).decode() + "\n")


def forget_login(path: Path, name: str) -> None:
    with _locked(path):
        find_login(path, name)
        left = {known: login for known, login in read_logins(path).items() if known != name}
        write_private(path, msgspec.json.encode(left).decode() + "\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def check_server(url: str, *, without_tls: bool = False) -> str:
    """The base URL of a server, without a slash at its end."""
    base = check_url(url, field="url").rstrip("/")
    parts = urlsplit(base)
    if parts.query or parts.fragment:
        raise ValidationError("url: write http://HOST:PORT or https://HOST:PORT, nothing behind", field="url")
    if parts.scheme == "http" and not without_tls and not _is_loopback(parts.hostname or ""):
        raise ValidationError(
            f"url: {parts.hostname} is another machine, and the token would pass in plain text; use https, or give "
            "--without-tls if the network is yours",
            field="url",
        )
    return base


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_login_name(name: str | None, url: str) -> str:
    """The name of a login; without one, the host and port of its URL."""
    checked = check_name(urlsplit(url).netloc if name is None else name, field="name")
    if "://" in checked:
        raise ValidationError(f"name: {checked!r} looks like a URL; give a short name such as prod", field="name")
    return checked
