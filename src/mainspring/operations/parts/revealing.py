"""Revealing: an admin is shown the secrets that everybody else sees masked, and the audit says of what.

Next: store/access/audit.py
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.errors import Forbidden
from mainspring.model.access.actors import Actor, Role
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection


async def reveal(
    conn: Connection, actor: Actor, what: str, subject: str, detail: Mapping[str, object] | None = None
) -> None:
    """Note that the secrets of a job, a task and so on are shown. Forbidden to all but admins."""
    if actor.role is not Role.ADMIN:
        raise Forbidden(
            f"{actor.name} is {actor.role}; to reveal the secrets of a {what} takes the role admin",
            role=Role.ADMIN,
            roles=[Role.ADMIN],
        )
    async with conn.transaction():
        await audit.record(conn, actor, f"{what}.reveal", subject, detail)
