"""Keys and encryption: a value comes back under its own key, name and version only."""

from __future__ import annotations

import base64

import pytest

from mainspring.errors import SecretUnavailable, ValidationError
from mainspring.model.secrets.encryption import Sealed, seal, unseal
from mainspring.model.secrets.keys import NO_KEYS, Keys, new_key, parse_keys


def ring(*ids: str) -> Keys:
    return parse_keys("\n".join(new_key(id) for id in ids), field="keys")


def test_a_value_comes_back_and_is_not_in_the_ciphertext() -> None:
    keys = ring("new", "old")
    sealed = seal(keys, "db", 3, "hunter2")
    assert sealed.key_id == "new"
    assert b"hunter2" not in sealed.ciphertext
    assert unseal(keys, "db", 3, sealed) == "hunter2"
    assert seal(keys, "db", 3, "hunter2").nonce != sealed.nonce


@pytest.mark.parametrize(("name", "version"), [("other", 3), ("db", 2)])
def test_a_ciphertext_of_another_secret_or_version_is_refused(name: str, version: int) -> None:
    keys = ring("1")
    with pytest.raises(SecretUnavailable, match="does not decrypt"):
        unseal(keys, name, version, seal(keys, "db", 3, "hunter2"))


def test_a_ciphertext_that_was_tampered_with_is_refused() -> None:
    keys = ring("1")
    key_id, nonce, ciphertext = seal(keys, "db", 1, "hunter2")
    for changed in (
        Sealed(key_id, nonce, bytes([ciphertext[0] ^ 1]) + ciphertext[1:]),
        Sealed(key_id, nonce[:-1] + bytes([nonce[-1] ^ 1]), ciphertext),
        Sealed(key_id, nonce, b""),
        Sealed(key_id, b"", ciphertext),
    ):
        with pytest.raises(SecretUnavailable, match="does not decrypt"):
            unseal(keys, "db", 1, changed)


def test_without_its_key_a_value_cannot_be_had_and_the_error_says_which() -> None:
    sealed = seal(ring("march"), "db", 1, "hunter2")
    with pytest.raises(SecretUnavailable, match="'march', which this process does not have"):
        unseal(ring("april"), "db", 1, sealed)
    with pytest.raises(SecretUnavailable, match="does not decrypt"):
        unseal(ring("march"), "db", 1, sealed)  # another key of the same id
    with pytest.raises(SecretUnavailable, match="mainspring secret key ID"):
        seal(NO_KEYS, "db", 1, "hunter2")


def test_keys_are_read_from_lines_and_commas_in_their_order() -> None:
    one, two, three = (new_key(id) for id in ("one", "two", "three"))
    keys = parse_keys(f"# comment\n{one}, {two}\n\n{three}\n", field="keys")
    assert keys.ids == ["one", "two", "three"]
    assert keys.first is not None
    assert base64.b64encode(keys.first[1]).decode() in one
    assert base64.b64encode(keys.first[1]).decode() not in repr(keys)


@pytest.mark.parametrize("text", ["abcdef", "id:short", "id:!!!!", "a b:AAAA", ":AAAA", f"1:{'A' * 43}=,1:AAAA"])
def test_an_error_about_keys_does_not_quote_them(text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        parse_keys(text, field="secret_keys")
    assert text not in raised.value.message
    assert "AAAA" not in raised.value.message
