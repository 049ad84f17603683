"""SecretValues: the secrets of one task, on its agent, as long as the agent holds the task.

Their repr is empty, so that no log and no traceback shows them.
Next: agent/executors/program.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from mainspring.model.secrets.masker import MASK, Masker, maskable, pattern_of
from mainspring.model.secrets.references import SecretReference, Value


class SecretWithheld(Exception):
    """The server has not sent the value of a secret; the message says why, and what to do."""


class SecretValues:
    """`withheld` says of each secret that was not sent why not."""

    def __init__(self, values: Mapping[str, str], withheld: Mapping[str, str]) -> None:
        self._values = values
        self._withheld = withheld

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return "SecretValues(…)"

    def resolved(self, value: Value) -> str:
        """The value itself, or that of the secret which it refers to. Raises SecretWithheld."""
        if not isinstance(value, SecretReference):
            return value
        found = self._values.get(value.secret)
        if found is None:
            unknown = f"secret {value.secret!r} did not come with the task; update the servers"
            raise SecretWithheld(self._withheld.get(value.secret, unknown))
        return found

    def masker(self) -> Masker | None:
        """For one stream of output; None if there is nothing to hide."""
        return Masker(self._maskable) if self._maskable else None

    def masked(self, text: str) -> str:
        """The text with the values hidden."""
        if self._pattern is None:
            return text
        return self._pattern.sub(MASK, text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    @cached_property
    def _maskable(self) -> list[bytes]:
        return maskable(value.encode() for value in self._values.values())

    @cached_property
    def _pattern(self) -> re.Pattern[bytes] | None:
        return pattern_of(self._maskable)


NO_SECRETS = SecretValues({}, {})
