"""What is done to tasks: `mainspring task cancel | kill | pause | resume | restart | retry`.

Next: cli/client.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from mainspring.cli.base import Command, examples, shared, with_client
from mainspring.cli.errors import report
from mainspring.cli.parse import task_id
from mainspring.cli.render import print_json
from mainspring.errors import MainspringError
from mainspring.model.tasks.states import TaskState

if TYPE_CHECKING:
    from mainspring.cli.client import Client


@click.command("cancel", cls=Command, epilog=examples("mainspring task cancel 17 18"))
@click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
@with_client
async def cancel(client: Client, ids: tuple[int, ...]) -> None:
    """End tasks: at once if nobody runs them, else by telling their agent."""

    async def one(id: int) -> str:
        state = await client.cancel(id)
        return "cancelled" if state is TaskState.CANCELLED else "told to stop"

    await _each(ids, one)


@click.command("kill", cls=Command, epilog=examples("mainspring task kill 17"))
@click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
@with_client
async def kill(client: Client, ids: tuple[int, ...]) -> None:
    """End tasks as `cancel` does, without the grace to end by themselves."""

    async def one(id: int) -> str:
        state = await client.cancel(id, kill=True)
        return "cancelled" if state is TaskState.CANCELLED else "told to die"

    await _each(ids, one)


@click.command("pause", cls=Command, epilog=examples("mainspring task pause 17"))
@click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
@with_client
async def pause(client: Client, ids: tuple[int, ...]) -> None:
    """Hold running commands still, until `resume`. They keep their slots; their timeouts stand still too."""

    async def one(id: int) -> str:
        await client.pause(id)
        return "told to stand still"

    await _each(ids, one)


@click.command("resume", cls=Command, epilog=examples("mainspring task resume 17"))
@click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
@with_client
async def resume(client: Client, ids: tuple[int, ...]) -> None:
    """Let paused commands go on."""

    async def one(id: int) -> str:
        await client.resume(id)
        return "told to go on"

    await _each(ids, one)


@click.command("restart", cls=Command, epilog=examples("mainspring task restart 17"))
@click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
@with_client
async def restart(client: Client, ids: tuple[int, ...]) -> None:
    """Stop what runs of these tasks and run them again at once; that costs no attempt."""

    async def one(id: int) -> str:
        await client.restart(id)
        return "told to run again"

    await _each(ids, one)


@click.command("retry", cls=Command, epilog=examples("mainspring task retry 17"))
@click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
@with_client
async def retry(client: Client, ids: tuple[int, ...]) -> None:
    """Run tasks again that ended without success; their attempts are counted anew."""

    async def one(id: int) -> str:
        await client.retry(id)
        return "pending"

    await _each(ids, one)


async def _each(ids: Sequence[int], act: Callable[[int], Awaitable[str]]) -> None:
    """Act on every task; what goes wrong with one is told and does not keep the others from it."""
    status = 0
    done = []
    for id in ids:
        try:
            outcome = await act(id)
        except MainspringError as error:
            code = report(error, as_json=shared().json)
            status = status or code
        else:
            done.append({"id": id, "outcome": outcome})
            if not shared().json:
                click.echo(f"{id}\t{outcome}")
    if shared().json:
        print_json(done)
    if status:
        click.get_current_context().exit(status)
