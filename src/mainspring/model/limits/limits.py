"""Limits: how many tasks of a job may run at once, and how often they may start.

The database enforces them: store/limits/release.py.
Next: model/limits/define_limits.py
"""

from __future__ import annotations

import re

from msgspec import Struct

_UNITS = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
_NAMESPACE = "\x1f"  # between a namespace and a key; no key that people give holds it
PLACEHOLDER = re.compile(r"\{(\w+)\}", re.ASCII)


class Rate(Struct, frozen=True, omit_defaults=True):
    """`count` starts in `per` seconds, evenly spaced; after a pause `burst` of them may come at once."""

    count: int
    per: float
    burst: int = 1
    per_key: bool = False  # the rate is for each concurrency key

    @property
    def in_words(self) -> str:
        return f"{self.count}/{_UNITS.get(self.per, f'{self.per:g} s')}" + (" for each key" if self.per_key else "")


class Limits(Struct, frozen=True, omit_defaults=True):
    """The limits of a job across the cluster. None: no limit."""

    max_running: int | None = None
    key: str | None = None  # a template: {name} stands for an argument
    defaults: dict[str, str] = {}  # of optional arguments in the template
    key_limit: int | None = 1  # tasks with one key at once
    rate: Rate | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments in the template."""
        return [] if self.key is None else PLACEHOLDER.findall(self.key)


def in_words(limits: Limits | None) -> dict[str, str]:
    """The limits that are set, by their option."""
    words: dict[str, str] = {}
    if limits is None:
        return words
    if limits.max_running is not None:
        words["max_running"] = str(limits.max_running)
    if limits.key is not None:
        words["concurrency_key"] = limits.key
        words["concurrency_limit"] = "none" if limits.key_limit is None else str(limits.key_limit)
    if limits.rate is not None:
        words["rate"] = f"{limits.rate.in_words}, burst {limits.rate.burst}"
    return words


def plain_key(stored: str) -> str:
    """The key as it was given, without its namespace."""
    return stored.rpartition(_NAMESPACE)[2]
