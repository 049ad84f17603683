"""What people and programs can ask for, once. The command line and the HTTP API call it.

An operation takes a connection, the actor who asks, and plain arguments; it checks them, acts in one transaction and
returns a view. It knows neither click nor HTTP, reads no configuration and prints nothing. What takes longer than one
transaction (following output, waiting for a task) takes `Connections` and holds none while it waits.
Imports store/ and model/. Its modules are loaded on first use, so that `mainspring --help` does not pay for them.
"""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from mainspring.store.postgres.connection import Connection

if TYPE_CHECKING:
    from mainspring.operations import (
        access,
        actors,
        calendars,
        cluster,
        daemons,
        fleet,
        health,
        jobs,
        output,
        pages,
        schedules,
        settings,
        tasks,
        waiting,
    )
    from mainspring.operations.planning import backfill, forecast, plan_times, timeline

__all__ = [
    "Connections",
    "access",
    "actors",
    "backfill",
    "calendars",
    "cluster",
    "daemons",
    "fleet",
    "forecast",
    "health",
    "jobs",
    "output",
    "pages",
    "plan_times",
    "schedules",
    "settings",
    "tasks",
    "timeline",
    "waiting",
]


_ROOMS = {"backfill": "planning.", "forecast": "planning.", "plan_times": "planning.", "timeline": "planning."}


class Connections(Protocol):
    """Where an operation gets its connections from: a `Database`, or the client of the command line."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]: ...


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{_ROOMS.get(name, '')}{name}")
