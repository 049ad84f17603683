"""Keys of secrets, as a process has them, for tests."""

from __future__ import annotations

from mainspring.model.secrets.keys import NO_KEYS, Keys, new_key, parse_keys

TEXT = new_key("1")  # as MAINSPRING_SECRET_KEYS has it


class Ring:
    """A key source with new keys of these ids; without any, with that of `TEXT`."""

    def __init__(self, *ids: str) -> None:
        self.keys = parse_keys(",".join(map(new_key, ids)) if ids else TEXT, field="keys")

    @classmethod
    def empty(cls) -> Ring:
        made = cls()
        made.keys = NO_KEYS
        return made

    def read(self) -> Keys:
        return self.keys

    def read_or_make(self) -> Keys:
        return self.keys
