"""What people and programs can ask for, once. The command line and the HTTP API call it.

An operation takes a connection, the actor who asks, and plain arguments; it checks them, acts in one transaction and
returns a view. It knows neither click nor HTTP, reads no configuration and prints nothing. What takes longer than one
transaction (following output, waiting for a task) takes `Connections` and holds none while it waits.

    definitions/   jobs, schedules, calendars, daemons, priority rules; holds
    work/          tasks, what they print, batches, flows
    planning/      plan times: what was decided, what comes, filling in
    manifests/     all of a set at once: plan, apply, export
    condition/     servers, agents, figures, health
    alerting/      alerts, their rules and channels
    requests/      what callers send, checked
    parts/         what several operations share

Imports store/ and model/. Its modules are loaded on first use, so that `mainspring --help` does not pay for them.
"""

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from mainspring.store.postgres.connection import Connection

if TYPE_CHECKING:
    from mainspring.operations import access, actors, pages, settings
    from mainspring.operations.alerting import alert_rules, alerts, channels, mutes
    from mainspring.operations.condition import autoscale, cluster, fleet, health
    from mainspring.operations.definitions import calendars, daemons, holds, jobs, rules, schedules, secrets
    from mainspring.operations.manifests import manifest
    from mainspring.operations.planning import backfill, fired, forecast, herds, plan_times, skips, timeline
    from mainspring.operations.work import batches, flows, output, tasks, waiting

__all__ = [
    "Connections",
    "access",
    "actors",
    "alert_rules",
    "alerts",
    "autoscale",
    "backfill",
    "batches",
    "calendars",
    "channels",
    "cluster",
    "daemons",
    "fired",
    "fleet",
    "flows",
    "forecast",
    "health",
    "herds",
    "holds",
    "jobs",
    "manifest",
    "mutes",
    "output",
    "pages",
    "plan_times",
    "rules",
    "schedules",
    "secrets",
    "settings",
    "skips",
    "tasks",
    "timeline",
    "waiting",
]


_ROOMS = {
    **dict.fromkeys(("backfill", "fired", "forecast", "herds", "plan_times", "skips", "timeline"), "planning."),
    **dict.fromkeys(("alert_rules", "alerts", "channels", "mutes"), "alerting."),
    **dict.fromkeys(("autoscale", "cluster", "fleet", "health"), "condition."),
    **dict.fromkeys(("calendars", "daemons", "holds", "jobs", "rules", "schedules", "secrets"), "definitions."),
    "manifest": "manifests.",
    **dict.fromkeys(("batches", "flows", "output", "tasks", "waiting"), "work."),
}


class Connections(Protocol):
    """Where an operation gets its connections from: a `Database`, or the client of the command line."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]: ...


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{_ROOMS.get(name, '')}{name}")
