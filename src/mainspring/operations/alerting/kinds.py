"""The function of each kind of alert rule. Most of them are in store/alerts/kinds/.

A kind that is not here yet finds nothing. To add one: write `async def NAME(conn, look: Look[ITS_PARAMETERS]) -> Found`
(model/alerts/findings.py has the contract) and a line in FIND.
Next: server/alerting/evaluator.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mainspring.model.alerts.findings import Found, Look
from mainspring.operations.alerting import scaling
from mainspring.store.alerts.kinds import daemons, fleet, queues, schedules, tasks
from mainspring.store.postgres.connection import Connection

Find = Callable[[Connection, Look[Any]], Awaitable[Found]]

FIND: dict[str, Find] = {
    "failed": tasks.failed,
    "failing": tasks.failing,
    "late": tasks.late,
    "missed": schedules.missed,
    "too_long": tasks.too_long,
    "expired": tasks.expired,
    "queue_age": queues.queue_age,
    "queue_full": queues.queue_full,
    "unrunnable": queues.unrunnable,
    "no_agents": fleet.no_agents,
    "agent_lost": fleet.agent_lost,
    "clock_skew": fleet.clock_skew,
    "server_dead": fleet.server_dead,
    "daemon_down": daemons.daemon_down,
    "schedule_problem": fleet.schedule_problem,
    "wanted_agents": scaling.wanted_agents,
    "slo_burn": schedules.slo_burn,
}
