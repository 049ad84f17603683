"""SLO: the objective of a schedule for the lateness of its starts, and how fast its error budget burns.

`{"lateness": "2s", "target": 0.999, "window": "30d"}`: of the plan times in 30 days, 99.9 % start within 2 seconds.
An event is a plan time of one scope. It is good if the first attempt started in time, bad if it started later or was
missed; a plan time that a policy or a person has skipped is no event.
Next: model/watch/punctuality.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Required, TypedDict

from msgspec import Struct

from mainspring.errors import ValidationError, shown
from mainspring.model.words.durations import Duration, seconds

TARGET = 0.999
WINDOW = 30 * 86400.0
MIN_LATENESS = 0.001
MAX_LATENESS = 86400.0
MIN_WINDOW = 3600.0
MAX_WINDOW = 90 * 86400.0  # for so long the counts of hours are kept


class Slo(Struct, frozen=True, omit_defaults=True):
    """Durations are seconds."""

    lateness: float
    target: float = TARGET
    window: float = WINDOW


class SloSpec(TypedDict, total=False):
    """The objective as people write it."""

    lateness: Required[Duration]
    target: float
    window: Duration


class BurnRule(NamedTuple):
    """Both windows burn at least at `threshold` times the rate that uses up the budget exactly by the window's end."""

    threshold: float
    long: float  # seconds
    short: float  # seconds: it ends the alert soon after the burning has ended


BURN_RULES = (BurnRule(14.4, 3600.0, 300.0), BurnRule(6.0, 6 * 3600.0, 1800.0))


def read_slo(given: Any) -> Slo | None:
    """The objective, as people write it; ValidationError names the member that is wrong."""
    if given is None or isinstance(given, Slo):
        return given
    if not isinstance(given, Mapping):
        example = '{"lateness": "2s", "target": 0.999, "window": "30d"}'
        raise ValidationError(f"slo: {shown(given)}; write {example}", field="slo")
    known = Slo.__struct_fields__
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValidationError(f"slo.{unknown[0]}: no such member; there are {', '.join(known)}", field="slo")
    if "lateness" not in given:
        raise ValidationError('slo.lateness: missing; say how late a start may be, such as "2s"', field="slo")
    lateness = _seconds(given["lateness"], "lateness", MIN_LATENESS, MAX_LATENESS)
    window = _seconds(given.get("window", WINDOW), "window", MIN_WINDOW, MAX_WINDOW)
    return Slo(lateness, _target(given.get("target", TARGET)), window)


def from_text(text: str) -> dict[str, Any]:
    """The members of "lateness=2s,target=0.999,window=30d", for `read_slo` to check."""
    members: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value or name in members:
            raise ValidationError(
                f"slo: {shown(text)}; write lateness=2s,target=0.999,window=30d, or lateness=2s", field="slo"
            )
        members[name] = value
    if "target" in members:
        try:
            members["target"] = float(members["target"])
        except ValueError:
            raise ValidationError(f"slo.target: {shown(members['target'])}; write 0.999", field="slo") from None
    return members


def _seconds(value: Any, name: str, least: float, most: float) -> float:
    try:
        found = seconds(value, field="slo", at_least=least)
    except ValidationError as error:
        raise ValidationError(f"slo.{name}{error.message.removeprefix('slo')}", field="slo") from None
    if found > most:
        raise ValidationError(f"slo.{name}: {found:g} s; give at most {_most(most)}", field="slo")
    return found


def _most(length: float) -> str:
    return f"{length / 86400:g} d"


def _target(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.5 <= value <= 0.999999:
        raise ValidationError(
            f"slo.target: {shown(value)}; give a share from 0.5 to 0.999999, such as 0.999: with 1 a single late start"
            " would use up a budget that does not exist",
            field="slo",
        )
    return float(value)


class Count(Struct, frozen=True):
    """Events of a span of time."""

    good: int = 0
    bad: int = 0
    missed: int = 0  # of the bad ones, those that did not start at all

    @property
    def events(self) -> int:
        return self.good + self.bad

    def burn(self, target: float) -> float:
        """How many times faster than allowed the error budget is used up; 0 without events."""
        return self.bad / self.events / (1 - target) if self.events else 0.0


class BurnRate(Struct, frozen=True):
    """The burn rate in a pair of windows."""

    threshold: float
    long: float  # seconds
    short: float
    long_rate: float
    short_rate: float
    is_burning: bool  # both are at the threshold or above


def burn_rates(
    by_window: Mapping[float, Count], target: float, rules: Sequence[BurnRule] = BURN_RULES
) -> list[BurnRate]:
    """By the counts of each window of the rules."""
    rates = []
    for rule in rules:
        long, short = by_window[rule.long].burn(target), by_window[rule.short].burn(target)
        rates.append(BurnRate(*rule, round(long, 3), round(short, 3), min(long, short) >= rule.threshold))
    return rates


def budget_left(count: Count, target: float) -> float | None:
    """The share of the error budget that is left; negative if it is overdrawn; None without events."""
    if not count.events:
        return None
    return 1.0 - count.bad / (count.events * (1 - target))
