"""`mainspring agents [list] | show | drain | undrain | strategy`

Next: operations/condition/fleet.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of
from mainspring.cli.render import confirm, fields, note, pick, print_if_json, table
from mainspring.model.words.skew import skew_warning

if TYPE_CHECKING:
    from mainspring.operations.condition.fleet import AgentChange
    from mainspring.store.cluster.registry import AgentView

_COLUMNS: dict[str, Callable[[AgentView], Any]] = {
    "NAME": lambda view: view.name,
    "STATUS": lambda view: view.status,
    "RUNS": lambda view: f"{view.running}/{view.slots}",
    "LABELS": lambda view: _pairs(view.labels),
    "OFFERS": lambda view: _pairs(view.offers),
    "CPU": lambda view: _percent(view.cpu),
    "MEMORY": lambda view: _percent(view.memory),
    "SKEW": lambda view: _milliseconds(view.skew, " ms"),
    "ACK MS": lambda view: _milliseconds(view.ack_time),
    "SERVER": lambda view: view.server,
}

_ROOM = Room(
    cut=("NAME", "LABELS", "OFFERS", "SERVER"), drop=("ACK MS", "SKEW", "MEMORY", "CPU", "SERVER", "OFFERS", "LABELS")
)


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "mainspring agents                        those that are connected",
        "mainspring agents drain alpha            before work on its machine",
        "mainspring agents strategy least_tasks   which one takes the next task",
    ),
)
@click.pass_context
def agents(context: click.Context) -> None:
    """See the agents that run tasks, and decide which one takes the next."""
    if context.invoked_subcommand is None:
        context.invoke(list_agents)


@agents.operation("list", "mainspring agents list", "mainspring agents list --json | jq '.[].name'")
async def list_agents(client: Client) -> None:
    """Show the connected agents, and those that left or were lost within the hour; `show` has all about one."""
    found = await client.every(operations.fleet.listing)
    if print_if_json(found):
        return
    table(
        list(_COLUMNS),
        [[show(view) for show in _COLUMNS.values()] for view in found],
        empty="no agent runs; start one with `mainspring up`",
        room=_ROOM,
    )
    _warn(found, client.settings.skew_limit)


@agents.operation("show", "mainspring agents show alpha")
@click.argument("name", type=name_of("agent"))
async def show_agent(client: Client, name: str) -> None:
    """Show all that is known of one agent."""
    found = await client.call(operations.fleet.show, name)
    if print_if_json(found):
        return
    for number, view in enumerate(found):
        if number:
            click.echo()
        fields(_fields(view))
    _warn(found, client.settings.skew_limit)


def _warn(found: list[AgentView], skew_limit: float) -> None:
    """Report clocks that are wrong by more than the limit."""
    for view in found:
        if view.skew is not None and (told := skew_warning(f"agent {view.name}", view.skew, skew_limit)) is not None:
            note(told)


def _fields(view: AgentView) -> dict[str, Any]:
    used = {name: f"{view.used.get(name, 0.0):g} of {amount:g}" for name, amount in view.offers.items()}
    return {
        **pick(view, "name", "session", "status", "draining_since"),
        "holds": f"{view.holds}, of which {view.running} run, in {view.slots} slots",
        "labels": _pairs(view.labels),
        "offers": ", ".join(f"{name}: {share} used" for name, share in used.items()),
        "cpu": _percent(view.cpu),
        "memory": _percent(view.memory),
        "skew": _milliseconds(view.skew, " ms"),
        "round trip": _milliseconds(view.round_trip, " ms"),
        "acknowledges in": _milliseconds(view.ack_time, " ms"),
        "reliability": _percent(view.reliability),
        "lead": None if view.lead is None else f"{view.lead:g} s",
        "connected": view.connected_at,
        "heard": view.heard_at,
        **pick(view, "lease_until", "server", "host", "version"),
    }


@agents.operation("drain", "mainspring agents drain alpha")
@click.argument("name", type=name_of("agent"))
async def drain(client: Client, name: str) -> None:
    """Let an agent take nothing new, until it is undrained.

    Tasks that it has not started go elsewhere, and so do its daemons; other running tasks continue. An agent
    that connects again, or is started again under this name, still takes nothing.
    """
    done = await client.call(operations.fleet.drain, name)
    _confirm(done, f"{name} takes nothing new; its daemons go elsewhere, and what else runs goes on")


@agents.operation("undrain", "mainspring agents undrain alpha")
@click.argument("name", type=name_of("agent"))
async def undrain(client: Client, name: str) -> None:
    """Let an agent take tasks again."""
    _confirm(await client.call(operations.fleet.undrain, name), f"{name} takes tasks again")


def _confirm(done: AgentChange, what: str) -> None:
    confirm(
        {"name": done.name, "status": done.status, "changed": done.changed},
        what if done.changed else f"{what}, as before",
    )


@agents.operation("strategy", "mainspring agents strategy", "mainspring agents strategy least_tasks")
@click.argument("name", required=False)
async def strategy(client: Client, name: str | None) -> None:
    """Show or set which agent takes the next task, for jobs that name no placement.

    NAME is round_robin, least_tasks, resources or capability. Servers follow at once. Until one is set here, the
    setting `placement` of each server counts.
    """
    if name is not None:
        from mainspring.model.placement.define_placement import check_strategy

        check_strategy(name, field="strategy")
        await client.call(operations.settings.edit, {"placement": name})
    chosen = name or (await client.call(operations.settings.show)).placement or client.settings.placement
    if not print_if_json({"strategy": chosen}):
        click.echo(chosen)


def _pairs(given: dict[str, Any]) -> str:
    return ",".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in given.items()
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f}%"


def _milliseconds(seconds: float | None, unit: str = "") -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}{unit}"
