"""Batches: create, list, show; close, cancel, retry what failed.

An actor that reaches only some jobs has only the batches that it created: those of others may hold tasks of any job.
Next: store/batches/batches.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from mainspring.errors import BatchEnded, JobNotFound, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.flows.batches import BatchState, Callback
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.payload import KEPT_BYTES, encode
from mainspring.model.words.globs import as_like
from mainspring.model.words.names import check_name
from mainspring.model.words.numbers import MAX_INTEGER, check_id
from mainspring.operations import pages
from mainspring.operations.pages import LIMIT, Page, check_limit
from mainspring.operations.parts import revealing
from mainspring.operations.parts.masked_json import each_masked, masked_batch
from mainspring.store.access import audit
from mainspring.store.batches import batches
from mainspring.store.batches.batches import BatchView
from mainspring.store.postgres.connection import Connection
from mainspring.store.submission import drivers
from mainspring.store.submission.submissions import OpenBatch

_Before = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]  # the position in a list of batches


class NewBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    on_success: Callback | None = None  # all have succeeded
    on_complete: Callback | None = None  # all have ended
    on_failure: Callback | None = None  # the first has failed for good
    parent: int | None = None  # a batch that it is a member of


class BatchDetail(BatchView, frozen=True, kw_only=True):
    failed_ids: list[int]  # up to 100 tasks that failed, timed out or were lost


def opening(actor: Actor, batch: NewBatch) -> OpenBatch:
    """The batch for the store; ValidationError names what is wrong with it."""
    return OpenBatch(
        check_name(batch.name, field="name"),
        _callback(actor, batch.on_success, "on_success"),
        _callback(actor, batch.on_complete, "on_complete"),
        _callback(actor, batch.on_failure, "on_failure"),
        None if batch.parent is None else check_id(batch.parent, field="parent", of="a batch"),
        actor.name,
    )


def _callback(actor: Actor, callback: Callback | None, field: str) -> str | None:
    if callback is None:
        return None
    job = check_name(callback.job, field=field)
    if not actor.reaches(job):
        raise JobNotFound(f"{field}: no job named {job!r}; `mainspring job list` shows what there is", field=field)
    args = encode(callback.args, field, KEPT_BYTES)
    level = None if callback.priority is None else str(priority_level(callback.priority))
    found = {"job": job, "args": msgspec.Raw(args.encode()), **({} if level is None else {"priority": level})}
    return msgspec.json.encode(found).decode()


async def create(conn: Connection, actor: Actor, batch: NewBatch) -> BatchView:
    """A new batch, open: tasks that are submitted with its id are counted in it."""
    given = opening(actor, batch)
    if given.parent is not None:
        await check(conn, actor, given.parent)
    async with conn.transaction():
        id: int = await drivers.submit(conn, given)
        await audit.record(conn, actor, "batch.create", f"batch:{id}", {"name": given.name})
        return await masked_batch(await batches.get(conn, id))


async def listing(
    conn: Connection,
    actor: Actor,
    *,
    state: Sequence[str] = (),
    name: Sequence[str] = (),
    parent: int | None = None,
    cursor: str | None = None,
    limit: int = LIMIT,
) -> Page[BatchView]:
    """Batches, the newest first. Names take `*`."""
    check_limit(limit)
    states = [_state(label) for label in state]
    patterns = [as_like(check_name(one, field="name")) for one in name]
    within = None if parent is None else check_id(parent, field="parent", of="a batch")
    given = {"list": "batches", "state": list(state), "name": list(name), "parent": within}
    found = await batches.listing(
        conn,
        before=pages.position(cursor, given, _Before),
        states=states,
        parent=within,
        names=patterns,
        created_by=actor.name if actor.jobs else None,
        limit=limit + 1,
    )
    return pages.page(await each_masked(masked_batch, found), limit, given, lambda one: one.id)


def _state(label: object) -> BatchState:
    labels = [state.label for state in BatchState]
    if not isinstance(label, str) or label not in labels:
        raise ValidationError(f"state: {shown(label)} is not a state; give {', '.join(labels)}", field="state")
    return BatchState.from_label(label)


async def show(conn: Connection, actor: Actor, id: int, *, reveal: bool = False) -> BatchDetail:
    """A batch with its counts, its callbacks, and up to 100 of the tasks that failed.

    Secrets in the arguments of callbacks are masked, unless an admin wants to see them: that is audited.
    """
    await check(conn, actor, id)
    view = await batches.get(conn, id)
    if reveal:
        await revealing.reveal(conn, actor, "batch", f"batch:{id}")
    else:
        view = await masked_batch(view)
    return BatchDetail(**msgspec.structs.asdict(view), failed_ids=await batches.failed(conn, id))


async def check(conn: Connection, actor: Actor, id: int) -> None:
    """BatchNotFound if it is not there for the actor."""
    check_id(id, field="batch", of="a batch")
    if actor.jobs and await batches.created_by(conn, id) != actor.name:
        raise batches.not_found(id)


async def close(conn: Connection, actor: Actor, id: int) -> BatchView:
    """From now on the batch ends with its last task; at once, if none is live. No effect on one that is closed."""
    await check(conn, actor, id)
    async with conn.transaction():
        if await batches.close(conn, id):
            await audit.record(conn, actor, "batch.close", f"batch:{id}")
        return await masked_batch(await batches.get(conn, id))


async def cancel(conn: Connection, actor: Actor, id: int, *, kill: bool = False) -> BatchView:
    """Cancel all that is live in a batch, and close it. Servers do so in steps; with `kill` tasks get no grace."""
    await check(conn, actor, id)
    async with conn.transaction():
        was_live = await batches.cancel(conn, id, kill=kill)
        view = await batches.get(conn, id)
        if not was_live:
            raise BatchEnded(f"batch: {id} has ended ({view.outcome}); nothing to cancel", field="batch", id=id)
        await audit.record(conn, actor, "batch.cancel", f"batch:{id}", {"live": view.live, "kill": kill})
    return await masked_batch(view)


async def retry(conn: Connection, actor: Actor, id: int, *, callbacks_again: bool = False) -> BatchView:
    """Retry all tasks of a batch that failed, timed out or were lost, those of the batches in it too.

    Servers do so in steps. A batch that had ended ends again after them; callbacks that were called before are called
    once more only with `callbacks_again`.
    """
    await check(conn, actor, id)
    async with conn.transaction():
        view = await batches.get(conn, id)
        within = await batches.retry(conn, id, callbacks_again=callbacks_again)
        detail = {"failed": view.failed + view.timed_out + view.lost, "callbacks_again": callbacks_again}
        if within:
            await audit.record(conn, actor, "batch.retry", f"batch:{id}", detail)
        return await masked_batch(await batches.get(conn, id))
