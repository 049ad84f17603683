"""What people type, turned into what the store takes; every mistake is a ValidationError that names its part.

Next: cli/client.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from mainspring.errors import ValidationError
from mainspring.model.states import TaskState

if TYPE_CHECKING:
    from mainspring.store.submit import Submission

MAX_ID = 2**63 - 1
STATE = click.Choice([state.label for state in TaskState])


def task_id(text: str) -> int:
    """The number of a task, as PostgreSQL can hold it."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not 1 <= int(text) <= MAX_ID:
        raise ValidationError(f"task: {text[:100]!r} is not the number of a task; give 1 to 2^63−1", field="task")
    return int(text)


def pairs(given: Sequence[str], *, field: str) -> dict[str, str]:
    """NAME=VALUE texts as a dict; the value may hold further "=" signs."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValidationError(f"{field}: {text[:100]!r} is not NAME=VALUE", field=field)
        found[name] = value
    return found


def arguments(text: str | None, given: Sequence[str]) -> str:
    """The arguments of a task as JSON text, from one JSON object or from NAME=VALUE texts."""
    from mainspring.model.payload import decode, encode

    if text is not None and given:
        raise ValidationError("args: give --args or --arg, not both", field="args")
    if text is None:
        return encode({name: _value(value) for name, value in pairs(given, field="args").items()}, "args")
    value = decode(text, "args")
    if not isinstance(value, dict):
        raise ValidationError('args: give a JSON object of named arguments, such as {"day": "mon"}', field="args")
    return encode(value, "args")


def _value(text: str) -> Any:
    """A value that is JSON stands for itself, any other is text."""
    from mainspring.model.payload import decode

    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return decode(text, "args")


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are no JSON, so they are text


def submission(
    job: str,
    *,
    args: str,
    delay: str | None,
    run_at: str | None,
    priority: str | None,
    key: str | None,
    concurrency_key: str | None,
    after: Sequence[int],
) -> Submission:
    """One task to submit."""
    from mainspring.model.define import priority_level
    from mainspring.model.define_gate import check_concurrency_key
    from mainspring.model.instants import parse_instant
    from mainspring.model.names import check_name
    from mainspring.store.submit import Submission

    if delay is not None and run_at is not None:
        raise ValidationError("run_at, delay: give one of them, not both", field="run_at")
    return Submission(
        job=check_name(job, field="job"),
        args=args,
        priority=None if priority is None else str(priority_level(priority)),
        run_at=None if run_at is None else parse_instant(run_at, field="run_at"),
        delay=None if delay is None else timedelta(seconds=duration(delay, field="delay")),
        key=None if key is None else check_name(key, field="key"),
        after=list(after) or None,
        concurrency_key=None if concurrency_key is None else check_concurrency_key(concurrency_key),
    )


def duration(text: str, *, field: str, at_least: float = 0.0) -> float:
    """Seconds."""
    from mainspring.model.durations import seconds

    return seconds(text, field=field, at_least=at_least)
