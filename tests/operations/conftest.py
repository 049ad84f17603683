"""What the tests of operations share: a job of each kind, and an agent with a lease."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.jobs import Definition
from mainspring.store.postgres.database import Connection

BAD_NAME = "a\x00b"
ACTOR = Actor("test")


def echo(**options: object) -> Definition:
    return define(command(["echo", "hello"]), options)  # type: ignore[arg-type]


async def add_agent(conn: Connection, name: str = "eve", session: int = 7) -> None:
    await conn.execute(
        """
        insert into mainspring.agent (session, name, slots, lease_until)
        values ($1, $2, 1, mainspring.now() + interval '1 hour')
        """,
        session,
        name,
    )


def same_in_json(view: object, kind: Any) -> bool:
    """Whether a view goes through JSON and comes back as it was; prints what did not."""
    back = msgspec.json.decode(msgspec.json.encode(view), type=kind)
    if back != view:
        print(f"{view}\n became \n{back}")
    return bool(back == view)
