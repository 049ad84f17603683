"""Limits of jobs that code defines: what only its signature and its schedules can tell about them.

Next: sdk/app.py; the rules are in model/limits/define_limits.py
"""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.daemons.daemons import limits_of_a_daemon
from mainspring.model.tasks.jobs import Definition
from mainspring.sdk.signature import Signature


def bind_limits(definition: Definition, signature: Signature) -> Definition:
    """The definition with the defaults of those parameters that its concurrency key names."""
    gate = definition.gate
    if gate is None:
        return definition
    for argument in gate.arguments:
        signature.check_parameter(argument, field="concurrency_key")
    return replace(definition, gate=replace(gate, defaults=signature.defaults(gate.arguments)))


def check_limits(job: str, definition: Definition, *, is_daemon: bool) -> None:
    """A daemon has as many runs as replicas, all the time."""
    if is_daemon and definition.gate is not None:
        raise limits_of_a_daemon(job)
