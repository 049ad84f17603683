"""Namespaces: `client.tasks.show(17)` for `client.call(operations.tasks.show, 17)`, typed by the operation itself.

Each line names an operation; its parameters and what it returns are those of its function. A test compares the lines
with the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic

from mainspring.client.interface import Operation, Operations, P, R
from mainspring.operations import access, cluster, fleet, settings, tasks, timeline


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
    change = Named(tasks.change)
    act = Named(tasks.act)
    show = Named(tasks.show)
    cancel = Named(tasks.cancel)
    retry = Named(tasks.retry)
    pause = Named(tasks.pause)
    resume = Named(tasks.resume)
    restart = Named(tasks.restart)


class Agents(Namespace):
    list = Named(fleet.listing)
    show = Named(fleet.show)
    armed = Named(fleet.armed)
    drain = Named(fleet.drain)
    undrain = Named(fleet.undrain)


class Cluster(Namespace):
    servers = Named(cluster.servers)
    server = Named(cluster.server)
    segments = Named(cluster.segments)
    moves = Named(cluster.moves)
    timeline = Named(timeline.show)


class Settings(Namespace):
    show = Named(settings.show)
    edit = Named(settings.edit)


class Access(Namespace):
    tokens = Named(access.list_tokens)
    create_token = Named(access.create_token)
    revoke_token = Named(access.revoke_token)
    create_login = Named(access.create_login)
    sessions = Named(access.list_sessions)
    revoke_session = Named(access.revoke_session)
    audit = Named(access.list_audit)
