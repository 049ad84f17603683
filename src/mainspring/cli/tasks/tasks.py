"""`mainspring task submit | list | show | wait`

Next: operations/tasks.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group
from mainspring.cli.layout import Room
from mainspring.cli.parse import STATE, Whole, arguments, name_of, submission, task_id
from mainspring.cli.render import (
    NO_AGENT,
    cell,
    fields,
    headline,
    note,
    on_terminal,
    pick,
    print_if_json,
    table,
    visible,
)
from mainspring.cli.schedules.view import shown
from mainspring.cli.tasks.control import control_commands
from mainspring.cli.tasks.logs import logs
from mainspring.errors import TaskFailed
from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.model.words.durations import seconds

if TYPE_CHECKING:
    from mainspring.model.tasks.waits import Wait
    from mainspring.operations.tasks import ListedTask
    from mainspring.store.tasks.tasks import TaskView

MAX_LIMIT = 500


@click.group(cls=Group)
def task() -> None:
    """Submit tasks, and see what becomes of them."""


for command in (logs, *control_commands):
    task.add_command(command)


@task.operation(
    "submit",
    "mainspring task submit backup",
    "mainspring task submit report --arg day=2026-11-15 --arg force=true --priority high",
    """mainspring task submit report --args '{"day": "2026-11-15"}' --key report:15""",
    "mainspring task submit report --run-at 2026-11-15T09:00:00.250+01:00",
    "mainspring task submit report --run-at '2026-11-15 09:00' --tz Europe/Paris",
    "mainspring task submit load --after 17 --after 18 --wait --timeout 10m",
)
@click.argument("job")
@click.option("--args", metavar="JSON", help="All arguments, as one JSON object.")
@click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument: JSON, else text; repeatable.")
@click.option("--delay", metavar="DURATION", help="Run it this long from now: 90, 10m, 1h30m.")
@click.option("--run-at", metavar="INSTANT", help="Run it then; ISO 8601 with an offset, or in --tz.")
@click.option("--tz", metavar="ZONE", help="IANA timezone of a --run-at without an offset.")
@click.option("--priority", metavar="LEVEL", help="low, normal, high, critical, or 0 to 9.")
@click.option("--key", help="A second submission with the same key gives the first task, for a day.")
@click.option("--concurrency-key", metavar="TEXT", help="Tasks with the same key run one at a time.")
@click.option(
    "--after", type=task_id, metavar="ID", multiple=True, help="Wait until this task has succeeded; repeatable."
)
@click.option("--wait", is_flag=True, help="Wait until it has ended, and print its result.")
@click.option("--timeout", metavar="DURATION", help="With --wait: for at most this long.")
async def submit(
    client: Client, /, job: str, args: str | None, arg: tuple[str, ...], wait: bool, timeout: str | None, **when: Any
) -> None:
    """Submit one task of JOB; prints its number."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait", click.get_current_context())
    limit = None if timeout is None else seconds(timeout, field="timeout")
    id = await client.call(operations.tasks.submit, submission(job, args=arguments(args, arg), **when))
    if wait:
        note(f"task {id} submitted")
        await _wait(client, id, limit)
    elif not print_if_json({"id": id}):
        click.echo(id)
        if on_terminal():
            note(f"see it with `mainspring task show {id}`, wait for it with `mainspring task wait {id}`")


