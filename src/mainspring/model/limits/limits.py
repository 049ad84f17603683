"""Limits: how many tasks of a job may run at once, and how often they may start; from the options of a job.

The database enforces them: store/limits/release.py.
Next: model/tasks/define_job.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from mainspring.errors import ValidationError, shown
from mainspring.model.words.names import check_name

MAX_RUNNING = 10_000
MAX_OF_A_KEY = 1_000
MAX_BURST = 10_000
MAX_RATE = 10_000.0  # per second: a start costs the database some microseconds
BATCH = 0.1  # seconds whose starts form the default burst

RatePer = Literal["job", "key"]
OPTIONS = ("max_running", "concurrency_key", "concurrency_limit", "rate", "burst", "rate_per")

_RATE = re.compile(r"(\d{1,9})\s*/\s*(s|second|sec|m|min|minute|h|hour|d|day)", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
UNITS = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
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
        return f"{self.count}/{UNITS.get(self.per, f'{self.per:g} s')}" + (" for each key" if self.per_key else "")


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


# ── from the options of a job ───────────────────────────────────────────────────────────────────


def define_limits(options: Mapping[str, Any], *, broadcast: bool) -> Limits | None:
    """The limits among the options of a job, if there are any."""
    given = [name for name in OPTIONS if options.get(name) is not None]
    if broadcast and given:
        raise ValidationError(
            f"{given[0]}: a broadcast runs on every agent that matches, all at once; leave the limit out",
            field=given[0],
        )
    key = options.get("concurrency_key")
    if key is None and "concurrency_limit" in options:
        raise ValidationError(
            "concurrency_limit: counts tasks of one key; give concurrency_key too, or max_running for the whole job",
            field="concurrency_limit",
        )
    limit, rate = options.get("concurrency_limit", 1), _rate(options, has_key=key is not None)
    if limit is None and (rate is None or not rate.per_key):
        raise ValidationError(
            "concurrency_limit: without a limit the key bounds nothing; give a number, or a rate with rate_per='key'",
            field="concurrency_limit",
        )
    running = options.get("max_running")
    limits = Limits(
        max_running=None if running is None else _count(running, "max_running", MAX_RUNNING),
        key=None if key is None else _template(key),
        key_limit=None if limit is None else _count(limit, "concurrency_limit", MAX_OF_A_KEY),
        rate=rate,
    )
    return None if limits == Limits() else limits


def check_concurrency_key(key: object) -> str:
    """The key of one task."""
    return check_name(key, field="concurrency_key")


def _count(given: object, field: str, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise ValidationError(f"{field}: {shown(given)}; give a number from 1 to {most:,}", field=field)
    return given


def _template(given: object) -> str:
    template = check_concurrency_key(given)
    if "{" in PLACEHOLDER.sub("", template) or "}" in PLACEHOLDER.sub("", template):
        raise ValidationError(
            f"concurrency_key: {shown(template)}; a brace belongs around the name of an argument: 'shop:{{shop}}'",
            field="concurrency_key",
        )
    return template


def _rate(options: Mapping[str, Any], *, has_key: bool) -> Rate | None:
    text, burst, rate_per = options.get("rate"), options.get("burst"), options.get("rate_per", "job")
    if not isinstance(rate_per, str) or rate_per not in get_args(RatePer):
        raise ValidationError(f"rate_per: {shown(rate_per)}; use job or key", field="rate_per")
    if text is None:
        for field in ("burst", "rate_per"):
            if options.get(field) is not None:
                raise ValidationError(f"{field}: belongs to a rate; give rate too, such as '100/minute'", field=field)
        return None
    if rate_per == "key" and not has_key:
        raise ValidationError("rate_per: a rate for each key needs concurrency_key too", field="rate_per")
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    count = int(match[1]) if match else 0
    per = _SECONDS[match[2][0]] if match else 1.0
    if not 0 < count <= MAX_RATE * per:
        raise ValidationError(
            f"rate: {shown(text)}; write starts per second, minute, hour or day, such as '100/minute'; at most"
            f" {MAX_RATE:,.0f}/second",
            field="rate",
        )
    if burst is None:
        burst = min(max(1, math.floor(count / per * BATCH)), MAX_BURST)
    return Rate(count, per, _count(burst, "burst", MAX_BURST), rate_per == "key")
