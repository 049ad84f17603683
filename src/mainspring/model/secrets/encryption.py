"""Encryption: AES-256-GCM, bound to the name and the version of the secret.

A ciphertext that was moved to the row of another secret, or to another version, does not decrypt.
Next: store/access/secrets.py
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from mainspring.errors import SecretUnavailable
from mainspring.model.secrets.keys import Keys

NONCE_BYTES = 12


class Sealed(NamedTuple):
    """A value as the database holds it."""

    key_id: str
    nonce: bytes
    ciphertext: bytes


def seal(keys: Keys, name: str, version: int, value: str) -> Sealed:
    """The value under the first key. SecretUnavailable without any."""
    id, key = keys.encrypting()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # here: a process without secrets does not load it

    nonce = secrets.token_bytes(NONCE_BYTES)
    return Sealed(id, nonce, AESGCM(key).encrypt(nonce, value.encode(), _bound_to(name, version)))


def unseal(keys: Keys, name: str, version: int, sealed: Sealed) -> str:
    """The value. SecretUnavailable without its key, or if the row was tampered with."""
    key = keys.get(sealed.key_id)
    if key is None:
        raise SecretUnavailable(
            f"secret {name!r} is encrypted with the key {sealed.key_id!r}, which this process does not have;"
            " add that key to secret_keys or secret_keys_file"
        )
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed.nonce, sealed.ciphertext, _bound_to(name, version)).decode()
    except (InvalidTag, ValueError):  # also a nonce of another length, which SQL wrote
        raise SecretUnavailable(
            f"secret {name!r} does not decrypt with the key {sealed.key_id!r}: that is another key, or the row was"
            f" changed from outside; restore the key, or set the secret again: `mainspring secret set {name}`"
        ) from None


def _bound_to(name: str, version: int) -> bytes:
    return f"mainspring secret\0{version}\0{name}".encode()
