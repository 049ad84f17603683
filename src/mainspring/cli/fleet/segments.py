"""`mainspring segments [--each | --events]`

Next: operations/condition/cluster.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.fleet.servers import short
from mainspring.cli.layout import Room
from mainspring.cli.parse import Whole
from mainspring.cli.render import counted, note, print_if_json, table
from mainspring.model.placement.segments import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.store.cluster.cluster_views import SegmentView

_LAST = 20  # moves that are shown if no number is given
_LOAD = ("schedules", "due", "waiting", "armed", "running")


@operation(
    "segments",
    "mainspring segments                  the owners, and what is in their segments",
    "mainspring segments --each           a line for each of the 100",
    "mainspring segments --events 50      how they changed hands",
    "mainspring segments --json | jq '.[] | select(.problem)'",
)
@click.option("--each", is_flag=True, help="A line for each segment, not for each owner.")
@click.option(
    "--events",
    type=Whole(1, 500),
    is_flag=False,
    flag_value=_LAST,
    metavar="[N]",
    help=f"The last N moves of segments, the newest first; {_LAST}.",
)
async def segments(client: Client, each: bool, events: int | None) -> None:
    """Show which server plans and dispatches which share of the work.

    Schedules and tasks lie in 100 segments, and each segment belongs to one server at a time.
    """
    if each and events is not None:
        raise click.UsageError("--each and --events: give one of them, not both")
    if events is not None:
        await _show_moves(client, events)
        return
    found = await client.call(operations.cluster.segments)
    if print_if_json(found):
        return
    _show_each(found) if each else _show_owners(found)
    if any(view.is_estimated for view in found):
        note("there are too many tasks or schedules to count each time: these are estimates")
    _warn(found)


def _show_each(found: list[SegmentView]) -> None:
    table(
        ["SEGMENT", "OWNER", "ID", "STATUS", "EPOCH", "SINCE", *map(str.upper, _LOAD)],
        [[view.id, *_owner(view), view.epoch, view.since, *_load([view])] for view in found],
        room=Room(cut=("OWNER",), drop=("EPOCH", "ID", "SINCE", "ARMED")),
    )


def _show_owners(found: list[SegmentView]) -> None:
    """Segments without an owner come first."""
    owners: dict[Any, list[SegmentView]] = {}
    for view in sorted(found, key=lambda view: (view.owner is not None, view.owner_name, str(view.owner))):
        owners.setdefault(view.owner, []).append(view)
    table(
        ["OWNER", "ID", "STATUS", "OWNS", "SEGMENTS", *map(str.upper, _LOAD)],
        [
            [*_owner(views[0]), len(views), ranges(view.id for view in views), *_load(views)]
            for views in owners.values()
        ],
        room=Room(cut=("OWNER",), fold=("SEGMENTS",), drop=("ID", "ARMED")),
    )


def _owner(view: SegmentView) -> list[Any]:
    """Name, id and status."""
    return ["nobody", "", "unowned"] if view.owner is None else [view.owner_name, short(view.owner), view.owner_status]


def _load(views: Iterable[SegmentView]) -> list[int]:
    return [sum(getattr(view, figure) for view in views) for figure in _LOAD]


def _warn(found: list[SegmentView]) -> None:
    """Report where nothing is planned or dispatched, and why."""
    problems: dict[str, list[int]] = {}
    for view in found:
        if view.problem is not None:
            problems.setdefault(view.problem, []).append(view.id)
    for problem, ids in problems.items():
        note(f"nobody works on {counted(len(ids), 'segment')} ({ranges(ids)}): {problem}")


async def _show_moves(client: Client, limit: int) -> None:
    found = (await client.call(operations.cluster.moves, limit)).items
    if print_if_json(found):
        return
    table(
        ["WHEN", "MOVED", "SEGMENTS", "FROM", "TO", "WHY", "TERM"],
        [
            [
                *(move.at, len(move.segments), ranges(move.segments)),
                *(_called(move.old_owner, move.old_name), _called(move.new_owner, move.new_name)),
                *(move.reason, move.term),
            ]
            for move in found
        ],
        empty="no segment has changed hands yet",
        room=Room(cut=("FROM", "TO"), fold=("SEGMENTS", "WHY"), drop=("TERM", "MOVED")),
    )


def _called(id: Any, name: str | None) -> str:
    return "nobody" if id is None else f"{name or 'forgotten'} {short(id)}"
