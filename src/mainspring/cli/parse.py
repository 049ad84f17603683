"""Parse: what people type → what operations take. Every mistake is a ValidationError that names its part.

All of it happens before the command connects to a database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from os.path import exists
from typing import TYPE_CHECKING, Any, Literal

import click

from mainspring.cli.render import note
from mainspring.errors import ValidationError
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.durations import seconds
from mainspring.model.words.names import check_name, check_path_name

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from mainspring.operations.requests.new_tasks import NewTask

MAX_ID = 2**53 - 1
STATE = click.Choice([state.label for state in TaskState])


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number, between bounds if there are any."""

    name = "number"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        bounds = "" if self._least is None else f"; give {self._least} to {self._most}"
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            self.fail(f"{value[:100]!r} is not a whole number{bounds}", param, ctx)
        number = int(value)
        if self._least is not None and self._most is not None and not self._least <= number <= self._most:
            self.fail(f"{number} is out of range{bounds}", param, ctx)
        return number


def task_id(text: str) -> int:
    """The number of a task: a positive bigint."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not 1 <= int(text) <= MAX_ID:
        raise ValidationError(f"task: {text[:100]!r} is not the number of a task; give 1 to 2^53−1", field="task")
    return int(text)


def name_of(field: str) -> Callable[[str], str]:
    """The type of an argument that names a job, a schedule, …"""

    def checked(text: str) -> str:
        check = check_name if field == "scope" else check_path_name
        return check(text, field=field)

    return checked


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
    from mainspring.model.tasks.payload import decode, encode

    if text is not None and given:
        raise ValidationError("args: give --args or --arg, not both", field="args")
    if text is None:
        return encode({name: _value(value) for name, value in pairs(given, field="args").items()}, "args")
    value = decode(text, "args")
    if not isinstance(value, dict):
        raise ValidationError('args: give a JSON object of named arguments, such as {"day": "mon"}', field="args")
    return encode(value, "args")


def _value(text: str) -> Any:
    """JSON is decoded, anything else is text."""
    from mainspring.model.tasks.payload import decode

    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return decode(text, "args")


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are not JSON, so they are text


def new_task(
    job: str,
    *,
    args: str,
    delay: str | None,
    run_at: str | None,
    tz: str | None,
    priority: str | None,
    key: str | None,
    concurrency_key: str | None,
    after: Sequence[int],
    on_parent_failure: Literal["skip", "run", "fail"] | None = None,
    batch: int | None = None,
    if_exists: Literal["return", "reject"] | None = None,
    tags: Sequence[str] = (),
    expires: str | None = None,
    run_timeout: str | None = None,
    retries: int | None = None,
    stalls_after: str | None = None,
    require_agents: bool = False,
) -> NewTask:
    """A task to submit, checked."""
    from mainspring.model.tasks.payload import decode
    from mainspring.operations.requests.new_tasks import NewTask, submission

    task = NewTask(
        job=job,
        args=decode(args, "args"),
        delay=delay,
        run_at=due_at(run_at, tz),
        priority=priority,
        key=key,
        concurrency_key=concurrency_key,
        after=after,
        on_parent_failure=on_parent_failure,
        batch=batch,
        if_exists=if_exists or "return",
        tags=tags,
        expires=expires,
        timeout=run_timeout,
        retries=retries,
        stalls_after=stalls_after,
        require_agents=require_agents,
    )
    submission(task)
    return task


def due_at(run_at: str | None, tz: str | None) -> datetime | None:
    """--run-at, in --tz if it has no offset."""
    from mainspring.model.words.zones import check_zone

    zone = None if tz is None else check_zone(tz)
    return None if run_at is None else _instant(run_at, zone)


def plain_words(given: Sequence[str], zone: ZoneInfo) -> tuple[str, str]:
    """A schedule in plain words, or cron: its kind, and the expression as a schedule holds it."""
    from mainspring.model.schedules.expressions import phrases

    try:
        return phrases.parse(" ".join(given), zone=zone)
    except ValidationError as error:
        # Of an asterisk without quotes the shell makes the names of all files.
        if len(given) > 1 and any(map(exists, given)):
            advice = "; there are names of files in it: put it in quotes, so that the shell leaves the * alone"
            raise ValidationError(error.message + advice, field="expression") from None
        raise


def since(text: str | None, *, field: str) -> datetime | None:
    """An instant with an offset, or so long ago: 2026-11-15T09:00Z, 1h30m."""
    from mainspring.model.words.instants import parse_instant

    if text is None:
        return None
    try:
        ago = timedelta(seconds=seconds(text, field=field))
    except ValidationError:
        return parse_instant(text, field=field)
    return datetime.now(UTC) - ago


def _instant(text: str, zone: ZoneInfo | None) -> datetime:
    from mainspring.model.words.instants import parse_instant, parse_time

    if zone is None and parse_time(text, field="run_at").tzinfo is None:
        raise ValidationError(
            f"run_at: {text[:100]!r} has no offset; write 2026-11-15T09:00:00+01:00 or …Z, or give --tz Europe/Paris",
            field="run_at",
        )
    return parse_instant(text, field="run_at", zone=zone)


def since_when(text: str, *, field: str = "since") -> datetime:
    """An instant, with its offset, or how long ago."""
    from datetime import UTC

    from mainspring.model.words.instants import parse_time

    if "T" in text or text.count("-") == 2:
        given = parse_time(text, field=field)
        if given.tzinfo is None:
            raise ValidationError(
                f"{field}: {text[:100]!r} has no offset; write 2026-11-15T09:00:00+01:00 or …Z", field=field
            )
        return given
    return datetime.now(UTC) - timedelta(seconds=seconds(text, field=field))


def read_in(given: datetime, zone: ZoneInfo, *, field: str) -> datetime:
    """An instant. One without an offset is read in this timezone, and a note says so."""
    from mainspring.model.words.instants import in_zone

    if given.tzinfo is not None:
        return given
    instant = in_zone(given, zone, field=field)
    note(f"{field}: {given.isoformat(sep=' ')} is read in {zone}: {instant.isoformat()}")
    return instant
