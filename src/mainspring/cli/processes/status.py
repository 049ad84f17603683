"""`mainspring migrate` and `mainspring stats`

Next: operations/condition/cluster.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, command, operation, run_async, shared
from mainspring.cli.layout import Room
from mainspring.cli.render import cell, counted, fields, note, print_if_json, table

if TYPE_CHECKING:
    from mainspring.store.cluster.cluster_views import Leader
    from mainspring.store.figures.stats import BlockedView, LatenessView, Stats


@command(
    "migrate",
    "mainspring migrate --dsn postgresql://scheduler@db/shop --plan",
    "mainspring migrate --dsn postgresql://scheduler@db/shop",
)
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be applied, and change nothing.")
@run_async
async def migrate(only_plan: bool) -> None:
    """Bring the database's schema up to date."""
    from mainspring.compose.stores import open_database
    from mainspring.config import load
    from mainspring.store.postgres import migrate as migrations

    async with open_database(load(shared().of_database()), prepare=False) as database:
        found = await (migrations.plan(database) if only_plan else migrations.migrate(database))
    told = [{"number": migration.number, "name": migration.name} for migration in found]
    if print_if_json({"planned" if only_plan else "applied": told}):
        return
    for migration in found:
        click.echo(f"{migration.number:04}\t{migration.name}")
    if not found:
        note("the schema is up to date")
    else:
        note(f"{len(found)} to apply; run it without --plan" if only_plan else f"{len(found)} applied")


@operation("stats", "mainspring stats", "mainspring stats --json | jq .live.pending")
async def stats(client: Client) -> None:
    """Show how many tasks there are in each state, and the agents that run them."""
    found = await client.call(operations.cluster.stats)
    if print_if_json(found):
        return
    fields(
        {
            "live": _counts(found.live) + (f" (estimated, {cell(found.counted_at)})" if found.is_estimated else ""),
            "last hour": _counts(found.last_hour) + (f"; {found.retried} retried" if found.retried else ""),
            "last minute": f"{found.last_minute.ended_per_second:.3g} ended a second"
            + ("" if (now := found.last_minute.lateness_ms) is None else f"; {_lateness(now)} late"),
            "lateness": "none" if (late := found.lateness_ms) is None else _lateness(late),
            "blocked": _blocked(found.blocked),
            "servers": _counts(found.servers),
            "leader": "none" if found.leader is None else _leader(found.leader),
            "due": _due(found),
            "arrivals": "not known yet" if found.arrivals is None else f"{found.arrivals:.3g} a second",
            "agents": f"{found.agents_total}, {found.agents_idle} idle",
        }
    )
    click.echo()
    table(
        ["AGENT", "SESSION", "SLOTS", "HOLDS"],
        [[agent.name, agent.session, agent.slots, agent.holds] for agent in found.agents],
        empty="no agent runs; start one with `mainspring up`",
        room=Room(cut=("AGENT",)),
    )
    _show_maintenance(found)
    for waiting in found.waiting:
        note(f"{counted(waiting.tasks, 'task')} of {', '.join(waiting.jobs)} cannot start: {waiting.reason}")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _due(found: Stats) -> str:
    """Tasks whose time has come and that no agent holds."""
    return f"{found.due}, the oldest since {cell(found.oldest_due)}" if found.due else "none"


def _lateness(late: LatenessView) -> str:
    return f"p50 {late.p50:g} ms, p99 {late.p99:g} ms, max {late.max:g} ms"


def _blocked(loops: BlockedView) -> str:
    """Event loops that blocking code stopped for more than a second."""
    return f"{counted(loops.times, 'time')}, {loops.seconds:g} s" if loops.times else "never"


def _leader(leader: Leader) -> str:
    return f"{leader.name}, term {leader.term}, since {cell(leader.since)}, lease until {cell(leader.lease_until)}"


def _show_maintenance(found: Stats) -> None:
    """The outcome of the maintenance chores, and PostgreSQL's counts of the hot tables."""
    click.echo()
    table(
        ["MAINTENANCE", "RUNS", "ROWS", "FAILURES", "LAST", "MS", "ERROR"],
        [
            [c.name, c.runs, c.rows, c.failures, c.last_at, c.last_seconds * 1000, c.last_error]
            for c in found.maintenance
        ],
        empty="no maintenance yet; a server does it once a minute",
        room=Room(fold=("ERROR",), drop=("ROWS", "ERROR")),
    )
    click.echo()
    table(
        ["TABLE", "LIVE", "DEAD", "IN PAGE %", "VACUUMED", "ANALYZED"],
        [[t.table, t.live, t.dead, t.in_page and t.in_page * 100, t.vacuumed_at, t.analyzed_at] for t in found.tables],
        room=Room(cut=("TABLE",), drop=("IN PAGE %", "ANALYZED")),
    )
