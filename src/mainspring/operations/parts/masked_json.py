"""Masked JSON: what tasks and batches hold, with the values hidden whose names look like a secret's.

A result is left as it is: a program that awaits its task asks for exactly that.
Next: operations/parts/revealing.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.access.masking import MASK, mask_arguments_in_steps, may_hide_in_steps
from mainspring.operations.parts.slices import Slices, in_slices
from mainspring.operations.requests.large_json import decode_in_steps
from mainspring.operations.requests.large_values import HUGE, LargeValue, encode_in_steps
from mainspring.store.batches.batches import BatchView
from mainspring.store.views.task_views import TaskSummary, TaskView

HIDDEN = ("args", "checkpoint")  # members of a task in which secrets are hidden: progress is written to be read
TOGETHER = 0.001  # seconds of masking many things, after which others run
LARGE = 16 * 1024  # bytes from which JSON is decoded in steps

Task = TypeVar("Task", bound=TaskView | TaskSummary)
Batch = TypeVar("Batch", bound=BatchView)
Held = TypeVar("Held")


async def each_masked(mask: Callable[[Held], Awaitable[Held]], items: Iterable[Held]) -> list[Held]:
    """What `mask` makes of each of many: one is short, and all of them together are not."""
    found, slices = list[Held](), Slices(TOGETHER)
    for item in items:
        found.append(await mask(item))
        await slices.rest()
    return found


async def masked_task(task: Task) -> Task:
    """The task with its secrets hidden; its own JSON is changed, so nothing else may hold it."""
    hidden = {}
    for name in HIDDEN:
        value = getattr(task, name)
        if value and value is not msgspec.UNSET and (shown := await masked_json(value)) is not value:
            hidden[name] = shown
    return msgspec.structs.replace(task, **hidden) if hidden else task


async def masked_batch(batch: Batch) -> Batch:
    callbacks = [msgspec.structs.replace(one, args=await masked_json(one.args)) for one in batch.callbacks]
    return msgspec.structs.replace(batch, callbacks=callbacks)


async def masked_json(value: Any) -> Any:
    """JSON with its secrets hidden: text stays text, and what is decoded is changed in place."""
    if not isinstance(value, msgspec.Raw):
        return await in_slices(mask_arguments_in_steps(value))
    data = bytes(value)
    if not await in_slices(may_hide_in_steps(data)):
        return value
    if len(data) < HUGE:
        return await _masked_text(data)
    large = LargeValue()
    try:
        return await _masked_text(data, large)
    finally:
        await large.release()


async def _masked_text(data: bytes, large: LargeValue | None = None) -> Any:
    try:
        value = msgspec.json.decode(data) if len(data) < LARGE else await _decoded(data)
    except (ValidationError, msgspec.DecodeError, RecursionError):
        return MASK  # SQL has written what no request may hold; what cannot be searched is not shown
    value = await in_slices(mask_arguments_in_steps(value))
    if large is not None:
        large.value = value
    return msgspec.Raw(await in_slices(encode_in_steps(value)))


async def _decoded(data: bytes) -> Any:
    return await in_slices(decode_in_steps(data.decode(), "args"))
