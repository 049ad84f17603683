"""References: `{"$secret": NAME}` in place of a value, in the environment of a command or the headers of a request.

A definition holds the name only; a server sends the value with the task.
Next: model/secrets/values.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from mainspring.errors import ValidationError, shown
from mainspring.model.words.names import check_path_name, check_text

MEMBER = "$secret"
MOST_REFERENCES = 50  # in one definition: the longest values of so many fit into a frame


class SecretReference(Struct, frozen=True, forbid_unknown_fields=True, rename={"secret": MEMBER}):
    """The name of a secret, in place of its value."""

    secret: str


Value = str | SecretReference


def secret(name: str) -> SecretReference:
    """A reference to a secret, for the `env` of a command or the `headers` of a request:

    `app.command("dump", ["pg_dump", "shop"], env={"PGPASSWORD": mainspring.secret("shop-db")})`
    """
    return SecretReference(check_path_name(name, field="secret"))


def is_reference(value: object) -> bool:
    """Whether it is a reference, read or as JSON has it."""
    return isinstance(value, SecretReference) or (isinstance(value, Mapping) and value.keys() == {MEMBER})


def read_value(given: Any, *, field: str, limit: int) -> Value:
    """A text of at most `limit` characters, or a reference."""
    if isinstance(given, SecretReference):
        return SecretReference(check_path_name(given.secret, field=field))
    if not isinstance(given, Mapping):
        return check_text(given, field=field, limit=limit)
    if given.keys() != {MEMBER}:
        raise ValidationError(f'{field}: {shown(given)}; give a text, or {{"{MEMBER}": NAME}}', field=field)
    return SecretReference(check_path_name(given[MEMBER], field=field))


def names_in(values: Iterable[Value]) -> frozenset[str]:
    """The secrets that these values refer to."""
    return frozenset([value.secret for value in values if isinstance(value, SecretReference)])


def check_number(values: Mapping[str, Value], *, field: str) -> None:
    if (found := len(names_in(values.values()))) > MOST_REFERENCES:
        raise ValidationError(f"{field}: refers to {found} secrets; at most {MOST_REFERENCES}", field=field)
