"""`mainspring batch list | show | create | close | cancel | retry | wait`

Next: operations/work/batches.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, task_id
from mainspring.cli.render import cell, confirm, fields, note, on_terminal, pick, print_if_json, table
from mainspring.errors import BatchFailed, ValidationError
from mainspring.model.words.durations import seconds

if TYPE_CHECKING:
    from mainspring.model.flows.batches import Callback
    from mainspring.store.batches.batches import BatchView

STATES = ("open", "closed", "ended")


@click.group(cls=Group, epilog=examples("mainspring batch create import --on-success publish"))
def batch() -> None:
    """Tasks that are counted together, with callbacks when they end."""


@batch.operation(
    "create",
    "mainspring batch create 'import 2026-11' --on-success publish",
    """mainspring batch create nightly --on-success publish --success-args '{"month": "2026-11"}' --on-failure alert""",
)
@click.argument("name")
@click.option("--on-success", metavar="JOB", help="Enqueued once all have succeeded.")
@click.option("--success-args", metavar="JSON", help="Its arguments.")
@click.option("--on-complete", metavar="JOB", help="Enqueued once all have ended.")
@click.option("--complete-args", metavar="JSON", help="Its arguments.")
@click.option("--on-failure", metavar="JOB", help="Enqueued once the first has failed for good.")
@click.option("--failure-args", metavar="JSON", help="Its arguments.")
@click.option("--parent", type=task_id, metavar="ID", help="The batch that it is a member of.")
async def create(client: Client, /, name: str, parent: int | None, **callbacks: str | None) -> None:
    """Open a batch; prints its number, for `task submit --batch`. Close it once all tasks are submitted."""
    from mainspring.operations.work.batches import NewBatch

    given = {f"on_{event}": _callback(event, callbacks) for event in ("success", "complete", "failure")}
    view = await client.call(operations.batches.create, NewBatch(name=name, parent=parent, **given))
    if not print_if_json(view):
        click.echo(view.id)
        if on_terminal():
            note(f"submit tasks with --batch {view.id}, then close it with `mainspring batch close {view.id}`")


def _callback(event: str, given: dict[str, str | None]) -> Callback | None:
    from mainspring.model.flows.batches import Callback
    from mainspring.model.tasks.payload import decode

    job, args = given[f"on_{event}"], given[f"{event}_args"]
    if job is None:
        if args is not None:
            raise ValidationError(f"{event}_args: give --on-{event} as well", field=f"{event}_args")
        return None
    found = {} if args is None else decode(args, f"{event}_args")
    if not isinstance(found, dict):
        raise ValidationError(f"{event}_args: give a JSON object of named arguments", field=f"{event}_args")
    return Callback(job, found)


@batch.operation("list", "mainspring batch list --state open", "mainspring batch list --name 'import*' --json")
@click.option("--state", type=click.Choice(STATES), multiple=True, help="In this state; repeatable.")
@click.option("--name", multiple=True, metavar="NAME", help="With this name, which may hold `*`.")
@click.option("--parent", type=task_id, metavar="ID", help="Batches in this one.")
@click.option("--limit", type=Whole(1, 500), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--cursor", metavar="TEXT", help="Where the page before ended.")
async def list_batches(client: Client, /, **given: Any) -> None:
    """Show batches, the newest first."""
    page = await client.call(operations.batches.listing, **given)
    if print_if_json(page.items):
        return
    table(
        ["ID", "NAME", "STATE", "DONE", "TOTAL", "LIVE", "SUCCEEDED", "FAILED", "OTHER", "LEFT", "CREATED"],
        [_row(view) for view in page.items],
        empty="no such batches",
        room=Room(cut=("NAME",), spare=("OTHER", "LEFT"), drop=("CREATED", "SUCCEEDED")),
    )
    if page.next is not None:
        note(f"there are more: --cursor {page.next}")


def _row(view: BatchView) -> list[Any]:
    failed = view.failed + view.timed_out + view.lost
    return [
        *(view.id, view.name, _state(view), f"{view.progress:.0%}", view.total, view.live, view.succeeded, failed),
        *(view.cancelled + view.skipped, _left(view), view.created_at),
    ]


def _state(view: BatchView) -> str:
    if view.outcome is not None:
        return view.outcome
    return (
        f"{view.state}, cancelling" if view.cancelled_at else f"{view.state}, retrying" if view.retrying else view.state
    )


def _left(view: BatchView) -> str | None:
    return None if view.time_left is None else f"{view.time_left:.0f} s"


@batch.operation("show", "mainspring batch show 17", "mainspring batch show 17 --json | jq .failed_ids")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--reveal", is_flag=True, help="Show secrets, in place of ***; that is audited.")
async def show(client: Client, id: int, reveal: bool) -> None:
    """Show one batch: its counts, how fast it goes, its callbacks, and up to 100 of the tasks that failed."""
    view = await client.call(operations.batches.show, id, reveal=reveal)
    if print_if_json(view):
        return
    fields(
        {
            **pick(view, "id", "name"),
            "state": _state(view),
            "in batch": view.parent,
            "done": f"{view.progress:.1%} of {view.total}",
            **{name.replace("_", " "): getattr(view, name) or None for name in _COUNTED},
            "rate": None if view.rate is None else f"{view.rate:g} a second",
            "time left": _left(view),
            "created by": view.created_by,
            "created": view.created_at,
            "closed": view.closed_at,
            "cancelled at": view.cancelled_at,
            "ended": view.ended_at,
            "failed tasks": ", ".join(map(str, view.failed_ids)) or None,
        }
    )
    if view.callbacks:
        click.echo()
        table(
            ["EVENT", "JOB", "ARGS", "CALLED", "TASK", "ERROR"],
            [[c.event, c.job, cell(c.args), c.at, c.task, c.error] for c in view.callbacks],
            room=Room(cut=("JOB", "ARGS", "ERROR"), drop=("ERROR", "ARGS")),
        )


_COUNTED = ("live", "succeeded", "failed", "timed_out", "cancelled", "skipped", "lost")


@batch.operation("close", "mainspring batch close 17")
@click.argument("id", type=task_id, metavar="ID")
async def close(client: Client, id: int) -> None:
    """Let a batch end with its last task; at once, if none is live. No effect on one that is closed."""
    view = await client.call(operations.batches.close, id)
    confirm(view, f"batch {id} is {_state(view)}")


@batch.operation("cancel", "mainspring batch cancel 17", "mainspring batch cancel 17 --kill")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--kill", is_flag=True, help="Tasks that run get no grace.")
async def cancel(client: Client, id: int, kill: bool) -> None:
    """Cancel all that is live in a batch, and close it."""
    view = await client.call(operations.batches.cancel, id, kill=kill)
    confirm(view, f"batch {id}: {view.live} are being cancelled")


@batch.operation("retry", "mainspring batch retry 17", "mainspring batch retry 17 --callbacks-again")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--callbacks-again", is_flag=True, help="Call again what was called before.")
async def retry(client: Client, id: int, callbacks_again: bool) -> None:
    """Run all tasks of a batch again that failed, timed out or were lost."""
    view = await client.call(operations.batches.retry, id, callbacks_again=callbacks_again)
    failed = view.failed + view.timed_out + view.lost
    confirm(view, f"batch {id}: {failed} are being retried" if view.retrying else f"batch {id}: nothing has failed")


@batch.operation("wait", "mainspring batch wait 17 --timeout 10m && echo done")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--timeout", metavar="DURATION", help="For at most this long; then the exit code is 124.")
async def wait(client: Client, id: int, timeout: str | None) -> None:
    """Wait until a batch has ended. The exit code is 7 if not all of it succeeded."""
    from mainspring.operations.work.waiting import wait_for_batch

    limit = None if timeout is None else seconds(timeout, field="timeout")
    await client.call(operations.batches.show, id)  # says at once that there is none
    view = await wait_for_batch(lambda: client.call(operations.batches.show, id), id, limit)
    print_if_json(view)
    if view.outcome != "succeeded":
        told = f"{view.succeeded} of {view.total} succeeded"
        raise BatchFailed(f"batch {id} {view.outcome}: {told}; `mainspring batch show {id}` tells more")
