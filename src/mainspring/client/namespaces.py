"""Namespaces: `client.tasks.show(17)` for `client.call(operations.tasks.show, 17)`, typed by the operation itself.

Each line names an operation; its parameters and what it returns are those of its function. A test compares the lines
with the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Generic

from mainspring.api.handlers import session
from mainspring.client.interface import Operation, Operations, P, R
from mainspring.operations import access, settings
from mainspring.operations.alerting import alert_rules, alerts, channels, mutes
from mainspring.operations.condition import autoscale, cluster, failing, fleet, health
from mainspring.operations.definitions import calendars, daemons, holds, jobs, rules, schedules, secrets
from mainspring.operations.manifests import manifest
from mainspring.operations.planning import backfill, coming, fired, forecast, herds, plan_times, skips, timeline
from mainspring.operations.work import batches, flows, output, tasks


class Named(Generic[P, R]):
    """An operation as a method of a namespace."""

    def __init__(self, operation: Operation[P, R]) -> None:
        self.operation = operation
        self.name = operation.__name__  # of the operation, until it is that of the method
        self.__doc__ = operation.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"{owner.__name__}.{name}"

    def __get__(self, namespace: Namespace | None, owner: object = None) -> Callable[P, Awaitable[R]]:
        operation: Any = self.operation

        async def function(self: Namespace, *args: Any, **kwargs: Any) -> Any:
            return await self.client.call(operation, *args, **kwargs)

        async def method(*args: Any, **kwargs: Any) -> Any:
            assert namespace is not None
            return await namespace.client.call(operation, *args, **kwargs)

        made: Callable[P, Awaitable[R]]
        made = described(function, self, has_self=True) if namespace is None else described(method, self)
        return made


def described(method: Any, named: Named[Any, Any], *, has_self: bool = False) -> Any:
    """A function with the name, the parameters and the description of the operation that it calls."""
    method.__qualname__, method.__name__ = named.name, named.name.rpartition(".")[2]
    method.__module__, method.__doc__ = named.operation.__module__, named.operation.__doc__
    method.__signature__ = _signature(named.operation, has_self)
    return method


@cache
def _signature(operation: Any, has_self: bool) -> inspect.Signature:
    """That of the operation without the connection and the actor, which a client has."""
    signature = inspect.signature(operation)
    _, _, *parameters = signature.parameters.values()
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] if has_self else []
    return signature.replace(parameters=[*own, *parameters])


class Namespace:
    def __init__(self, client: Operations) -> None:
        self.client = client


class Tasks(Namespace):
    submit = Named(tasks.submit)
    list = Named(tasks.listing)
    count = Named(tasks.count)
    show = Named(tasks.show)
    status = Named(tasks.status)
    submit_flow = Named(flows.submit)
    attempts = Named(tasks.attempts)
    children = Named(tasks.children)
    flow = Named(flows.of_task)
    change = Named(tasks.change)
    cancel = Named(tasks.cancel)
    skip = Named(tasks.skip)
    retry = Named(tasks.retry)
    pause = Named(tasks.pause)
    resume = Named(tasks.resume)
    restart = Named(tasks.restart)
    act = Named(tasks.act)
    output = Named(output.read)


class Batches(Namespace):
    create = Named(batches.create)
    list = Named(batches.listing)
    show = Named(batches.show)
    flow = Named(flows.of_batch)
    close = Named(batches.close)
    cancel = Named(batches.cancel)
    retry = Named(batches.retry)


class Jobs(Namespace):
    list = Named(jobs.listing)
    show = Named(jobs.show)
    put = Named(jobs.put)
    edit = Named(jobs.edit)
    delete = Named(jobs.delete)
    failing = Named(failing.failing)
    hold = Named(holds.hold_job)
    release = Named(holds.release_job)


class Schedules(Namespace):
    list = Named(schedules.listing)
    count = Named(schedules.count)
    show = Named(schedules.show)
    put = Named(schedules.put)
    edit = Named(schedules.edit)
    delete = Named(schedules.delete)
    enable = Named(schedules.enable)
    disable = Named(schedules.disable)
    run = Named(schedules.run)
    skip = Named(skips.skip)
    unskip = Named(skips.unskip)
    act = Named(schedules.act)
    fires = Named(plan_times.fires)
    explain = Named(plan_times.explain)
    slo = Named(plan_times.slo)
    next = Named(plan_times.next_times)
    preview = Named(plan_times.preview)
    check = Named(plan_times.check)
    backfill = Named(backfill.step)
    forecast = Named(forecast.forecast)
    cell = Named(herds.cell)
    spread = Named(herds.spread)
    fired = Named(fired.fired)
    timeline = Named(timeline.show)
    next_fires = Named(coming.next_fires)
    missed = Named(coming.missed)
    strips = Named(coming.strips)


class Manifests(Namespace):
    plan = Named(manifest.plan)
    apply = Named(manifest.apply)
    export = Named(manifest.export)


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


class Rules(Namespace):
    list = Named(rules.listing)
    show = Named(rules.show)
    put = Named(rules.put)
    delete = Named(rules.delete)
    explain = Named(rules.explain)


class Secrets(Namespace):
    list = Named(secrets.listing)
    show = Named(secrets.show)
    put = Named(secrets.put)
    delete = Named(secrets.delete)
    rotate = Named(secrets.rotate)


class Agents(Namespace):
    list = Named(fleet.listing)
    show = Named(fleet.show)
    armed = Named(fleet.armed)
    all_armed = Named(fleet.armed_fleet)
    sessions = Named(fleet.sessions)
    drain = Named(fleet.drain)
    undrain = Named(fleet.undrain)


class Cluster(Namespace):
    health = Named(health.health)
    servers = Named(cluster.servers)
    server = Named(cluster.server)
    segments = Named(cluster.segments)
    moves = Named(cluster.moves)
    postgresql = Named(cluster.postgresql)
    stats = Named(cluster.stats)
    figures = Named(cluster.figures)
    punctuality = Named(cluster.punctuality)
    job_figures = Named(cluster.job_figures)
    queues = Named(cluster.queues)
    autoscale = Named(autoscale.autoscale)
    hold = Named(holds.hold)
    release = Named(holds.release)
    holds = Named(holds.show)


class Settings(Namespace):
    show = Named(settings.show)
    edit = Named(settings.edit)


class Alerts(Namespace):
    list = Named(alerts.listing)
    show = Named(alerts.show)
    deliveries = Named(alerts.list_deliveries)
    delivery = Named(alerts.show_delivery)
    kinds = Named(alert_rules.kinds)
    rules = Named(alert_rules.listing)
    show_rule = Named(alert_rules.show)
    put_rule = Named(alert_rules.put)
    edit_rule = Named(alert_rules.edit)
    delete_rule = Named(alert_rules.delete)
    test_rule = Named(alert_rules.evaluate)
    mute = Named(mutes.create)
    unmute = Named(mutes.delete)
    mutes = Named(mutes.listing)


class Channels(Namespace):
    list = Named(channels.listing)
    show = Named(channels.show)
    put = Named(channels.put)
    edit = Named(channels.edit)
    delete = Named(channels.delete)
    test = Named(channels.send_test)


class Access(Namespace):
    session = Named(session.show)
    tokens = Named(access.list_tokens)
    create_token = Named(access.create_token)
    revoke_token = Named(access.revoke_token)
    create_login = Named(access.create_login)
    sessions = Named(access.list_sessions)
    revoke_session = Named(access.revoke_session)
    audit = Named(access.list_audit)
