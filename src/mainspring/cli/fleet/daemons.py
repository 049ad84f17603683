"""`mainspring daemon list | show | logs | create | start | stop | restart | scale | delete`

Next: operations/definitions/daemons.py
"""

from __future__ import annotations

from shlex import split
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole, name_of, pairs
from mainspring.cli.render import confirm, fields, note, print_if_json, table, visible
from mainspring.errors import NotFound, ValidationError

if TYPE_CHECKING:
    from mainspring.store.daemons.daemon_views import Daemon, Replica


_ROOM = Room(cut=("NAME", "AGENT"), drop=("HEALTHY", "TASK", "SINCE"))


@click.group(cls=Group, epilog=examples("mainspring daemon create gateway --replicas 3 -- ./gateway --port 8080"))
def daemon() -> None:
    """Keep replicas of a job running, and see how they are."""


@daemon.operation("list", "mainspring daemon list", "mainspring daemon list --json | jq '.[].up'")
async def list_daemons(client: Client) -> None:
    """Show all daemons, a line for each replica."""
    found = await client.every(operations.daemons.listing)
    if print_if_json(found):
        return
    table(
        ["NAME", "UP", "REPLICA", "STATE", "AGENT", "SINCE", "RESTARTS", "HEALTHY", "TASK"],
        [row for one in found for row in _rows(one)],
        empty="no daemons; make one with `mainspring daemon create NAME -- COMMAND`",
        room=_ROOM,
    )


def _rows(one: Daemon) -> list[list[Any]]:
    up = f"{one.up}/{one.wanted}"
    if not one.replicas:
        return [[one.name, up, "", "made soon" if one.enabled else "stopped", *[""] * 5]]
    return [[one.name, up, *_cells(replica)] for replica in one.replicas]


def _cells(replica: Replica) -> list[Any]:
    healthy = {None: "", True: "yes", False: "no"}[replica.healthy]
    state = f"{replica.state}, outdated" if replica.outdated else replica.state
    return [replica.number, state, replica.agent, replica.since, replica.restarts, healthy, replica.task]


@daemon.operation("show", "mainspring daemon show gateway")
@click.argument("name", type=name_of("daemon"))
async def show_daemon(client: Client, name: str) -> None:
    """Show one daemon and its replicas."""
    found = await client.call(operations.daemons.show, name)
    if print_if_json(found):
        return
    fields(
        {
            "name": found.name,
            "job": found.job,
            "state": "started" if found.enabled else "stopped",
            "up": f"{found.up} of {found.wanted}",
        }
    )
    if found.replicas:
        click.echo()
        headers = ["REPLICA", "STATE", "AGENT", "SINCE", "RESTARTS", "HEALTHY", "TASK"]
        table(headers, [_cells(replica) for replica in found.replicas], room=_ROOM)
        for replica in found.replicas:
            if replica.why is not None:
                note(f"replica {replica.number} {visible(replica.why)}")


@daemon.operation(
    "create",
    "mainspring daemon create gateway --replicas 3 -- ./gateway --port 8080",
    "mainspring daemon create gateway --health-http http://127.0.0.1:8080/healthz -- ./gateway",
    "mainspring daemon create feed --health-command './feed --check' --shell -- 'exec ./feed 2>&1'",
)
@click.argument("name")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARG]...")
@click.option("--replicas", type=Whole(), default=1, show_default=True, metavar="N", help="Keep so many running.")
@click.option("--shell", is_flag=True, help="COMMAND is a line for /bin/sh; the ARGs are its $1, $2, …")
@click.option("--cwd", metavar="DIR", help="Directory to run in.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable for the command; repeatable.")
@click.option("--grace", metavar="DURATION", help="Between TERM and KILL of a replica that is stopped; 5s.")
@click.option("--requires", multiple=True, metavar="LABEL=VALUE", help="Label an agent must have; repeatable.")
@click.option("--restart-delay", metavar="DURATION", help="Before it runs again; doubled while lives are short; 1s.")
@click.option("--max-restart-delay", metavar="DURATION", help="The longest such wait; 1m.")
@click.option("--stable", metavar="DURATION", help="A life of so long is not short; 1m.")
@click.option("--ready", metavar="DURATION", help="Without a health check, it is up after so long; 1s.")
@click.option("--health-command", "command", metavar="LINE", help="Exits with 0 while a replica is well.")
@click.option("--health-http", "http", metavar="URL", help="Answers with 2xx while a replica is well.")
@click.option("--health-every", "every", metavar="DURATION", help="Ask so often; 10s.")
@click.option("--health-timeout", "timeout", metavar="DURATION", help="Wait so long for an answer; 5s.")
@click.option("--health-failures", "failures", type=Whole(), metavar="N", help="In a row, before a restart; 3.")
@click.option("--health-start", "start", metavar="DURATION", help="Failures so soon after a start do not count; 0s.")
@click.option("--description", metavar="TEXT", help="What it is for.")
@click.option("--stopped", is_flag=True, help="Do not start it yet.")
@click.option("--replace", is_flag=True, help="Change the daemon if there is one of this name, replica by replica.")
async def create_daemon(
    client: Client, /, name: str, argv: tuple[str, ...], stopped: bool, replace: bool, **options: Any
) -> None:
    """Define a job that runs a command, and keep replicas of it running."""
    from mainspring.model.schedules.define_schedule import OF_DAEMONS, define_schedule
    from mainspring.model.tasks.define_job import command, define

    given = {option: value for option, value in options.items() if value not in (None, ())}
    if "requires" in given:
        given["requires"] = pairs(given["requires"], field="requires")
    policies: Any = {option: given[option] for option in ("grace", "requires", "description") if option in given}
    if (health := _health(given)) is not None:
        policies["health"] = health
    run = command(argv, shell=options["shell"], cwd=options["cwd"], env=pairs(options["env"], field="env"))
    when: Any = {option: given[option] for option in ("replicas", *OF_DAEMONS) if option in given}
    replicas = int(define_schedule(name, name, when).expression)  # refuse what is wrong before connecting
    definition = define(run, policies)
    await client.call(operations.daemons.put, name, definition, **when, enabled=not stopped, replace=replace)
    verb, command_name = ("start", "start") if stopped else ("see", "show")
    made = {"name": name, "replicas": replicas, "enabled": not stopped}
    confirm(made, f"created; {verb} it with `mainspring daemon {command_name} {name}`")


