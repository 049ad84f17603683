"""The filters of `task list`, and of `task cancel`, `kill` and `retry` for all that match.

Next: operations/requests/task_filters.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mainspring.cli.base import with_options
from mainspring.cli.parse import STATE, name_of, pairs, since, task_id

F = TypeVar("F", bound=Callable[..., Any])

_WHEN = "An instant with an offset, or so long ago, as 2h."

# Option → the filter of operations/requests/task_filters.py.
_INSTANTS = {
    "since": "created_after",
    "until": "created_before",
    "due_after": "run_after",
    "due_before": "run_before",
    "finished_after": "finished_after",
    "finished_before": "finished_before",
}

_filter_options = with_options(
    click.option("--job", type=name_of("job"), multiple=True, metavar="NAME", help="Of this job; NAME may hold `*`."),
    click.option("--schedule", type=name_of("schedule"), multiple=True, metavar="NAME", help="Of this schedule."),
    click.option("--state", type=STATE, multiple=True, metavar="STATE", help="In this state."),
    click.option("--agent", type=name_of("agent"), multiple=True, metavar="NAME", help="That this agent has or ended."),
    click.option("--parent", type=task_id, multiple=True, metavar="ID", help="Runs of this broadcast."),
    click.option("--batch", type=task_id, multiple=True, metavar="ID", help="Of this batch."),
    click.option("--priority", multiple=True, metavar="LEVEL", help="low, normal, high, critical, or 0 to 9."),
    click.option("--key", multiple=True, help="Submitted with this key."),
    click.option("--concurrency-key", multiple=True, metavar="TEXT", help="With this concurrency key."),
    click.option("--scope", multiple=True, metavar="NAME", help="Of this scope of their schedule."),
    click.option("--tag", multiple=True, metavar="WORD", help="With this tag."),
    click.option("--error-code", multiple=True, metavar="CODE", help="That ended with this error."),
    click.option("--late-over", metavar="DURATION", help="That started so much later than due."),
    click.option("--arg", multiple=True, metavar="PATH=VALUE", help="With this argument; dots lead into objects."),
    click.option("--since", metavar="WHEN", help=f"Created since then. {_WHEN}"),
    click.option("--until", metavar="WHEN", help="Created before then."),
    click.option("--due-after", metavar="WHEN", help="Due since then."),
    click.option("--due-before", metavar="WHEN", help="Due before then."),
    click.option("--finished-after", metavar="WHEN", help="Ended since then."),
    click.option("--finished-before", metavar="WHEN", help="Ended before then."),
)


def filter_options(command: F) -> F:
    """Options that a command gets as keywords, and passes on to `given_filters`."""
    return _filter_options(command)


def given_filters(options: dict[str, Any]) -> dict[str, Any]:
    """What was given of these options, by the names and as the types of the operation's parameters."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for option, filter in _INSTANTS.items():
        if option in given:
            given[filter] = since(given.pop(option), field=option.replace("_", "-"))
    if "arg" in given:
        given["args"] = pairs(given.pop("arg"), field="arg")
    return given
