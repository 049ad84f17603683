"""wanted_agents: the kind of alert rule for who scales agents without Kubernetes.

Next: operations/condition/autoscale.py
"""

from __future__ import annotations

from datetime import timedelta

from mainspring.model.alerts.findings import Finding, Found, Look
from mainspring.model.alerts.kinds import WantedAgents
from mainspring.operations.actors import this_user
from mainspring.operations.condition.autoscale import autoscale
from mainspring.store.postgres.connection import Connection


async def wanted_agents(conn: Connection, look: Look[WantedAgents]) -> Found:
    """More slots are wanted than the connected agents have."""
    given = look.parameters
    found = await autoscale(
        conn,
        this_user(),
        labels=[f"{name}={value}" for name, value in given.labels.items()],
        app=given.app,
        slots_per_agent=given.slots_per_agent,
        target_wait=timedelta(seconds=given.target_wait),
        horizon=timedelta(seconds=given.horizon),
    )
    there = found.slots_busy + found.slots_free
    missing = -(-(found.wanted_slots - there) // given.slots_per_agent)
    if missing <= 0:
        return Found([])
    more = "1 more agent" if missing == 1 else f"{missing} more agents"
    message = (
        f"{more} of {given.slots_per_agent} slots wanted: {found.wanted_slots} slots are wanted and {there} are "
        f"connected; {found.why}"
    )
    details = {
        "wanted_agents": found.wanted_agents,
        "wanted_slots": found.wanted_slots,
        "agents": found.agents,
        "slots": there,
        "missing_agents": missing,
    }
    return Found([Finding(subject="cluster", message=message, since=look.until, details=details)])
