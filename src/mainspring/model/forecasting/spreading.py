"""Spreading: what a schedule would be if it did not start in one second with many others.

`minute` and `second` put H where its expression has fixed numbers; the hour stays. `jitter` leaves the expression.
Next: model/schedules/expressions/cron_grammar.py
"""

from __future__ import annotations

from typing import Literal

from mainspring.model.schedules.expressions.cron_grammar import MACROS

SpreadBy = Literal["minute", "second", "jitter"]


def with_hash(expression: str, by: SpreadBy) -> str | None:
    """The cron expression with H for its minutes, or for its seconds too; None: there is nothing to spread so."""
    parts = MACROS.get(expression.strip().lower(), expression).split()
    seconds, (minutes, *others) = (parts[0], parts[1:]) if len(parts) == 6 else (None, parts)
    spread = _spread(minutes)
    if by == "minute":
        return None if spread is None else " ".join([*([] if seconds is None else [seconds]), spread, *others])
    of_seconds = _spread(seconds or "0")
    if of_seconds is None and spread is None:
        return None
    return " ".join([of_seconds or seconds or "0", spread or minutes, *others])


def _spread(field: str) -> str | None:
    """`0` → `H`, `*/5` → `H/5`, `0,20,40` → `H/20`; None for what is spread already, or cannot be."""
    if field.isdigit():
        return "H"
    if field.startswith("*/") and field[2:].isdigit() and 60 % int(field[2:]) == 0:
        return f"H/{field[2:]}"
    values = [int(term) for term in field.split(",")] if field.replace(",", "").isdigit() and ",," not in field else []
    steps = (
        {after - before for before, after in zip(values, [*values[1:], values[0] + 60], strict=True)} if values else ()
    )
    return f"H/{next(iter(steps))}" if len(steps) == 1 else None
