"""Keys: those that encrypt secrets, each with an id. The first encrypts, all decrypt.

    2026-11:Gm3S…=    an id, a colon, 32 random bytes in base64; several are divided by commas or lines

Next: model/secrets/encryption.py
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import ItemsView
from typing import Protocol

from mainspring.errors import SecretUnavailable, ValidationError, shown

KEY_BYTES = 32  # AES-256
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EXAMPLE = "write ID:KEY, the key being 32 random bytes in base64; `mainspring secret key ID` makes one"


class Keys:
    """By id, in the order in which they are given."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)})"

    @property
    def ids(self) -> list[str]:
        return list(self._keys)

    @property
    def first(self) -> tuple[str, bytes] | None:
        """The id and the key that encrypt; None if there is no key."""
        return next(iter(self._keys.items()), None)

    def encrypting(self) -> tuple[str, bytes]:
        """The first one. SecretUnavailable if there is none."""
        if self.first is None:
            raise SecretUnavailable(
                "there is no key to encrypt secrets with; `mainspring secret key ID` makes one: give it to every server"
                " as MAINSPRING_SECRET_KEYS, or in a file that secret_keys_file names"
            )
        return self.first

    def items(self) -> ItemsView[str, bytes]:
        return self._keys.items()

    def get(self, id: str) -> bytes | None:
        return self._keys.get(id)


NO_KEYS = Keys({})


def parse_keys(text: str, *, field: str) -> Keys:
    """Keys from text; blank lines and lines that begin with # are left out. Errors never quote what was given."""
    found: dict[str, bytes] = {}
    lines = [line.strip() for line in text.splitlines()]
    parts = [part.strip() for line in lines if not line.startswith("#") for part in line.split(",")]
    for number, part in enumerate(filter(None, parts), 1):
        id, colon, encoded = part.partition(":")
        if not colon or not _ID.fullmatch(id):
            raise ValidationError(f"{field}: entry {number} has no id; {_EXAMPLE}", field=field)
        if id in found:
            raise ValidationError(f"{field}: the id {id} is given twice", field=field)
        found[id] = _decoded(encoded, id, field)
    return Keys(found)


def _decoded(encoded: str, id: str, field: str) -> bytes:
    try:
        key = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValidationError(f"{field}: the key {id} is not 32 bytes in base64; {_EXAMPLE}", field=field)
    return key


def new_key(id: str) -> str:
    """A new random key, in the form that `parse_keys` reads."""
    if not _ID.fullmatch(id):
        raise ValidationError(f"id: {shown(id)}; use 1 to 64 letters, digits, dots, dashes and underscores", field="id")
    return f"{id}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"


class KeySource(Protocol):
    """Where a process has its keys; they are read when they are needed, so a new one counts without a restart."""

    def read(self) -> Keys:
        """The keys there are. Raises ValidationError, AccessDenied or OSError if they cannot be used."""

    def read_or_make(self) -> Keys:
        """The same; where this process keeps the keys itself, it makes the first one."""
