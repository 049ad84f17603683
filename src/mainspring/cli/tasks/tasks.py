"""`mainspring task submit | list | show | wait`

Next: operations/work/tasks.py
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, arguments, new_task, task_id
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
from mainspring.cli.tasks.bulk import submit_from
from mainspring.cli.tasks.control import control_commands
from mainspring.cli.tasks.filters import filter_options, given_filters
from mainspring.cli.tasks.logs import logs
from mainspring.errors import QueueFull, TaskFailed
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.durations import seconds

if TYPE_CHECKING:
    from mainspring.operations.requests.new_tasks import NewTask, Submitted
    from mainspring.store.search.search import Count
    from mainspring.store.views.parents import Graph
    from mainspring.store.views.task_views import TaskSummary, TaskView

MAX_LIMIT = 500
PATIENCE = 5.0  # seconds that `task list` searches for a full page


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
    "mainspring task submit clean-up --after 17 --on-parent-failure run",
    "mainspring task submit load --batch 17",
    "mainspring task submit --from tasks.ndjson --key load-7",
)
@click.argument("job", required=False)
@click.option("--args", metavar="JSON", help="All arguments, as one JSON object.")
@click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument: JSON, else text; repeatable.")
@click.option("--delay", metavar="DURATION", help="Run it this long from now: 90, 10m, 1h30m.")
@click.option("--run-at", metavar="INSTANT", help="Run it then; ISO 8601 with an offset, or in --tz.")
@click.option("--tz", metavar="ZONE", help="IANA timezone of a --run-at without an offset.")
@click.option("--priority", metavar="LEVEL", help="low, normal, high, critical, or 0 to 9.")
@click.option("--key", help="A second submission with the same key gives the first task, for a day.")
@click.option("--if-exists", type=click.Choice(["return", "reject"]), help="With --key, where it is taken; return.")
@click.option("--concurrency-key", metavar="TEXT", help="Tasks with the same key run one at a time.")
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="To find it by, and for rules; repeatable.")
@click.option("--expires", metavar="DURATION", help="Skip it if it has not started so long after its time.")
@click.option("--run-timeout", metavar="DURATION", help="Stop a run after this long, in place of the job's timeout.")
@click.option("--retries", type=Whole(0, 1000), metavar="N", help="In place of the job's.")
@click.option(
    "--stalls-after",
    metavar="DURATION",
    help="Stop a run without output or progress for this long, in place of the job's.",
)
@click.option(
    "--after", type=task_id, metavar="ID", multiple=True, help="Wait until this task has succeeded; repeatable."
)
@click.option(
    "--on-parent-failure",
    type=click.Choice(["skip", "run", "fail"]),
    help="With --after, if such a task does not succeed; skip.",
)
@click.option("--batch", type=task_id, metavar="ID", help="Count it in this batch.")
@click.option("--require-agents", is_flag=True, help="Refuse it if no agent that is there could run it.")
@click.option("--wait-for-room", metavar="DURATION", help="If the queue is full, try again for at most this long.")
@click.option("--wait", is_flag=True, help="Wait until it has ended, and print its result.")
@click.option("--timeout", metavar="DURATION", help="With --wait: for at most this long.")
@click.option("--from", "file", metavar="FILE", help='One task per line, such as {"job": "backup"}; - is stdin.')
@click.option("--atomic", is_flag=True, help="With --from: all lines, at most 10,000, or none.")
@click.option(
    "--on-error", type=click.Choice(["continue", "stop"]), help="With --from: what to do after a refused line."
)
async def submit(
    client: Client,
    /,
    job: str | None,
    args: str | None,
    arg: tuple[str, ...],
    wait_for_room: str | None,
    wait: bool,
    timeout: str | None,
    file: str | None,
    atomic: bool,
    on_error: str | None,
    **when: Any,
) -> None:
    """Submit one task of JOB; prints its number. With --from many, and prints what became of their lines.

    With --from, --key K gives the task in line n the key K:n: the same file can be submitted again, and nothing is
    created twice.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait", click.get_current_context())
    if file is not None:
        given = {"JOB": job, "--args": args, "--arg": arg, "--wait": wait, "--wait-for-room": wait_for_room}
        given |= {**when, "key": None}
        wrong = [name for name, value in given.items() if value]
        if wrong:
            raise click.UsageError(f"--from: each line says it; leave out {wrong[0]}", click.get_current_context())
        await submit_from(client, file, key=when["key"], atomic=atomic, on_error=on_error or "continue")
        return
    if atomic or on_error:
        raise click.UsageError("--atomic and --on-error are for --from", click.get_current_context())
    if job is None:
        raise click.UsageError("Missing argument 'JOB', or --from FILE.", click.get_current_context())
    limit = None if timeout is None else seconds(timeout, field="timeout")
    patience = 0.0 if wait_for_room is None else seconds(wait_for_room, field="wait-for-room")
    submitted = await _submit(client, new_task(job, args=arguments(args, arg), **when), patience)
    id = submitted.id
    if wait:
        note(f"task {id} submitted")
        await _wait(client, id, limit)
    elif not print_if_json(submitted):
        click.echo(id)
        if on_terminal():
            note(f"see it with `mainspring task show {id}`, wait for it with `mainspring task wait {id}`")


