"""`mainspring servers [--all] | show`

Next: operations/condition/cluster.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples, with_client
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of
from mainspring.cli.render import age, cell, fields, note, pick, print_if_json, table
from mainspring.model.placement.segments import ranges

if TYPE_CHECKING:
    from mainspring.store.cluster.cluster_views import ServerDetail, ServerView, SharedPool

# The most important first: a narrow terminal shows no more than fits.
_COLUMNS: dict[str, Callable[[ServerView], Any]] = {
    "NAME": lambda view: view.name,
    "ID": lambda view: short(view.id),
    "STATUS": lambda view: view.status,
    "LEADER": lambda view: "" if view.leadership is None else f"term {view.leadership.term}",
    "SEGMENTS": lambda view: len(view.segments),
    "AGENTS": lambda view: view.agents,
    "HEARTBEAT": lambda view: f"{age(view.heartbeat_age)} ago",
    "UP": lambda view: age(view.uptime),
    "VERSION": lambda view: view.version,
    "SCANNED": lambda view: view.scanned,
    "PLANNED": lambda view: view.planned,
    "DISPATCHED": lambda view: view.dispatched,
    "RECORDED": lambda view: view.recorded,
    "LAST SCAN": lambda view: _last_scan(view),
    "HOST": lambda view: view.host,
    "URL": lambda view: view.url,
}


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "mainspring servers                   those with a lease, and which one leads",
        "mainspring servers --all             also those that ended long ago",
        "mainspring servers --json | jq '.[] | select(.leadership).name'",
        "mainspring servers show alpha        all that is known of one",
    ),
)
@click.option("--all", "everything", is_flag=True, help="Also servers that ended more than an hour ago.")
@click.pass_context
def servers(context: click.Context, everything: bool) -> None:
    """See the servers that plan, dispatch and record, and which one leads.

    A terminal shows as many columns as it has room for; `show` has all about one server, and --json about all.
    """
    if context.invoked_subcommand is None:
        _list_servers(everything)


@with_client
async def _list_servers(client: Client, everything: bool) -> None:
    found = await client.every(operations.cluster.servers, everything=everything)
    if print_if_json(found):
        return
    table(
        list(_COLUMNS),
        [[show(view) for show in _COLUMNS.values()] for view in found],
        room=Room(cut=("NAME", "HOST", "URL"), drop=list(_COLUMNS)[:3:-1]),
    )
    _warn(found)


def _warn(found: list[ServerView]) -> None:
    """Report what an operator should look at."""
    if not any(view.status == "active" for view in found):
        note("no server is active, and nothing is dispatched; start one with `mainspring server`, `worker` or `up`")
    elif not any(view.leadership for view in found):
        note("there is no leader: one is being elected, and until then nobody takes over from the dead")
    for view in found:
        if view.status == "silent":
            silence = age(view.heartbeat_age)
            note(f"{view.name} ({short(view.id)}) has not been heard of for {silence}, and its lease is over")


@servers.operation("show", "mainspring servers show alpha", "mainspring servers show 3f2a91c0 --json")
@click.argument("name", type=name_of("server"), metavar="NAME|ID")
async def show_server(client: Client, name: str) -> None:
    """Show all that is known of one server: by its name, or by the beginning of its id."""
    found = await client.call(operations.cluster.server, name)
    if print_if_json(found):
        return
    fields(_fields(found))


def _fields(found: ServerDetail) -> dict[str, Any]:
    view = found.server
    leads = view.leadership
    return {
        "name": view.name,
        "id": str(view.id),
        "status": view.status,
        "leader": leads and f"term {leads.term}, since {cell(leads.since)}, lease until {cell(leads.lease_until)}",
        "segments": f"{len(view.segments)}: {ranges(view.segments)}" if view.segments else "none",
        "open pools": "\n".join(_pool(pool) for pool in found.shared_pools),
        "agents": ", ".join(agent.name for agent in found.agents) or "none",
        **pick(view, "scanned", "planned", "dispatched", "recorded"),
        "last scan": _last_scan(view),
        "last claim": _last_claim(view),
        "heartbeat": f"{age(view.heartbeat_age)} ago",
        "lease until": view.lease_until,
        "started": view.started_at,
        "up": age(view.uptime),
        "ended": view.ended_at,
        **pick(view, "version", "host", "url", "api_url"),
        "application": view.app,
        "incarnation": view.incarnation,
    }


def _pool(pool: SharedPool) -> str:
    """What its tasks require."""
    asked = pool.requirements
    wanted = [f"{name}={value}" for name, value in asked.labels.items()]
    wanted += [f"{name}={amount:g}" for name, amount in asked.placement.needs.items()]
    return f"{pool.pool}: {', '.join(wanted) or 'any agent'}"


def _last_scan(view: ServerView) -> str:
    if view.scan_age is None:
        return ""
    took = "" if view.scan_seconds is None else f", in {view.scan_seconds * 1000:.1f} ms"
    return f"{age(view.scan_age)} ago{took}"


def _last_claim(view: ServerView) -> str:
    return "" if view.claim_seconds is None else f"in {view.claim_seconds * 1000:.1f} ms"


def short(id: Any) -> str:
    """The part of an id that people read and type."""
    return str(id)[:8]
