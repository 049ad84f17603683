"""`mainspring task cancel | kill | pause | resume | restart | retry`

Next: operations/tasks.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from mainspring import operations
from mainspring.cli.base import Client, Command, examples, shared, with_client
from mainspring.cli.errors import report
from mainspring.cli.parse import task_id
from mainspring.cli.render import print_if_json
from mainspring.errors import MainspringError
from mainspring.model.tasks.states import TaskState

Act = Callable[["Client", int], Awaitable[str]]  # on one task; returns the outcome in words


def _command(act: Act) -> click.Command:
    """A command that acts on each of the tasks given. Its name and help are those of the function."""

    @with_client
    async def run(client: Client, ids: tuple[int, ...]) -> None:
        await _each(client, ids, act)

    run.__doc__ = act.__doc__
    ids = click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
    epilog = examples(f"mainspring task {act.__name__} 17 18")
    return click.command(act.__name__, cls=Command, epilog=epilog)(ids(run))


@_command
async def cancel(client: Client, id: int) -> str:
    """End tasks: at once if no agent has them, else by a request to their agent."""
    state = await client.call(operations.tasks.cancel, id)
    return "cancelled" if state is TaskState.CANCELLED else "told to stop"


@_command
async def kill(client: Client, id: int) -> str:
    """End tasks as `cancel` does, without the grace to end by themselves."""
    state = await client.call(operations.tasks.cancel, id, kill=True)
    return "cancelled" if state is TaskState.CANCELLED else "told to die"


@_command
async def pause(client: Client, id: int) -> str:
    """Suspend running commands until `resume`. They keep their slots; their timeouts are suspended too."""
    await client.call(operations.tasks.pause, id)
    return "told to stand still"


@_command
async def resume(client: Client, id: int) -> str:
    """Continue paused commands."""
    await client.call(operations.tasks.resume, id)
    return "told to go on"


@_command
async def restart(client: Client, id: int) -> str:
    """Stop the running attempts of these tasks and run them again at once; that costs no attempt."""
    await client.call(operations.tasks.restart, id)
    return "told to run again"


@_command
async def retry(client: Client, id: int) -> str:
    """Run tasks again that ended without success; their attempts are counted anew."""
    await client.call(operations.tasks.retry, id)
    return "pending"


async def _each(client: Client, ids: Sequence[int], act: Act) -> None:
    """Act on every task; an error of one is reported and does not stop the others."""
    status = 0
    done = []
    for id in ids:
        try:
            outcome = await act(client, id)
        except MainspringError as error:
            code = report(error, as_json=shared().json)
            status = status or code
        else:
            done.append({"id": id, "outcome": outcome})
            if not shared().json:
                click.echo(f"{id}\t{outcome}")
    print_if_json(done)
    if status:
        click.get_current_context().exit(status)
