"""Masking: definitions and JSON with the values hidden that look like secrets.

Hidden are the values of headers, variables and arguments whose names look like a secret's, credentials in URLs, and
values in texts such as `PGPASSWORD=…`, and what looks like a credential in the addresses that are called with nothing
else to show for it. A reference `{"$secret": NAME}` stays: it names a secret and does not hold it.
A secret under a name that says nothing is not recognised; a reference is safe in any case.
Next: store/access/audit.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.secrets.references import SecretReference, is_reference

MASK = "***"

T = TypeVar("T")

_NAMES = r"authori[sz]|authentic|(?<![a-z])auth(?![a-z])|cookie|token|secret|passw|passphrase|pwd|signature|credential"
_SECRET = re.compile(rf"{_NAMES}|key|pass$", re.IGNORECASE)  # names of headers and variables
_SECRET_ARGUMENT = re.compile(rf"{_NAMES}|api_?key|private_?key", re.IGNORECASE)  # `key` alone names no secret there

_MEMBERS = {"headers": _SECRET, "env": _SECRET, "environment": _SECRET, "args": _SECRET_ARGUMENT}

# An address that is itself a credential: knowing it is enough to call it.
_ADDRESSES = {"ping_url", "heartbeat_url"}
# A part of a path that is more likely a credential than a word.
_TOKEN = re.compile(r"(?=.*[0-9])[A-Za-z0-9_-]{16,}|[A-Za-z0-9_-]{32,}")

_PLAIN = (bool, int, float)  # they hold no secret

_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
_BARE_USER = re.compile(r"(https?://)[^\s/:@]+@", re.IGNORECASE)  # a token without a name
_ASSIGNED = re.compile(rf"((?:[\w-]*(?:{_NAMES}|api[_-]?key|access[_-]?key)[\w-]*)=)[^\s&#'\"]+", re.IGNORECASE)


def masked(value: T) -> T:
    """The same with secrets hidden: a struct or what JSON can hold, in the shape that it has."""
    found: T = _masked(value, None)
    return found


def _masked(value: Any, names: re.Pattern[str] | None) -> Any:
    """`names`: of the members of this mapping whose values are hidden.

    What has nothing to hide stays the same object: a struct leaves out of its JSON only its very own defaults.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        members = {name: _member(name, one, names) for name, one in value.items()}
        return value if _same(members.values(), value.values()) else members
    if type(value) in (list, tuple):
        items = [_masked(one, names) for one in value]
        return value if _same(items, value) else type(value)(items)
    if isinstance(value, msgspec.Struct) and not isinstance(value, SecretReference):
        hidden = {}
        for name in value.__struct_fields__:
            one = getattr(value, name)
            if one and type(one) not in _PLAIN and (shown := _member(name, one, None)) is not one:
                hidden[name] = shown
        return msgspec.structs.replace(value, **hidden) if hidden else value
    return value


def _same(ones: Iterable[object], others: Iterable[object]) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


def _member(name: Any, value: Any, names: re.Pattern[str] | None) -> Any:
    if names is not None and isinstance(name, str) and names.search(name) and value not in (None, "", True, False):
        return value if is_reference(value) else MASK
    if isinstance(value, str) and name in _ADDRESSES:
        return masked_url(value)
    return _masked(value, _MEMBERS.get(name) if isinstance(name, str) and isinstance(value, dict) else names)


def _text(text: str) -> str:
    found = _ASSIGNED.sub(rf"\g<1>{MASK}", text) if "=" in text else text
    if "://" in text:
        found = _PASSWORD.sub(rf"\g<1>:{MASK}@", found)
        found = _BARE_USER.sub(rf"\g<1>{MASK}@", found)
    return text if found == text else found


def masked_url(url: str) -> str:
    """Without credentials: the user, values of the query, what looks like a token in the path."""
    try:
        parts = urlsplit(url)
    except ValueError:  # written by SQL
        return MASK
    user, at, host = parts.netloc.rpartition("@")
    path = "/".join(MASK if _TOKEN.fullmatch(part) else part for part in parts.path.split("/"))
    query = re.sub(r"=[^&]*", f"={MASK}", parts.query) if "=" in parts.query else MASK if parts.query else ""
    found = f"{parts.scheme}://{MASK + at if user else ''}{host}{path}{'?' if query else ''}{query}"
    return url if found == url else found


def restored(given: Any, present: Any) -> Any:
    """What was read with secrets masked, and is written back: each hidden value is what it is at present."""
    return _restored(given, present, masked(present))


def _restored(given: Any, present: Any, shown: Any) -> Any:
    if given == shown:
        return present
    if isinstance(given, dict) and isinstance(present, dict):
        return {
            name: _restored(one, present[name], shown[name]) if name in present else one for name, one in given.items()
        }
    if isinstance(given, list) and isinstance(present, list) and len(given) == len(present):
        return [_restored(*each) for each in zip(given, present, shown, strict=True)]
    return given


def check_unmasked(value: object) -> None:
    """Refuse a definition that was read with its secrets masked, and is written back."""
    if (path := next(_masks(value), None)) is not None:
        raise ValidationError(f"{path}: holds {MASK}, which hides a value; give the value itself", field=path)


def _masks(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, str):
        hides = value == MASK or f":{MASK}@" in value or f"://{MASK}@" in value or f"={MASK}" in value
        if hides or (path.rpartition(".")[2] in _ADDRESSES and MASK in value):
            yield path
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _masks(one, f"{path}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _masks(one, f"{path}[{number}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _masks(getattr(value, name), f"{path}.{name}".lstrip("."))
