"""`mainspring autoscale`

Next: operations/condition/autoscale.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.parse import Whole
from mainspring.cli.render import age, cell, counted, fields, note, print_if_json
from mainspring.model.words.durations import seconds

if TYPE_CHECKING:
    from mainspring.operations.condition.autoscale import Autoscale


@operation(
    "autoscale",
    "mainspring autoscale",
    "mainspring autoscale --label gpu=a100 --slots-per-agent 2 --horizon 15m",
    "mainspring autoscale --label '!gpu' --json | jq .wanted_agents",
)
@click.option(
    "--label", "labels", metavar="NAME=VALUE", multiple=True, help="Only work that requires it; !NAME: without."
)
@click.option("--app", metavar="NAME", help="Only work of this application.")
@click.option(
    "--slots-per-agent", type=Whole(1, 100_000), default=20, show_default=True, help="Slots that each agent has."
)
@click.option(
    "--target-wait", metavar="DURATION", default="30s", show_default=True, help="A due task may wait so long."
)
@click.option(
    "--horizon", metavar="DURATION", default="5m", show_default=True, help="Count planned starts so far ahead."
)
async def autoscale(
    client: Client, labels: tuple[str, ...], app: str | None, slots_per_agent: int, target_wait: str, horizon: str
) -> None:
    """Show how many slots and agents the work asks for, now and soon, and why."""
    found = await client.call(
        operations.autoscale.autoscale,
        labels=labels,
        app=app,
        slots_per_agent=slots_per_agent,
        target_wait=timedelta(seconds=seconds(target_wait, field="target_wait")),
        horizon=timedelta(seconds=seconds(horizon, field="horizon")),
    )
    if not print_if_json(found):
        _tell(found)


def _tell(found: Autoscale) -> None:
    at_once = "less than one" if found.planned_peak < 0.95 else f"{found.planned_peak:.3g}"
    peak = f", {at_once} at once at {cell(found.planned_peak_at)}" if found.planned_peak_at else ""
    duration = "not known" if found.mean_duration is None else f"{found.mean_duration:.3g} s on average"
    if found.mean_duration is not None and found.mean_duration < 0.001:
        duration = "less than a millisecond on average"
    fields(
        {
            "wanted": f"{counted(found.wanted_agents, 'agent')}, {counted(found.wanted_slots, 'slot')}",
            "why": found.why,
            "there are": f"{counted(found.agents, 'agent')}; "
            f"{counted(found.slots_busy, 'slot')} busy, {found.slots_free} free",
            "due": f"{found.due}, the oldest for {age(found.oldest_age)}"
            if found.oldest_age is not None
            else found.due,
            "arrive": f"{found.arrival_rate:.3g} a second",
            "end": f"{found.finish_rate:.3g} a second",
            "duration": duration,
            "planned": f"{found.planned_starts}{peak}",
        }
    )
    if found.is_estimated:
        note("estimated: there are too many tasks, or schedules, to count each of them")
