"""Options of a task: what few tasks have, kept as one JSON object in `task.options`.

The names are part of the schema and never change; mainspring.check_options() (0001_schema.sql, 7) has the same bounds.
Next: store/submission/enqueue.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from mainspring.errors import ValidationError, shown
from mainspring.model.flows.batches import CallbackOf
from mainspring.model.words.names import check_name

OnParentFailure = Literal["skip", "run", "fail"]

MAX_TAGS = 10
MAX_TAG = 50  # characters
MAX_RETRIES = 1000


class TaskOptions(Struct, frozen=True, omit_defaults=True):
    """Durations are seconds. None: as its job says."""

    tags: tuple[str, ...] = ()
    timeout: float | None = None
    retries: int | None = None
    stalls_after: float | None = None
    on_parent_failure: OnParentFailure | None = None
    parents: tuple[int, ...] = ()  # the tasks that it was submitted to run after
    rule: str | None = None  # the priority rule that decided its priority
    submitter: str | None = None  # who submitted it, where that is more than a role of PostgreSQL
    skip: str | None = None  # its agent was asked to give it back, so that it is skipped: by whom and why
    callback: CallbackOf | None = None  # it is the callback of this batch
    batch: int | None = None  # that it is a member of; only for agents, the task has it in a column


NO_OPTIONS = TaskOptions()


def read_options(stored: str | None) -> TaskOptions:
    """From JSON; anybody with SQL can write others, which count as none."""
    if stored is None:
        return NO_OPTIONS
    try:
        return msgspec.json.decode(stored, type=TaskOptions)
    except (msgspec.MsgspecError, ValueError):
        return NO_OPTIONS


def check_tags(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValidationError(f"tags: {shown(given)} is not a list of words such as ['nightly']", field="tags")
    if len(given) > MAX_TAGS:
        raise ValidationError(f"tags: {len(given)}; a task has at most {MAX_TAGS}", field="tags")
    for tag in given:
        if len(check_name(tag, field="tags")) > MAX_TAG:
            raise ValidationError(f"tags: {shown(tag)} is too long; at most {MAX_TAG} characters", field="tags")
    return tuple(dict.fromkeys(given))


def check_task_retries(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MAX_RETRIES:
        raise ValidationError(f"retries: {shown(given)}; give 0 to {MAX_RETRIES}", field="retries")
    return given


def check_on_parent_failure(given: Any) -> OnParentFailure:
    if given not in get_args(OnParentFailure):
        wanted = ", ".join(get_args(OnParentFailure))
        raise ValidationError(f"on_parent_failure: {shown(given)}; use {wanted}", field="on_parent_failure")
    found: OnParentFailure = given
    return found