async def _submit(client: Client, task: NewTask, patience: float) -> Submitted:
    """Submit it, for so many seconds as often as its queue is full."""
    import asyncio

    from mainspring.sdk.job import Room as RoomInQueue

    room = RoomInQueue(patience)
    while True:
        try:
            return await client.call(operations.tasks.submit, task)
        except QueueFull as full:
            await asyncio.sleep(room.pause(full))


@task.operation(
    "list",
    "mainspring task list --job backup --state failed --state timed_out --since 1d",
    "mainspring task list --limit 500 --before 1234 --json",
    "mainspring task list --schedule 'nightly-*' --late-over 1s",
    "mainspring task list --job order --arg customer.id=17",
)
@filter_options
@click.option("--limit", type=Whole(1, MAX_LIMIT), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--before", type=task_id, metavar="ID", help="Only tasks before this one: the next page.")
@click.option("--cursor", metavar="TEXT", help="Where a search that took too long goes on.")
async def list_tasks(client: Client, /, limit: int, before: int | None, cursor: str | None, **options: Any) -> None:
    """Show tasks, the newest first. Several values of one filter are alternatives.

    The runs of a broadcast are left out, unless --parent or --agent asks for them.
    """
    found, cursor = await _search(client, limit, cursor, {"before": before, **given_filters(options)})
    if print_if_json(found):
        if cursor is not None and len(found) < limit:
            note(f"older tasks were not searched yet; go on with --cursor {cursor}")
        return
    table(
        ["ID", "JOB", "STATE", "AGENT", "ATTEMPT", "PLAN TIME", "SCOPE", "DUE", "LATE MS", "ERROR", "WAITS"],
        [_row(view) for view in found],
        empty="no such tasks",
        room=Room(
            cut=("JOB", "AGENT", "SCOPE", "ERROR", "WAITS"),
            spare=("LATE MS", "ATTEMPT", "JOB", "DUE")
            if options["schedule"]
            else ("SCOPE", "PLAN TIME", "LATE MS", "ATTEMPT"),
            drop=("SCOPE", "WAITS", "ERROR", "AGENT"),
        ),
    )
    for view in found:
        _note_unreadable(view)
    if cursor is not None and len(found) == limit:
        note(f"there may be more: --before {found[-1].id}")
    elif cursor is not None:
        note(f"older tasks were not searched yet; go on with --cursor {cursor}")


async def _search(
    client: Client, limit: int, cursor: str | None, filters: dict[str, Any]
) -> tuple[list[TaskSummary], str | None]:
    """A full page, or what is found within PATIENCE: each call searches for a moment only. Returns where to go on."""
    found: list[TaskSummary] = []
    stop_at = monotonic() + PATIENCE
    while True:
        page = await client.call(
            operations.tasks.listing, limit=limit - len(found), cursor=cursor, fields="all", **filters
        )
        found += page.items
        cursor = page.next
        if cursor is None or len(found) == limit or monotonic() >= stop_at:
            return found, cursor


@task.operation("show", "mainspring task show 17", "mainspring task show 17 --json | jq .result")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--reveal", is_flag=True, help="Show secrets, in place of ***; that is audited.")
async def show(client: Client, id: int, reveal: bool) -> None:
    """Show one task with its attempts; a broadcast with its runs."""
    from mainspring.model.schedules.story import armed

    view = await client.call(operations.tasks.show, id, reveal=reveal)
    if print_if_json(view):
        return
    fields(
        {
            **pick(view, "id", "job", "state"),
            "priority": view.priority if view.rule is None else f"{view.priority}, by rule {view.rule!r}",
            **pick(view, "key", "concurrency_key"),
            "tags": ", ".join(view.tags) or None,
            "counts as": None if view.counts_as == view.priority else view.counts_as,
            "paused": None if view.paused_at is None else f"since {cell(view.paused_at)}",
            "broadcast": view.parent,
            **pick(view, "batch", "callback_of"),
            **pick(view, "agent", "only_on", "schedule", "plan_time", "scope"),
            "due": view.run_at,
            "expires": view.expires_at,
            "submitted": view.created_at,
            "submitted by": view.submitter,
            "timeout": None if view.timeout is None else f"{view.timeout:g} s, given with it",
            "stalls after": None if view.stalls_after is None else f"{view.stalls_after:g} s, given with it",
            "retries": None if view.retries is None else f"{view.retries}, given with it",
            "started": view.started_at,
            "ended": view.finished_at,
            "late": None if view.lateness_ms is None else f"{view.lateness_ms:.1f} ms",
            "armed": None if view.armed_ahead is None else armed(view.armed_ahead).removeprefix("armed "),
            "waits for": view.waiting_for or None,
            "if one fails": view.on_parent_failure,
            "waits": view.waits and view.waits.reason,
            **pick(view, "args", "progress", "checkpoint", "result", "error"),
        }
    )
    _note_unreadable(view)
    if view.attempts:
        click.echo()
        table(
            ["ATTEMPT", "STATE", "AGENT", "STARTED", "ENDED", "LATE MS", "ERROR"],
            [
                [a.number, a.state, a.agent, a.started_at, a.finished_at, a.lateness_ms, headline(a.error)]
                for a in view.attempts
            ],
            room=Room(cut=("AGENT", "ERROR"), spare=("LATE MS", "ENDED"), drop=("ERROR",)),
        )
        _note_rest(len(view.attempts), view.attempt_count, "the last", "attempts")
    if view.graph is not None:
        _show_graph(view.graph)
    if view.children:
        click.echo()
        table(
            ["AGENT", "TASK", "STATE", "ATTEMPT", "STARTED", "LATE MS", "ERROR"],
            [
                [c.agent, c.id, c.state, c.attempt, c.started_at, c.lateness_ms, headline(c.error)]
                for c in view.children
            ],
            room=Room(cut=("AGENT", "ERROR"), spare=("ATTEMPT", "LATE MS"), drop=("ERROR",)),
        )
        _note_rest(len(view.children), view.child_count, "the first", "runs")


def _note_rest(listed: int, count: Count, which: str, what: str) -> None:
    if count.count > listed:
        note(f"{which} {listed} of {count.count:,}{'' if count.is_exact else ' or more'} {what}")


def _show_graph(graph: Graph) -> None:
    rows = [
        *(["after", one.id, one.job, one.state, one.error_code] for one in graph.parents),
        *(["before", one.id, one.job, one.state, one.error_code] for one in graph.children),
    ]
    click.echo()
    table(["RUNS", "TASK", "JOB", "STATE", "ERROR"], rows, room=Room(cut=("JOB", "ERROR")))
    left = graph.parents_count + graph.children_count - len(rows)
    if left:
        note(f"and {left:,} more")


@task.operation("wait", "mainspring task wait 17 --timeout 10m && echo done")
@click.argument("id", type=task_id, metavar="ID")
@click.option("--timeout", metavar="DURATION", help="For at most this long; then the exit code is 124.")
async def wait(client: Client, id: int, timeout: str | None) -> None:
    """Wait until a task has ended, and print its result. The exit code is 7 if it did not succeed."""
    await _wait(client, id, None if timeout is None else seconds(timeout, field="timeout"))


async def _wait(client: Client, id: int, timeout: float | None) -> None:
    from mainspring.client.reading import has_ended

    found = await client.call(operations.tasks.show, id)
    is_live = not has_ended(found)
    if found.waits is not None:
        note(f"task {id} cannot start yet: {found.waits.reason}")
    elif is_live and not await client.has_agents():
        note(NO_AGENT)
    if is_live or found.result_due:
        await client.wait(id, timeout)
    view = await client.call(operations.tasks.status, id)
    if not print_if_json(view) and view.result is not None:
        click.echo(cell(view.result))
    if view.state != TaskState.SUCCEEDED.label:
        raise _failure(view, has_output=bool((await client.call(operations.output.read, id)).items))


def _row(view: TaskSummary) -> list[Any]:
    state = view.state if view.paused_at is None else f"{view.state}, paused"
    waits = view.waits and view.waits.reason.partition(";")[0]
    return [
        *(view.id, view.job, state, view.agent, view.attempt, shown(view.plan_time), view.scope, view.run_at),
        *(view.lateness_ms, headline(view.error or None), waits),
    ]


def _note_unreadable(view: TaskView | TaskSummary) -> None:
    if view.unreadable:
        note(f"task {view.id} holds what cannot be read: {'; '.join(view.unreadable)}")


def _failure(view: TaskView, *, has_output: bool) -> TaskFailed:
    reason = visible(headline(view.error)) or "no reason was given"
    command, does = ("logs", "shows its output") if has_output else ("show", "tells more")
    return TaskFailed(
        f"task {view.id} {view.state}: {reason}; `mainspring task {command} {view.id}` {does}",
        task_id=view.id,
        state=view.state,
        error_code=view.error_code,
    )
