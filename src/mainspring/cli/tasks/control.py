"""`mainspring task cancel | kill | pause | resume | restart | retry`

Next: operations/tasks.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation, shared
from mainspring.cli.errors import report
from mainspring.cli.parse import task_id
from mainspring.cli.render import print_if_json
from mainspring.errors import MainspringError
from mainspring.model.tasks.states import TaskState

# Command → its help, and the outcome in words of a task that it did not end at once.
_COMMANDS = {
    "cancel": ("End tasks: at once if no agent has them, else by a request to their agent.", "stop requested"),
    "kill": ("End tasks as `cancel` does, without the grace to end by themselves.", "kill requested"),
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


def _command(name: str, help: str, outcome: str) -> click.Command:
    @operation(name, f"mainspring task {name} 17 18")
    @click.argument("ids", type=task_id, nargs=-1, required=True, metavar="ID...")
    async def run(client: Client, ids: tuple[int, ...]) -> None:
        """Act on every task; an error of one is reported and does not stop the others."""
        act: Any = partial(operations.tasks.cancel, kill=True) if name == "kill" else getattr(operations.tasks, name)
        status = 0
        done = []
        for id in ids:
            try:
                state = await client.call(act, id)
            except MainspringError as error:
                code = report(error, as_json=shared().json)
                status = status or code
            else:
                told = "cancelled" if state is TaskState.CANCELLED else outcome
                done.append({"id": id, "outcome": told})
                if not shared().json:
                    click.echo(f"{id}\t{told}")
        print_if_json(done)
        if status:
            click.get_current_context().exit(status)

    run.help = help
    return run


control_commands = [_command(name, *how) for name, how in _COMMANDS.items()]
