"""Handshake: answer an agent's hello with a new session. On reconnect the agent keeps the attempts it still holds.

Writes  store.cluster.agents   (sessions and what they hold)
        store.access.tokens   (one-time tokens, credentials)
Next:   server/agents/gateway.py
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from mainspring.errors import ValidationError
from mainspring.model.messages import MAX_HELD, Armed, Hello
from mainspring.model.words.names import check_name, check_path_name
from mainspring.store.access import tokens
from mainspring.store.cluster import agents
from mainspring.store.cluster.agents import AgentInfo
from mainspring.store.cluster.settings import database_id
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.session_tasks import take_over

MAX_SLOTS = 100_000
MAX_AGENT_LABELS = 100


class Accepted(NamedTuple):
    session: int
    instance: str  # identifies the agent's process: the hash of its secret
    tasks: list[Armed]  # what it keeps from the session before
    batch: int  # of these tasks
    credential: str | None  # replaces the one-time token that it came with
    database: str  # the database's id


async def open_session(
    conn: Connection, hello: Hello, lease: float, *, server: UUID, process: str | None, token: int | None
) -> Accepted | str:
    """Open a session with `server`, or return why the agent is refused.

    Raises SessionSuperseded if the agent has connected again since it said this hello.
    """
    try:
        _check(hello)
        if process is None and not hello.instance:
            raise ValidationError("instance: an agent must name its process by a secret of its own", field="instance")
    except ValidationError as error:
        return error.message
    instance = tokens.digest(hello.instance).hex() if hello.instance else ""  # a secret: only its hash is stored
    credential = None
    if token is not None:
        refused = await tokens.why_not(conn, token, hello.name, instance, hello.labels, hello.offers)
        if refused is not None:
            return refused
        admission = await tokens.admit(conn, token, instance, hello.name)
        if admission is None:
            return "this token serves one agent, and has served another; make a new one"
        token, credential = admission
    newcomer = AgentInfo(
        hello.name,
        hello.slots,
        hello.labels,
        process,
        instance or None,
        token,
        hello.host,
        hello.version,
        hello.offers,
        server,
        hello.connection,
    )
    database = (await database_id(conn)).hex
    if hello.session is None:
        return Accepted(await agents.begin(conn, newcomer, lease), instance, [], 0, credential, database)
    held = [h for h in hello.held if 0 < h.task < 2**63 and 0 < h.token < 2**63]
    taken = await take_over(conn, newcomer, lease, [h.task for h in held], [h.token for h in held])
    return Accepted(taken.session, instance, taken.tasks, taken.batch, credential, database)


def _check(hello: Hello) -> None:
    check_path_name(hello.name, field="name")
    check_name(hello.host or "unknown", field="host")
    check_name(hello.version or "unknown", field="version")
    if not 1 <= hello.slots <= MAX_SLOTS:
        raise ValidationError(f"slots: {hello.slots}; 1 to {MAX_SLOTS}", field="slots")
    for field, given, most in (
        ("labels", hello.labels, MAX_AGENT_LABELS),
        ("offers", hello.offers, MAX_AGENT_LABELS),
        ("held", hello.held, MAX_HELD),
    ):
        if len(given) > most:
            raise ValidationError(f"{field}: {len(given)}; at most {most}", field=field)
    for name, value in hello.labels.items():
        check_name(name, field="labels")
        check_name(value, field="labels")
    for name, amount in hello.offers.items():
        check_name(name, field="offers")
        if not 0 <= amount < 1e15:
            raise ValidationError(f"offers: {name} is {amount:g}; 0 or more", field="offers")
    if hello.session is not None and not 0 < hello.session < 2**63:
        raise ValidationError("session: no such number", field="session")
    if not 0 < hello.connection < 2**31:
        raise ValidationError("connection: an agent counts its connections from 1", field="connection")