def _health(given: dict[str, Any]) -> dict[str, Any] | None:
    from mainspring.model.daemons.define_health import KNOWN

    health = {option: given[option] for option in KNOWN if option in given}
    if "command" in health:
        try:
            health["command"] = split(health["command"])
        except ValueError as error:
            raise ValidationError(
                f"health: {health['command']!r} is no command line: {error}", field="health"
            ) from None
    return health or None


@daemon.operation("start", "mainspring daemon start gateway")
@click.argument("name", type=name_of("daemon"))
async def start(client: Client, name: str) -> None:
    """Let the replicas of a daemon run."""
    _confirm(name, (await client.call(operations.daemons.start, name)).changed, "started")


@daemon.operation("stop", "mainspring daemon stop gateway")
@click.argument("name", type=name_of("daemon"))
async def stop(client: Client, name: str) -> None:
    """Stop all replicas of a daemon, each with its grace."""
    _confirm(name, (await client.call(operations.daemons.stop, name)).changed, "stopped")


@daemon.operation("scale", "mainspring daemon scale gateway 5")
@click.argument("name", type=name_of("daemon"))
@click.argument("replicas", type=Whole())
async def scale(client: Client, name: str, replicas: int) -> None:
    """Keep another number of replicas; those that stay are not touched."""
    change = await client.call(operations.daemons.scale, name, replicas)
    _confirm(name, change.changed, f"scaled to {replicas}")


@daemon.operation("restart", "mainspring daemon restart gateway")
@click.argument("name", type=name_of("daemon"))
async def restart(client: Client, name: str) -> None:
    """Restart the replicas one after another, each once the one before is up again."""
    await client.call(operations.daemons.restart, name)
    _confirm(name, True, "restarting")


@daemon.operation("delete", "mainspring daemon delete gateway")
@click.argument("name", type=name_of("daemon"))
async def delete(client: Client, name: str) -> None:
    """Stop all replicas of a daemon, and forget it. Its job stays, for `mainspring job delete`."""
    await client.call(operations.daemons.delete, name)
    _confirm(name, True, "deleted")


@daemon.operation("logs", "mainspring daemon logs gateway", "mainspring daemon logs gateway -f --replica 2")
@click.argument("name", type=name_of("daemon"))
@click.option("--replica", type=Whole(), metavar="N", help="Of this one only.")
@click.option("-f", "--follow", is_flag=True, help="Go on; of one replica, the first if none is named.")
@click.option("--timestamps", is_flag=True, help="Put the time in front of each line.")
async def logs(client: Client, name: str, replica: int | None, follow: bool, timestamps: bool) -> None:
    """Print what the replicas of a daemon wrote."""
    from mainspring.cli.tasks.logs import print_output

    found = (await client.call(operations.daemons.show, name)).replicas
    wanted = [one for one in found if replica in (None, one.number)]
    if not wanted:
        which = "replica" if replica is None else f"replica {replica}"
        raise NotFound(f"{name} has no {which}; `mainspring daemon show {name}` lists them", field="replica")
    for one in wanted[:1] if follow else wanted:
        if len(wanted) > 1:
            note(f"── replica {one.number} on {one.agent or 'no agent'} ──")
        await print_output(client, one.task, follow=follow, timestamps=timestamps)


def _confirm(name: str, changed: bool, done: str) -> None:
    confirm({"name": name, "changed": changed}, done if changed else f"unchanged: it is {done} already")
