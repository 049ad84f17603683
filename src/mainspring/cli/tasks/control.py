"""`mainspring task cancel | kill | skip | pause | resume | restart | retry | edit`

`cancel`, `kill`, `skip` and `retry` take numbers, or the filters of `task list` for all tasks that match.
Next: operations/work/tasks.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, shared
from mainspring.cli.errors import report
from mainspring.cli.parse import due_at, task_id
from mainspring.cli.render import confirm, on_terminal, print_if_json
from mainspring.cli.tasks.filters import filter_options, given_filters
from mainspring.errors import MainspringError

# Command → its help, and the outcome in words of a task that it did not end at once.
_COMMANDS = {
    "cancel": ("End tasks: at once if no agent has them, else by a request to their agent.", "stop requested"),
    "kill": ("End tasks as `cancel` does, without the grace to end by themselves.", "kill requested"),
    "skip": (
        "End tasks as skipped that have not started; one that its agent has is asked back first. `cancel` ends others.",
        "asked back; skipped unless it starts first",
    ),
    "pause": (
        "Suspend running commands until `resume`. They keep their slots; their timeouts are suspended too.",
        "pause requested",
    ),
    "resume": ("Continue paused commands.", "resume requested"),
    "restart": (
        "Stop the running attempts of these tasks and run them again at once; that costs no attempt.",
        "restart requested",
    ),
    "retry": ("Run tasks again that ended without success; their attempts are counted anew.", "pending"),
}


_ON_ALL = ("cancel", "kill", "skip", "retry")
_AT_ONCE = ("cancelled", "skipped")  # told in place of the outcome


async def _act_on(client: Client, name: str, outcome: str, ids: Sequence[int], **how: Any) -> None:
    """Act on every task; an error of one is reported and does not stop the others."""
    act: Any = operations.tasks.cancel if name == "kill" else getattr(operations.tasks, name)
    if name == "kill":
        how["kill"] = True
    status = 0
    done = []
    for id in ids:
        try:
            view = await client.call(act, id, **how)
        except MainspringError as error:
            code = report(error, as_json=shared().json)
            status = status or code
        else:
            told = view.state if view.state in _AT_ONCE else outcome
            if children := getattr(view, "children", 0):
                told = f"{told}, with {children:,} that wait for it again"
            done.append({"id": id, "outcome": told})
            if not shared().json:
                click.echo(f"{id}\t{told}")
    print_if_json(done)
    if status:
        click.get_current_context().exit(status)


async def _act_on_all(client: Client, name: Any, filters: dict[str, Any], note: str | None, *, yes: bool) -> None:
    """Act on all tasks that match, step by step, once the user has agreed."""
    from mainspring.operations.requests.task_filters import TaskFilter

    filter = TaskFilter(**filters)
    if not yes:
        if not on_terminal() or shared().json:
            raise click.UsageError(f"--yes is needed to {name} all tasks that match, where nobody can be asked")
        counted = await client.call(operations.tasks.count, **filters)
        number = f"{counted.count:,}" if counted.is_exact else f"{counted.count:,} or more"
        click.confirm(f"{number} tasks match; {name} those that can be?", abort=True, err=True)
    done, skipped, cursor = 0, 0, None
    while True:
        step = await client.call(operations.tasks.act, name, filter, note=note, cursor=cursor)
        done, skipped, cursor = done + step.done, skipped + len(step.skipped), step.next
        if cursor is None:
            break
    left = f"; {skipped:,} had changed meanwhile" if skipped else ""
    confirm({"done": done, "skipped": skipped}, f"{name}: {done:,} tasks{left}")


def _command(name: str, help: str, outcome: str) -> click.Command:
    @operation(name, f"mainspring task {name} 17 18")
    @click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
    async def run(client: Client, ids: tuple[int, ...]) -> None:
        await _act_on(client, name, outcome, ids)

    run.help = help
    return run


def _command_for_all(name: str, help: str, outcome: str) -> click.Command:
    example = "failed --since 1h" if name == "retry" else "pending"

    @operation(name, f"mainspring task {name} 17 18", f"mainspring task {name} --job report --state {example}")
    @click.argument("ids", type=task_id, nargs=-1, metavar="[ID...]")
    @filter_options
    @click.option("--yes", is_flag=True, help="With filters: do not ask.")
    async def run(client: Client, /, ids: tuple[int, ...], yes: bool, **options: Any) -> None:
        how = {each: value for each in ("note", "with_children") if (value := options.pop(each, None))}
        filters = given_filters(options)
        if bool(ids) == bool(filters):
            raise click.UsageError("give the numbers of tasks, or filters: one of the two", click.get_current_context())
        if ids:
            await _act_on(client, name, outcome, ids, **how)
        elif "with_children" in how:
            raise click.UsageError("--with-children goes with numbers", click.get_current_context())
        else:
            await _act_on_all(client, name, filters, how.get("note"), yes=yes)

    if name == "retry":
        help_text = "Also what was skipped or failed because of them; it waits for them again."
        run.params.append(click.Option(["--with-children"], is_flag=True, help=help_text))
    if name == "skip":
        run.params.append(click.Option(["--note"], metavar="TEXT", help="Why; it is the error of the tasks."))
    run.help = f"{help} With filters in place of numbers: all tasks that match."
    return run


@operation(
    "edit",
    "mainspring task edit 17 --now",
    "mainspring task edit 17 --priority critical --run-at 2026-11-15T09:00:00+01:00",
)
@click.argument("id", type=task_id, metavar="ID")
@click.option("--priority", metavar="LEVEL", help="low, normal, high, critical, or 0 to 9.")
@click.option("--run-at", metavar="INSTANT", help="When it is due; ISO 8601 with an offset, or in --tz.")
@click.option("--tz", metavar="ZONE", help="IANA timezone of a --run-at without an offset.")
@click.option("--now", is_flag=True, help="It is due at once.")
async def edit(client: Client, id: int, priority: str | None, run_at: str | None, tz: str | None, now: bool) -> None:
    """Change the priority or the time of a task that no agent has yet."""
    at = due_at(run_at, tz)
    if priority is None and at is None and not now:
        raise click.UsageError("give --priority, --run-at or --now", click.get_current_context())
    view = await client.call(operations.tasks.change, id, priority=priority, run_at=at, now=now)
    confirm(view, f"task {id} is changed; it is {view.state}")


control_commands = [
    *((_command_for_all if name in _ON_ALL else _command)(name, *how) for name, how in _COMMANDS.items()),
    edit,
]
