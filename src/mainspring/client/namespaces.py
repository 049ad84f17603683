"""Namespaces: `client.tasks.show(17)` for `client.call(operations.tasks.show, 17)`, typed by the operation itself.

Each line names an operation; its parameters and what it returns are those of its function. A test compares the lines
with the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic

from mainspring.api.handlers import session
from mainspring.client.interface import Operation, Operations, P, R
from mainspring.operations import (
    access,
    calendars,
    cluster,
    daemons,
    fleet,
    health,
    jobs,
    output,
    schedules,
    settings,
    tasks,
)
from mainspring.operations.planning import backfill, forecast, plan_times, timeline


class Named(Generic[P, R]):
    """An operation as a method of a namespace."""

    def __init__(self, operation: Operation[P, R]) -> None:
        self.operation = operation
        self.__doc__ = operation.__doc__

    def __get__(self, namespace: Namespace, owner: object = None) -> Callable[P, Awaitable[R]]:
        call: Any = namespace.client.call
        return partial(call, self.operation)


class Namespace:
    def __init__(self, client: Operations) -> None:
        self.client = client


class Tasks(Namespace):
    submit = Named(tasks.submit)
    list = Named(tasks.listing)
    count = Named(tasks.count)
    show = Named(tasks.show)
    status = Named(tasks.status)
    change = Named(tasks.change)
    cancel = Named(tasks.cancel)
    retry = Named(tasks.retry)
    pause = Named(tasks.pause)
    resume = Named(tasks.resume)
    restart = Named(tasks.restart)
    act = Named(tasks.act)
    output = Named(output.read)


class Jobs(Namespace):
    list = Named(jobs.listing)
    show = Named(jobs.show)
    put = Named(jobs.put)
    edit = Named(jobs.edit)
    delete = Named(jobs.delete)


class Schedules(Namespace):
    list = Named(schedules.listing)
    show = Named(schedules.show)
    put = Named(schedules.put)
    edit = Named(schedules.edit)
    delete = Named(schedules.delete)
    enable = Named(schedules.enable)
    disable = Named(schedules.disable)
    run = Named(schedules.run)
    act = Named(schedules.act)
    fires = Named(plan_times.fires)
    explain = Named(plan_times.explain)
    next = Named(plan_times.next_times)
    preview = Named(plan_times.preview)
    check = Named(plan_times.check)
    backfill = Named(backfill.step)
    forecast = Named(forecast.forecast)
    timeline = Named(timeline.show)


class Calendars(Namespace):
    list = Named(calendars.listing)
    show = Named(calendars.show)
    put = Named(calendars.put)
    delete = Named(calendars.delete)


class Daemons(Namespace):
    list = Named(daemons.listing)
    show = Named(daemons.show)
    put = Named(daemons.put)
    delete = Named(daemons.delete)
    start = Named(daemons.start)
    stop = Named(daemons.stop)
    restart = Named(daemons.restart)
    scale = Named(daemons.scale)


class Agents(Namespace):
    list = Named(fleet.listing)
    show = Named(fleet.show)
    armed = Named(fleet.armed)
    drain = Named(fleet.drain)
    undrain = Named(fleet.undrain)


class Cluster(Namespace):
    health = Named(health.health)
    servers = Named(cluster.servers)
    server = Named(cluster.server)
    segments = Named(cluster.segments)
    moves = Named(cluster.moves)
    stats = Named(cluster.stats)
    figures = Named(cluster.figures)
    queues = Named(cluster.queues)


class Settings(Namespace):
    show = Named(settings.show)
    edit = Named(settings.edit)


class Access(Namespace):
    session = Named(session.show)
    tokens = Named(access.list_tokens)
    create_token = Named(access.create_token)
    revoke_token = Named(access.revoke_token)
    create_login = Named(access.create_login)
    sessions = Named(access.list_sessions)
    revoke_session = Named(access.revoke_session)
    audit = Named(access.list_audit)