@task.operation(
    "list",
    "mainspring task list --job backup --state failed --state timed_out",
    "mainspring task list --limit 500 --before 1234 --json",
    "mainspring task list --schedule nightly --state failed",
)
@click.option("--job", type=name_of("job"), metavar="NAME", help="Only tasks of this job.")
@click.option("--schedule", type=name_of("schedule"), metavar="NAME", help="Only tasks of this schedule.")
@click.option("--parent", type=task_id, metavar="ID", help="The runs of this broadcast, which are left out else.")
@click.option("--state", type=STATE, multiple=True, metavar="STATE", help="Only tasks in this state; repeatable.")
@click.option("--limit", type=Whole(1, MAX_LIMIT), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--before", type=task_id, metavar="ID", help="Only tasks before this one: the next page.")
async def list_tasks(client: Client, /, state: tuple[str, ...], limit: int, **only: Any) -> None:
    """Show tasks, the newest first."""
    states = [TaskState.from_label(label) for label in state]
    page = await client.call(operations.tasks.listing, states=states, limit=limit, **only)
    found = page.items
    if page.next is not None and len(found) < limit:
        note(f"tasks before {page.next} were not searched yet: --before {page.next}")
    if print_if_json([_as_json(listed.task, listed.wait) for listed in found]):
        return
    table(
        ["ID", "JOB", "STATE", "AGENT", "ATTEMPT", "PLAN TIME", "SCOPE", "DUE", "LATE MS", "ERROR", "WAITS"],
        [_row(listed) for listed in found],
        empty="no such tasks",
        room=Room(
            cut=("JOB", "AGENT", "SCOPE", "ERROR", "WAITS"),
            spare=("LATE MS", "ATTEMPT", "JOB", "DUE")
            if only["schedule"]
            else ("SCOPE", "PLAN TIME", "LATE MS", "ATTEMPT"),
            drop=("SCOPE", "WAITS", "ERROR", "AGENT"),
        ),
    )
    for listed in found:
        _note_unreadable(listed.task)
    if page.next is not None and len(found) == limit:
        note(f"there may be more: --before {page.next}")


@task.operation("show", "mainspring task show 17", "mainspring task show 17 --json | jq .result")
@click.argument("id", type=task_id, metavar="ID")
async def show(client: Client, id: int) -> None:
    """Show one task with its attempts; a broadcast with its runs."""
    from mainspring.model.schedules.story import armed

    found = await client.call(operations.tasks.show, id)
    view, wait = found.task, found.wait
    if print_if_json(_as_json(view, wait) | {"attempts": found.attempts, "children": found.children}):
        return
    fields(
        {
            **pick(view, "id", "job", "state", "priority", "key", "concurrency_key"),
            "paused": None if view.paused_at is None else f"since {cell(view.paused_at)}",
            "broadcast": view.parent,
            **pick(view, "agent", "only_on", "schedule", "plan_time", "scope"),
            "due": view.run_at,
            "submitted": view.created_at,
            "started": view.started_at,
            "ended": view.finished_at,
            "late": None if view.lateness_ms is None else f"{view.lateness_ms:.1f} ms",
            "armed": None if view.armed_ahead is None else armed(view.armed_ahead).removeprefix("armed "),
            "waits for": view.waiting_for or None,
            "waits": wait and wait.reason,
            **pick(view, "args", "progress", "checkpoint", "result", "error"),
        }
    )
    _note_unreadable(view)
    if found.attempts:
        click.echo()
        table(
            ["ATTEMPT", "STATE", "AGENT", "STARTED", "ENDED", "LATE MS", "ERROR"],
            [
                [a.number, a.state, a.agent, a.started_at, a.finished_at, a.lateness_ms, headline(a.error)]
                for a in found.attempts
            ],
            room=Room(cut=("AGENT", "ERROR"), spare=("LATE MS", "ENDED"), drop=("ERROR",)),
        )
    if found.children:
        click.echo()
        table(
            ["AGENT", "TASK", "STATE", "ATTEMPT", "STARTED", "LATE MS", "ERROR"],
            [
                [c.agent, c.id, c.state, c.attempt, c.started_at, c.lateness_ms, headline(c.error)]
                for c in found.children
            ],
            room=Room(cut=("AGENT", "ERROR"), spare=("ATTEMPT", "LATE MS"), drop=("ERROR",)),
        )


@task.operation("wait", "mainspring task wait 17 --timeout 10m && echo done")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--timeout", metavar="DURATION", help="For at most this long; then the exit code is 124.")
async def wait(client: Client, id: int, timeout: str | None) -> None:
    """Wait until a task has ended, and print its result. The exit code is 7 if it did not succeed."""
    await _wait(client, id, None if timeout is None else seconds(timeout, field="timeout"))


async def _wait(client: Client, id: int, timeout: float | None) -> None:
    found = await client.call(operations.tasks.show, id)
    view = found.task
    is_live = TaskState.from_label(view.state) not in TERMINAL
    if found.wait is not None:
        note(f"task {id} cannot start yet: {found.wait.reason}")
    elif is_live and not await client.call(operations.fleet.has_agents):
        note(NO_AGENT)
    if is_live or view.result_due:
        await client.wait(id, timeout)
        view = await client.call(operations.tasks.status, id)
    if not print_if_json(view) and view.result is not None:
        click.echo(cell(view.result))
    if view.state != TaskState.SUCCEEDED.label:
        raise _failure(view, has_output=await client.call(operations.output.has_output, id))


def _row(listed: ListedTask) -> list[Any]:
    view = listed.task
    state = view.state if view.paused_at is None else f"{view.state}, paused"
    return [
        *(view.id, view.job, state, view.agent, view.attempt, shown(view.plan_time), view.scope, view.run_at),
        *(view.lateness_ms, headline(view.error), listed.wait and listed.wait.what),
    ]


def _note_unreadable(view: TaskView) -> None:
    if view.unreadable:
        note(f"task {view.id} holds what cannot be read: {'; '.join(view.unreadable)}")


def _as_json(view: TaskView, wait: Wait | None) -> dict[str, Any]:
    import msgspec

    reason = wait and {"code": wait.code, "reason": wait.reason}
    return {**msgspec.structs.asdict(view), "waits": reason}


def _failure(view: TaskView, *, has_output: bool) -> TaskFailed:
    reason = visible(headline(view.error)) or "no reason was given"
    command, does = ("logs", "shows its output") if has_output else ("show", "tells more")
    return TaskFailed(
        f"task {view.id} {view.state}: {reason}; `mainspring task {command} {view.id}` {does}",
        task_id=view.id,
        state=view.state,
        error_code=view.error_code,
    )
