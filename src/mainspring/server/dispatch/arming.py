"""Arming: send the tasks of a claim to the agents that they were claimed for; find claims that were not sent yet.

Reads   store.tasks.claims   (claims whose answer was lost, or that another server has made)
        store.views.parents  (what became of the tasks that some of them ran after)
        store.access.secrets (that some of their jobs refer to)
Writes  store.tasks.claims   (assigned → pending, for what could not be sent)
Sends   Dispatch, through the gateway
Next:   server/agents/gateway.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainspring.loops import let_fire
from mainspring.model.flows.options import read_options
from mainspring.model.limits.holds import NO_HOLDS, Holds
from mainspring.model.messages import Armed
from mainspring.server.agents.gateway import Gateway
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.secrets.opened import OpenSecrets, open_secrets
from mainspring.store.postgres.database import Connection, DedicatedConnection
from mainspring.store.tasks import claims
from mainspring.store.views import parents

FEW = 10  # tasks that start before the next statement is prepared; with more, PostgreSQL and handlers work side by side

IsKnown = Callable[[int, Armed], bool]  # whether a task that was claimed for a session is armed there


class Arming:
    """`dedicated` is the connection of the caller."""

    def __init__(self, catalogue: Catalogue, gateway: Gateway) -> None:
        self._catalogue = catalogue
        self._gateway = gateway

    async def arm(self, claim: claims.Claim, dedicated: DedicatedConnection) -> None:
        """Arm a claim. A task whose session left before its dispatch was sent cannot have started: release it."""
        if after := _with_parents(claim):
            async with dedicated as conn:
                await _add_parent_outcomes(conn, after)
        await self._give_back(await self._send(claim, dedicated), dedicated)

    async def _give_back(self, unsent: list[Armed], dedicated: DedicatedConnection) -> None:
        if unsent:
            async with dedicated as conn:
                await claims.give_back(conn, [armed.task for armed in unsent], [armed.token for armed in unsent])

    async def let_start(self, claim: claims.Claim) -> None:
        """Let agents in this process start what was armed, before the caller prepares its next statement."""
        if 0 < claim.size <= FEW:
            await let_fire()  # a posted dispatch is written, received and started in as many turns

    async def _send(
        self, claim: claims.Claim, dedicated: DedicatedConnection, is_known: IsKnown | None = None
    ) -> list[Armed]:
        """Returns what could not be sent. What is held since the claim began is not sent, and given back.

        What `is_known` is left out. It is asked last: another loop may arm the same tasks while this one waits.
        """
        jobs = {armed.job for tasks in claim.tasks.values() for armed in tasks}
        if not jobs <= self._catalogue.jobs.keys():
            await self._catalogue.refresh()  # the job is new
        secrets = await self._secrets(jobs, dedicated) if self._catalogue.secrets else None
        if is_known is not None:
            claim = _without(claim, is_known)
        if self._catalogue.holds is NO_HOLDS:
            return await self._gateway.arm(claim, secrets)
        stopped, rest = _split(claim, self._catalogue.holds)
        unsent = await self._gateway.arm(rest, secrets)
        await self._give_back(stopped, dedicated)
        return unsent

    async def _secrets(self, jobs: set[int], dedicated: DedicatedConnection) -> OpenSecrets | None:
        """The secrets that these jobs refer to, if any."""
        wanted = {id: names for id, names in self._catalogue.secrets.items() if id in jobs}
        if not wanted:
            return None
        async with dedicated as conn:
            return await open_secrets(conn, self._catalogue.read_keys, wanted)

    async def resolve_unanswered(self, dedicated: DedicatedConnection) -> None:
        """A claim whose answer was lost may have committed, or may do so yet: arm what it took."""

        async def look(conn: Connection) -> claims.Claim:
            claim = await claims.unanswered(conn, self._gateway.known())
            if claim.tasks:
                await self._catalogue.refresh()  # a job may have been held while PostgreSQL did not answer
            return claim

        await self._arm_unknown(dedicated, look)

    async def arm_claimed(self, dedicated: DedicatedConnection) -> int:
        """Arm the claims that other servers have made for sessions here, and mark them as sent.

        A claim for a session that has left meanwhile is not marked: the server it reconnects to finds it.
        """
        batches: claims.Batches = []

        async def look(conn: Connection) -> claims.Claim:
            found, claim = await claims.undispatched(conn, list(self._gateway.known()))
            batches.extend(found)
            return claim

        await self._arm_unknown(dedicated, look)
        here = self._gateway.known()
        if sent := [(session, batch) for session, batch in batches if session in here]:
            async with dedicated as conn:
                await claims.mark_dispatched(conn, sent)
        return len(sent)

    async def _arm_unknown(
        self, dedicated: DedicatedConnection, look: Callable[[Connection], Awaitable[claims.Claim]]
    ) -> None:
        """Arm what `look` finds, except what was armed before or is armed meanwhile."""
        with self._gateway.watching_releases() as is_known:
            async with dedicated as conn:
                claim = await look(conn)
                if after := _with_parents(claim):
                    await _add_parent_outcomes(conn, after)
            await self._send(claim, dedicated, is_known)


def _without(claim: claims.Claim, is_known: IsKnown) -> claims.Claim:
    unknown = {
        session: new
        for session, tasks in claim.tasks.items()
        if (new := [armed for armed in tasks if not is_known(session, armed)])
    }
    return claim._replace(tasks=unknown)


def _with_parents(claim: claims.Claim) -> list[Armed]:
    """Those that were submitted to run after others. Few tasks have any options."""
    return [
        armed for tasks in claim.tasks.values() for armed in tasks if armed.options and '"parents"' in armed.options
    ]


async def _add_parent_outcomes(conn: Connection, tasks: list[Armed]) -> None:
    wanted = {armed.task: found for armed in tasks if (found := read_options(armed.options).parents)}
    outcomes = await parents.outcomes(conn, wanted)
    for armed in tasks:
        armed.parents = outcomes.get(armed.task)


def _split(claim: claims.Claim, holds: Holds) -> tuple[list[Armed], claims.Claim]:
    """What is held, and the rest of a claim."""
    stopped = [armed for tasks in claim.tasks.values() for armed in tasks if holds.stops(armed.job)]
    if not stopped:
        return stopped, claim
    left = {id: [armed for armed in tasks if not holds.stops(armed.job)] for id, tasks in claim.tasks.items()}
    return stopped, claim._replace(tasks={id: tasks for id, tasks in left.items() if tasks})
