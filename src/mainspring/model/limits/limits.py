"""Gates: what bounds how many tasks of a job run at once, and how often they start.

The limits are kept by the database (store/limits/release.py); here is what they are, in the definition of a job and in
words.
Next: model/limits/define_limits.py
"""

from __future__ import annotations

import re

from msgspec import Struct

_UNITS = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
_NAMESPACE = "\x1f"  # between a namespace and a key; no key that people give holds it
PLACEHOLDER = re.compile(r"\{(\w+)\}", re.ASCII)


class Rate(Struct, frozen=True, omit_defaults=True):
    """`count` starts in `per` seconds, evenly; `burst` of them may come at once after a pause."""

    count: int
    per: float
    burst: int = 1
    per_key: bool = False  # each concurrency key has a rate of its own

    @property
    def in_words(self) -> str:
        return f"{self.count}/{_UNITS.get(self.per, f'{self.per:g} s')}" + (" for each key" if self.per_key else "")


class Gate(Struct, frozen=True, omit_defaults=True):
    """The limits of a job. None: no limit."""

    max_running: int | None = None
    key: str | None = None  # a template: {name} stands for an argument
    defaults: dict[str, str] = {}  # of arguments that the template names and a call may leave out
    key_limit: int | None = 1  # tasks with one key that run at once
    rate: Rate | None = None

    @property
    def arguments(self) -> list[str]:
        """Those that the template names."""
        return [] if self.key is None else PLACEHOLDER.findall(self.key)


def in_words(gate: Gate | None) -> dict[str, str]:
    """The limits that there are, by their option."""
    told: dict[str, str] = {}
    if gate is None:
        return told
    if gate.max_running is not None:
        told["max_running"] = str(gate.max_running)
    if gate.key is not None:
        told["concurrency_key"] = gate.key
        told["concurrency_limit"] = "none" if gate.key_limit is None else str(gate.key_limit)
    if gate.rate is not None:
        told["rate"] = f"{gate.rate.in_words}, burst {gate.rate.burst}"
    return told


def plain_key(stored: str) -> str:
    """The key as people gave it, without its namespace."""
    return stored.rpartition(_NAMESPACE)[2]
