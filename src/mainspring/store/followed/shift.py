"""Shift: how long after its plan time a schedule may want its tasks to run, by delay and jitter; the longest of all.

A search of the ledger for what was due in a span starts this much earlier. It only grows.
Writes  mainspring.ledger_audit
Next:   store/watch/missed_starts.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from mainspring.model.schedules.schedules import Policies
from mainspring.store.postgres.connection import Connection

MOST = timedelta(days=7)

_GROW = "update mainspring.ledger_audit set longest_shift = $1 where longest_shift < $1"


def of(policies: Policies) -> timedelta:
    """From the plan time to the latest instant at which its tasks are due."""
    return min(timedelta(seconds=policies.delay + policies.jitter), MOST)


async def note(conn: Connection, policies: Sequence[Policies]) -> None:
    """Schedules have these policies from now on."""
    if shifted := [of(one) for one in policies if one.delay or one.jitter]:
        await conn.execute(_GROW, max(shifted))


async def longest(conn: Connection) -> timedelta:
    found: timedelta = await conn.fetchval("select longest_shift from mainspring.ledger_audit")
    return found
