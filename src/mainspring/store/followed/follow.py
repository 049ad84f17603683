"""Follow: what is kept beside schedules that are made or changed, by their policies.

Next: store/followed/slo.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.model.schedules.schedules import Policies
from mainspring.store.followed import pings, shift, slo
from mainspring.store.postgres.connection import Connection


class Followed(NamedTuple):
    """A schedule, its policies from now on, and those before; one that is new had none."""

    schedule: int
    policies: Policies
    before: Policies = Policies()


async def follow(conn: Connection, made: Sequence[Followed], now: datetime) -> None:
    """These schedules were made or changed."""
    await shift.note(conn, [one.policies for one in made])
    pinged = [one for one in made if one.policies.ping_url != one.before.ping_url]
    await pings.follow(conn, [one.schedule for one in pinged if one.policies.ping_url is not None], now)
    await pings.forget(conn, [one.schedule for one in pinged if one.policies.ping_url is None])
    # Any change may bring plan times to count.
    await slo.follow(conn, [one.schedule for one in made if one.policies.slo is not None], now)
    await slo.forget(conn, [one.schedule for one in made if one.policies.slo is None and one.before.slo is not None])
