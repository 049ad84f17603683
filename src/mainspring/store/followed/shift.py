"""Shift: how long after its plan time a schedule may want its tasks to run, by delay and jitter; the longest of all.

A search of the ledger for what was due in a span starts this much earlier. It only grows.
Writes  mainspring.ledger_audit
Next:   store/watch/missed_starts.py
"""

from __future__ import annotations

from datetime import timedelta

from mainspring.model.schedules.schedules import Policies
from mainspring.store.postgres.connection import Connection

MOST = timedelta(days=7)

_GROW = "update mainspring.ledger_audit set longest_shift = $1 where longest_shift < $1"


def of(policies: Policies) -> timedelta:
    """From the plan time to the latest instant at which its tasks are due."""
    return min(timedelta(seconds=policies.delay + policies.jitter), MOST)


async def note(conn: Connection, policies: Policies) -> None:
    """A schedule has these policies from now on."""
    if policies.delay or policies.jitter:
        await conn.execute(_GROW, of(policies))


async def longest(conn: Connection) -> timedelta:
    found: timedelta = await conn.fetchval("select longest_shift from mainspring.ledger_audit")
    return found
