"""Kinds of alert rules: for each its name, its parameters with their defaults, and what it is about.

A duration is a float of seconds, marked with `Seconds`: the author of a rule may give text ("10m").
Next: operations/alerting/kinds.py, which has the function of each kind
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0, le=10 * 365 * 86400, extra={"duration": True})]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of kinds that have none."""


class Failing(Parameters, frozen=True):
    count: Count = 3  # tasks in a row


class Late(Parameters, frozen=True):
    after: Seconds = 60.0  # a start is late so long after its instant
    count: Count = 1  # late starts
    window: Seconds = 300.0  # within so long


class After(Parameters, frozen=True):
    after: Seconds = 300.0


class TooLong(Parameters, frozen=True):
    after: Seconds = 3600.0  # that an attempt runs


class Missed(Parameters, frozen=True):
    grace: Seconds = 60.0  # that a start may come after its plan time


class Gone(Parameters, frozen=True):
    forget: Seconds = 3600.0  # after so long what is gone is no longer expected back


class ClockSkew(Parameters, frozen=True):
    limit: Seconds = 1.0  # that a clock may be wrong


class SloBurn(Parameters, frozen=True):
    """Burn rates of the error budget, each over a long and a short window."""

    fast: float = 14.4  # over 1 h and 5 min
    slow: float = 6.0  # over 6 h and 30 min


class WantedAgents(Parameters, frozen=True):
    labels: dict[str, str] = {}  # of the agents
    app: str | None = None
    slots_per_agent: Count = 20
    target_wait: Seconds = 30.0
    horizon: Seconds = 300.0


class Kind(NamedTuple):
    about: str  # what the names of a rule select: jobs, schedules, agents, servers, daemons; "" where there are none
    parameters: type[Parameters]
    is_event: bool
    help: str


def _condition(about: str, help: str, parameters: type[Parameters] = Parameters) -> Kind:
    return Kind(about, parameters, False, help)


def _event(about: str, help: str, parameters: type[Parameters] = Parameters) -> Kind:
    return Kind(about, parameters, True, help)


KINDS: dict[str, Kind] = {
    "failed": _event("jobs", "A task failed, timed out or was lost, and is not tried again."),
    "failing": _condition("jobs", "The last tasks of a job failed, so many in a row.", Failing),
    "late": _condition("jobs", "Tasks started later than they should.", Late),
    "missed": _event("schedules", "A plan time passed, and its grace, without a start.", Missed),
    "too_long": _condition("jobs", "An attempt runs for longer than it should.", TooLong),
    "expired": _event("jobs", "A task did not start before its deadline, and was skipped."),
    "queue_age": _condition("jobs", "The oldest due task of a job waits for longer than it should.", After),
    "queue_full": _condition("jobs", "The queue of a job is at its bound: submissions are refused."),
    "unrunnable": _condition("jobs", "Tasks are due that no connected agent can run."),
    "no_agents": _condition("", "No agent is connected: nothing can run."),
    "agent_lost": _condition("agents", "An agent's lease ran out, and it has not come back.", Gone),
    "clock_skew": _condition("agents", "The clock of an agent is wrong.", ClockSkew),
    "server_dead": _condition("servers", "A server's lease ran out, and it has not come back.", Gone),
    "daemon_down": _condition("daemons", "A daemon has fewer healthy replicas than it should."),
    "schedule_problem": _condition("schedules", "A schedule cannot be planned."),
    "slo_burn": _condition("schedules", "A schedule uses up the error budget of its SLO too fast.", SloBurn),
    "wanted_agents": _condition("", "More agents are wanted than are connected.", WantedAgents),
}
