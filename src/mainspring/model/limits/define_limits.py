"""Define limits: checks the options of a job that limit how many tasks run at once and how often they start.

Next: model/tasks/define_job.py
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from mainspring.errors import ValidationError
from mainspring.model.limits.limits import PLACEHOLDER, Limits, Rate
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
    limit = options.get("concurrency_limit", 1)
    if limit is None and options.get("rate_per") != "key":
        raise ValidationError(
            "concurrency_limit: without a limit the key bounds nothing; give a number, or a rate with rate_per='key'",
            field="concurrency_limit",
        )
    running = options.get("max_running")
    limits = Limits(
        max_running=None if running is None else _count(running, "max_running", MAX_RUNNING),
        key=None if key is None else _template(key),
        key_limit=None if limit is None else _count(limit, "concurrency_limit", MAX_OF_A_KEY),
        rate=_rate(options, has_key=key is not None),
    )
    return None if limits == Limits() else limits


def check_concurrency_key(key: object) -> str:
    """The key of one task."""
    return check_name(key, field="concurrency_key")


def _count(given: object, field: str, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise ValidationError(f"{field}: {given!r}; give a number from 1 to {most:,}", field=field)
    return given


def _template(given: object) -> str:
    template = check_concurrency_key(given)
    if "{" in PLACEHOLDER.sub("", template) or "}" in PLACEHOLDER.sub("", template):
        raise ValidationError(
            f"concurrency_key: {template!r}; a brace belongs around the name of an argument: 'shop:{{shop}}'",
            field="concurrency_key",
        )
    return template


def _rate(options: Mapping[str, Any], *, has_key: bool) -> Rate | None:
    text, burst, rate_per = options.get("rate"), options.get("burst"), options.get("rate_per", "job")
    if rate_per not in get_args(RatePer):
        raise ValidationError(f"rate_per: {rate_per!r}; use job or key", field="rate_per")
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
            f"rate: {text!r}; write starts per second, minute, hour or day, such as '100/minute'; at most"
            f" {MAX_RATE:,.0f}/second",
            field="rate",
        )
    if burst is None:
        burst = min(max(1, math.floor(count / per * BATCH)), MAX_BURST)
    return Rate(count, per, _count(burst, "burst", MAX_BURST), rate_per == "key")
