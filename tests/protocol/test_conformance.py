"""The statements of store/ do what the model says: random walks through it, carried out in PostgreSQL step by step."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable

import pytest

from mainspring.errors import SessionSuperseded
from mainspring.model.messages import Armed, Ending, Hello, Holding, Start
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Delivery, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents import handshake
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery.rescuer import Rescuer
from mainspring.store.cluster import agents
from mainspring.store.cluster.agents import AgentInfo
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, jobs, rescue, transitions
from mainspring.wire.clock import Clock
from tests.cluster import OWNER
from tests.protocol.world import Protocol, Q, Task, World

WALKS = 60
LONGEST = 60  # steps
LEASE = 3600.0  # seconds; leases expire when the walk says so
RETRY = Retry(retries=9, backoff="fixed", delay=0.0)


class Replay:
    """The world in PostgreSQL. `sessions` and `armed` lead from the numbers of the model to the real ones."""

    def __init__(self, conn: Connection, database: Database, catalogue: Catalogue, job: str, walk: str) -> None:
        self._conn = conn
        self._job = job
        self._walk = walk
        self._recorder = Recorder(database, catalogue)
        self._rescuer = Rescuer(database, catalogue, self._recorder, Clock(), LEASE)
        self.task = 0
        self.sessions: dict[int, int] = {}
        self.armed: dict[int, Armed] = {}  # by the model's token

    async def open(self) -> None:
        self.task = await self._conn.fetchval("select mainspring.enqueue($1)", self._job)
        self.sessions[Q] = await agents.begin(self._conn, AgentInfo("q", 1, {}), LEASE)

    async def carry_out(self, name: str, before: World) -> None:
        """The step of this name, if PostgreSQL has a part in it."""
        steps: dict[str, Callable[..., Awaitable[None]]] = {
            r"PostgreSQL (?:opens session|refuses hello) (\d+)": lambda n: self._hello(n, before),
            r"PostgreSQL claims (\d+) for session (\d+)": self._claim,
            r"Q claims and begins (\d+)": self._begin_elsewhere,
            r"Q has done (\d+)": lambda token: self._finish(token, TaskState.SUCCEEDED),
            r"the start of (\d+) is recorded": self._start,
            r"PostgreSQL (?:records that|keeps the stale report of) (\d+)": lambda token: self._report(
                token, name, before
            ),
            r"PostgreSQL takes (\d+) back": self._give_back,
            r"server (\d+) ends session": self._leave,
            r"the lease of session (\d+) expires": self._expire,
            r"the rescuer takes (\d+)": self._rescue,
        }
        for pattern, carry_out in steps.items():
            if (found := re.match(pattern, name)) is not None:
                await carry_out(*map(int, found.groups()))

    async def _hello(self, n: int, before: World) -> None:
        [(_, _, resumes, held)] = [each for each in before.flight if each[:2] == ("hello", n)]
        holding = [Holding(self.task, self.armed[token].token, TaskState.ASSIGNED) for token in held]
        said = Hello("p", 1, {}, instance=self._walk, connection=n, session=1 if resumes else None, held=holding)
        try:
            opened = await handshake.open_session(self._conn, said, LEASE, server=OWNER, process=None, token=None)
        except SessionSuperseded:
            return
        assert not isinstance(opened, str)
        self.sessions[n] = opened.session

    async def _claim(self, token: int, n: int) -> None:
        pool = await self._conn.fetchval("select pool from mainspring.task where id = $1", self.task)
        claim = await claims.claim(self._conn, OWNER, pool, [self.sessions[n]], 1, [BOTTOM] * 10, ahead=60.0)
        [self.armed[token]] = claim.tasks[self.sessions[n]]

    async def _begin_elsewhere(self, token: int) -> None:
        await self._claim(token, Q)
        await self._start(token)

    async def _start(self, token: int) -> None:
        await transitions.start(self._conn, [Start(self.task, self.armed[token].token, 1.0)])

    async def _report(self, token: int, name: str, before: World) -> None:
        reports = {each for each in before.flight if each[:2] == ("finish", token)}
        is_done = {each[2] for each in reports} == {"done"} or name.endswith(
            ("is done", "is done, and acknowledges it")
        )
        await self._finish(token, TaskState.SUCCEEDED if is_done else TaskState.LOST)

    async def _finish(self, token: int, state: TaskState) -> None:
        armed = self.armed[token]
        code = None if state is TaskState.SUCCEEDED else "lost"
        ending = Ending(self.task, armed.token, armed.job, 1, state, 1.0, 2.0, code=code, labels=("lost",))
        await self._recorder.record(self._conn, [ending])

    async def _give_back(self, token: int) -> None:
        await claims.give_back(self._conn, [self.task], [self.armed[token].token])

    async def _leave(self, n: int) -> None:
        await agents.leave(self._conn, [self.sessions[n]])

    async def _expire(self, n: int) -> None:
        await agents.end(self._conn, [self.sessions[n]])
        await rescue.gone(self._conn)

    async def _rescue(self, token: int) -> None:
        assert await self._rescuer.step() == 1, token

    async def compare(self, world: World) -> None:
        row = await self._conn.fetchrow(
            """
            select state, token, session from mainspring.task where id = $1
             union all
            select state, token, session from mainspring.task_history where id = $1
            """,
            self.task,
        )
        tokens = {armed.token: token for token, armed in self.armed.items()}
        numbers = {session: n for n, session in self.sessions.items()}
        found = Task(TaskState(row["state"]), tokens.get(row["token"], 0), numbers.get(row["session"], 0))
        assert found == world.task
        for n, session in enumerate(world.sessions, 1):
            assert (session is not None) == (n in self.sessions)
            if session is not None:
                told = await self._conn.fetchrow(
                    "select ended_at is not null, successor is not null from mainspring.agent where session = $1",
                    self.sessions[n],
                )
                assert tuple(told) == tuple(session), f"session {n}"


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_the_statements_do_what_the_model_says(database: Database, conn: Connection, delivery: Delivery) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"), RETRY, delivery=delivery)})
    catalogue = Catalogue(database)
    await catalogue.refresh()
    protocol = Protocol(delivery, prunes=False)
    carried_out: set[str] = set()
    for walk in range(WALKS):
        chance = random.Random(f"walk {delivery} {walk}")
        replay = Replay(conn, database, catalogue, "job", f"walk {walk}")
        await replay.open()
        world, trace = protocol.first(), list[str]()
        for _ in range(LONGEST):
            following = sorted(protocol.steps(world), key=lambda step: step[0])
            if not following:
                break
            weights = [0.05 if name.startswith("Q claims") else 1.0 for name, _ in following]  # it would end most walks
            [(name, after)] = chance.choices(following, weights)
            trace.append(name)
            await replay.carry_out(name, world)
            try:
                await replay.compare(after)
            except AssertionError as error:
                raise AssertionError("\n".join([*trace, str(error)])) from error
            world = after
        carried_out |= {re.sub(r"\d+", "N", step) for step in trace}
        await conn.execute("delete from mainspring.task")
        await conn.execute("delete from mainspring.claim")
    must = {"PostgreSQL refuses hello N, which is late", "the rescuer takes N from session N: pending"}
    assert must <= carried_out, "the walks lead everywhere"
