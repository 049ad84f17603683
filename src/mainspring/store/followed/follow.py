"""Follow: what is kept beside a schedule that is made or changed, by its policies.

Next: store/followed/slo.py
"""

from __future__ import annotations

from datetime import datetime

from mainspring.model.schedules.schedules import Policies
from mainspring.store.followed import pings, shift, slo
from mainspring.store.postgres.connection import Connection


async def follow(
    conn: Connection, schedule: int, policies: Policies, now: datetime, *, before: Policies | None = None
) -> None:
    """A schedule has these policies from now on; one that is not new had those `before`."""
    old = before or Policies()
    await shift.note(conn, policies)
    if policies.ping_url != old.ping_url:
        await pings.follow(conn, schedule, policies.ping_url, now)
    if policies.slo is not None or old.slo is not None:  # any change may bring plan times to count
        await slo.follow(conn, schedule, policies.slo, now)
