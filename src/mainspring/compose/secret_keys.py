"""Secret keys: those of the settings, and for an embedded PostgreSQL a file in its data directory.

The file is made with the first secret. For a PostgreSQL of its own a server is given the keys, the same as the others.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from mainspring.compose.private_files import read_private
from mainspring.compose.stores import data_directory
from mainspring.config import Settings
from mainspring.errors import ValidationError
from mainspring.model.secrets.keys import Keys, new_key, parse_keys

NAME = "secret.keys"  # of the file in the data directory


class SecretKeys:
    """The key source of a process (model/secrets/keys.py)."""

    def __init__(self, settings: Settings) -> None:
        self._given = settings.secret_keys
        self._file = None if settings.secret_keys_file is None else Path(settings.secret_keys_file)
        self._own = data_directory(settings) / NAME if settings.dsn is None else None

    def read(self) -> Keys:
        sources = []
        if self._given is not None:
            sources.append(parse_keys(self._given, field="secret_keys"))
        if self._file is not None:
            text = read_private(self._file)
            if text is None:
                raise ValidationError(f"secret_keys_file: there is no file {self._file}", field="secret_keys_file")
            sources.append(parse_keys(text, field="secret_keys_file"))
        if self._own is not None and (text := read_private(self._own)) is not None:
            sources.append(parse_keys(text, field=NAME))
        found: dict[str, bytes] = {}
        for keys in sources:
            found |= {id: key for id, key in keys.items() if id not in found}
        return Keys(found)

    def read_or_make(self) -> Keys:
        found = self.read()
        if found.first is None and self._own is not None:
            _make(self._own)
            found = self.read()
        return found


def _make(path: Path) -> None:
    """Write a new key, unless another process has written one: what that encrypts must stay readable."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(f"{new_key(token_hex(4))}\n")  # another id than that of a key that was lost
            opened.flush()
            os.fsync(file)
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)
