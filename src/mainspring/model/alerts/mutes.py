"""Mutes: which alerts are not sent for now, because of a mute or because of the day.

Next: server/alerting/notifier.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from mainspring.model.schedules.excluded_days import ExcludedDays
from mainspring.model.words.zones import zone_or_utc


class Mute(NamedTuple):
    rules: Sequence[str]  # patterns; empty: all
    subjects: Sequence[str]

    def covers(self, rule: str, subject: str) -> bool:
        return _matches(self.rules, rule) and _matches(self.subjects, subject)


def is_muted(mutes: Iterable[Mute], rule: str, subject: str) -> bool:
    return any(mute.covers(rule, subject) for mute in mutes)


def is_quiet(days: Sequence[str], timezone: str, now: datetime) -> bool:
    """Whether today is one of these days, where that zone is."""
    return now.astimezone(zone_or_utc(timezone)).date() in ExcludedDays(tuple(days))


def _matches(patterns: Sequence[str], name: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
