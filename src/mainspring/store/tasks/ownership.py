"""Evidence: whose attempts reports are about, and what was refused of them.

Next: server/recording/recorder.py
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.store.postgres.database import Connection

# An attempt is an agent's own if a session of the same agent process has or had it.
_OWN = """
    with own as (select session from mainspring.agent where instance = $3)
    select given.id, given.token from unnest($1::bigint[], $2::bigint[]) as given(id, token)
     where exists (select from mainspring.task t
                    where t.id = given.id and t.token = given.token and t.session in (select session from own))
        or exists (select from mainspring.task_history h
                    where h.id = given.id and h.token = given.token and h.session in (select session from own))
        or exists (select from mainspring.attempt a
                    where a.task_id = given.id and a.token = given.token and a.session in (select session from own))
"""


async def own(conn: Connection, instance: str, attempts: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the attempts, as (task, token), that are or were this agent process's."""
    within = [(task, token) for task, token in attempts if 0 < task < 2**63 and 0 <= token < 2**63]
    rows = await conn.fetch(_OWN, [task for task, _ in within], [token for _, token in within], instance)
    return {(row["id"], row["token"]) for row in rows}


async def audit(conn: Connection, actor: str, action: str, subject: str, detail: object = None) -> None:
    """Append who did what to the audit."""
    await conn.execute(
        "insert into mainspring.audit (actor, action, subject, detail) values ($1, $2, $3, $4::jsonb)",
        actor,
        action,
        subject,
        None if detail is None else msgspec.json.encode(detail).decode(),
    )
