"""Mutes: rules and subjects that are not told of until an instant.

Writes  mainspring.mute
Next:   model/alerts/mutes.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from mainspring.model.alerts.mutes import Mute
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import readable, views


class MuteView(msgspec.Struct, frozen=True):
    id: int
    rules: list[str]  # patterns; empty: all
    subjects: list[str]  # the same
    until: datetime
    note: str
    created_by: str
    created_at: datetime


_VIEW = "id, rules, subjects, until, note, created_by, created_at"


async def active(conn: Connection) -> list[Mute]:
    rows = await conn.fetch("select rules, subjects from mainspring.mute where until > mainspring.now()")
    return [Mute(*row) for row in rows]


async def listing(conn: Connection) -> list[MuteView]:
    """Those that are in force, the first to end first."""
    query = f"select {_VIEW} from mainspring.mute where until > mainspring.now() order by until, id limit 1000"
    return views(MuteView, await readable(conn, query))


_ADD = f"""
    insert into mainspring.mute (rules, subjects, until, note, created_by) values ($1, $2, $3, $4, $5)
    returning {_VIEW}
"""


async def add(
    conn: Connection, rules: Sequence[str], subjects: Sequence[str], until: datetime, note: str, created_by: str
) -> MuteView:
    return views(MuteView, await conn.fetch(_ADD, list(rules), list(subjects), until, note, created_by))[0]


_END = f"""
    update mainspring.mute set until = mainspring.now() where id = $1 and until > mainspring.now() returning {_VIEW}
"""


async def end(conn: Connection, id: int) -> MuteView | None:
    """End a mute now; None if it is over, or never was."""
    return next(iter(views(MuteView, await conn.fetch(_END, id))), None)
