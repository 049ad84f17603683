"""Define placement: what a job asks of agents, checked: labels, amounts, and the strategy among agents that fit.

Next: model/placement/placement.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.errors import ValidationError, shown
from mainspring.model.placement.placement import RESERVED, STRATEGIES
from mainspring.model.tasks.jobs import Placement
from mainspring.model.words.names import check_name

MIN_AMOUNT = 1e-6  # less is lost in rounding errors of sums
MAX_AMOUNT = 1e12


def define_placement(options: Mapping[str, Any]) -> Placement:
    """The placement among the options of a job. None and an empty mapping mean: not given."""
    broadcast, needs = options.get("broadcast", False), check_amounts(options.get("needs", {}), field="needs")
    strategy, sticky = options.get("placement"), options.get("sticky")
    if not isinstance(broadcast, bool):
        raise ValidationError(f"broadcast: {shown(broadcast)}; give True or False", field="broadcast")
    if broadcast and needs:
        raise ValidationError(
            "needs: a broadcast runs on every agent that matches, whatever is in use there; leave out `needs`, "
            "and pick the agents by `requires`",
            field="needs",
        )
    return Placement(
        strategy=None if strategy is None else check_strategy(strategy, field="placement"),
        needs=needs,
        prefer=check_labels(options.get("prefer", {}), field="prefer"),
        sticky=None if sticky is None else check_name(sticky, field="sticky"),
        broadcast=broadcast,
    )


def check_strategy(strategy: object, *, field: str) -> str:
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ValidationError(f"{field}: {shown(strategy)}; use {', '.join(STRATEGIES)}", field=field)
    return strategy


def check_labels(given: object, *, field: str) -> dict[str, str]:
    """Labels by name, such as {"zone": "eu"}."""
    if not isinstance(given, Mapping):
        raise ValidationError(f"{field}: {shown(given)}; give labels such as {{'zone': 'eu'}}", field=field)
    for name, value in given.items():
        _check_own_name(name, field)
        check_name(value, field=field)
    return dict(given)


def check_amounts(given: object, *, field: str) -> dict[str, float]:
    """Amounts by name, such as {"gpu": 1}."""
    if not isinstance(given, Mapping):
        raise ValidationError(f"{field}: {shown(given)}; give amounts such as {{'gpu': 1}}", field=field)
    amounts = {}
    for name, amount in given.items():
        _check_own_name(name, field)
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount != amount:  # NaN
            raise ValidationError(f"{field}: {name}={shown(amount)} is not an amount; give a number", field=field)
        if not MIN_AMOUNT <= amount <= MAX_AMOUNT:
            raise ValidationError(
                f"{field}: {name}={shown(amount)}; at least {MIN_AMOUNT:g}, at most {MAX_AMOUNT:g}", field=field
            )
        amounts[name] = float(amount)
    return amounts


def parse_amounts(pairs: Mapping[str, str], *, field: str) -> dict[str, float]:
    """Amounts from text such as gpu=2."""
    amounts = {}
    for name, text in pairs.items():
        try:
            amounts[name] = float(text)
        except ValueError:
            raise ValidationError(
                f"{field}: {name}={shown(text[:100])} is not an amount; write gpu=2", field=field
            ) from None
    return check_amounts(amounts, field=field)


def _check_own_name(name: object, field: str) -> None:
    if check_name(name, field=field).startswith(RESERVED):
        raise ValidationError(f"{field}: {shown(name)}; names that begin with {RESERVED} are ours", field=field)
