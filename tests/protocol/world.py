"""The session and lease protocol as a model: its whole state, and every step that may come next.

One task; one agent P, whose connections go to different servers; every other agent, as Q, which always works. A
statement is in flight from the moment a server sends it, and PostgreSQL carries it out late, or never: also when the
connection that asked for it is long gone. What follows an attempt is decided by the real rules of
model/tasks/verdict.py; which states a statement may leave, by model/tasks/states.py.
docs/explanation/protocol-model.md says what is covered.
Next: tests/protocol/explore.py
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Delivery, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import ACTIVE, ARM, FAIL, PENDING, RECALL, RETRY, RUNNING, START, TERMINAL, TaskState
from mainspring.model.tasks.verdict import Again, after_attempt, after_crash

Item = TypeVar("Item")
Statement = tuple[Any, ...]  # its kind, then its parameters
Attempts = frozenset[tuple[int, str]]  # (token, armed | running | done | lost)

Q = -1  # the session of the other agent


class Rules(NamedTuple):
    """The protocol as it is. Each broken variant changes one of these."""

    tokens_fence: bool = True  # a write about an attempt names its token
    hellos_fence: bool = True  # a hello changes nothing if its agent has a newer session
    may_hold_is_requeued: bool = False  # what is not known to have started counts as certainly not started
    acknowledges_after_commit: bool = True
    stops_before_its_lease_ends: bool = True  # the agent, by a clock that is never behind the database's
    checks_session: bool = True  # the agent takes a dispatch only for the session that it has
    lists_unacknowledged: bool = True  # a hello lists what has ended and is not acknowledged


class Bounds(NamedTuple):
    """How far it is explored. Time has no bound: leases expire in any order that the rules allow."""

    hellos: int = 3
    tokens: int = 2


class Task(NamedTuple):
    state: TaskState = PENDING
    token: int = 0
    session: int = 0


class Session(NamedTuple):
    """A row of mainspring.agent. Its number is the agent's count of its connections."""

    ended: bool = False
    successor: bool = False


class Endpoint(NamedTuple):
    """A connection as its server sees it. The server may not know yet that the agent has given it up."""

    welcomed: bool = False
    held: int = 0  # the token of the task, if the session holds it


class Agent(NamedTuple):
    connections: int = 0
    connected: bool = False
    session: int = 0  # the last one that a server has welcomed it to, while its lease holds
    attempts: Attempts = frozenset()
    inbox: frozenset[tuple[int, int]] = frozenset()  # dispatches on their way: token, session


class World(NamedTuple):
    task: Task = Task()
    last_token: int = 0
    sessions: tuple[Session | None, ...] = ()  # by number, from 1
    endpoints: tuple[Endpoint | None, ...] = ()  # by connection, from 1
    agent: Agent = Agent()
    flight: frozenset[Statement] = frozenset()
    other: int = 0  # the token that Q runs
    begun: int = 0  # how often an at_most_once task began


class Broken(Exception):
    """A property does not hold."""


Step = tuple[str, World]


class Protocol:
    """All steps from a world of a task with this delivery. `prunes`: leave out what can change nothing any more."""

    def __init__(
        self, delivery: Delivery, rules: Rules | None = None, bounds: Bounds | None = None, *, prunes: bool = True
    ) -> None:
        self._definition = Definition(Python("job"), Retry(retries=9), delivery=delivery)
        self._once = delivery == "at_most_once"
        self._rules = rules or Rules()
        self._bounds = bounds or Bounds()
        self._prunes = prunes and self._rules.tokens_fence and self._rules.hellos_fence
        self._after_crash = cache(self._judge_crash)
        self._after_report = cache(self._judge_report)

    def first(self) -> World:
        nothing = (None,) * self._bounds.hellos
        return World(sessions=nothing, endpoints=nothing)

    def steps(self, world: World) -> Iterator[Step]:
        """Each step with its name. Raises Broken for one after which a property does not hold."""
        if not self._may_begin_again(world):
            return
        for name, after in self._all(world):
            self._check(name, after)
            yield name, self._pruned(after) if self._prunes else after

    def _all(self, world: World) -> Iterator[Step]:
        yield from self._of_the_agent(world)
        yield from self._of_the_other(world)
        yield from self._of_servers(world)
        for statement in world.flight:
            yield from self._carry_out(world._replace(flight=world.flight - {statement}), statement)
        yield from self._of_leases(world)

    # ── properties ──────────────────────────────────────────────────────────────────────────────

    def _check(self, name: str, world: World) -> None:
        running = sum(phase == "running" for _, phase in world.agent.attempts)
        if running + bool(world.other) > 1:
            raise Broken(f"L3: two attempts of the task run at the same time, after: {name}")
        if world.begun > 1:
            raise Broken(f"L4: an at_most_once task began twice, after: {name}")

    def _written(self, name: str, world: World, token: int, task: Task) -> Step:
        """A write about an attempt was accepted: it must be of the last attempt there is."""
        if token != world.last_token or world.task.state not in ACTIVE:
            raise Broken(f"L6: a write with the stale token {token} is accepted, after: {name}")
        return name, world._replace(task=task)

    # ── what need not be explored ───────────────────────────────────────────────────────────────

    def _may_begin_again(self, world: World) -> bool:
        """Else no property can break any more: nothing is claimed, and the agent begins nothing."""
        task, agent = world.task, world.agent
        if task.state not in TERMINAL and task.session != Q and world.last_token < self._bounds.tokens:
            return True
        return bool(agent.inbox) or any(phase == "armed" for _, phase in agent.attempts)

    def _pruned(self, world: World) -> World:
        """Without what can change nothing any more, so that equal worlds are visited once."""
        agent, task = world.agent, world.task
        newest = max((n for n, session in enumerate(world.sessions, 1) if session is not None), default=0)
        attempts = frozenset(
            (token, phase)
            for token, phase in agent.attempts
            if phase in ("armed", "running") or (token == task.token and task.state in ACTIVE)
        )
        sessions = tuple(
            Session(ended=True)
            if session is not None and session.successor and not self._may_hold(world, n)
            else session
            for n, session in enumerate(world.sessions, 1)
        )
        return world._replace(
            agent=agent._replace(attempts=attempts),
            sessions=sessions,
            flight=frozenset(each for each in world.flight if self._may_matter(world, each, newest)),
        )

    @staticmethod
    def _may_hold(world: World, n: int) -> bool:
        return world.task.session == n or world.endpoints[n - 1] is not None or ("claim", n) in world.flight

    @staticmethod
    def _may_matter(world: World, statement: Statement, newest: int) -> bool:
        match statement[0]:
            case "hello":
                return bool(statement[1] > newest)
            case "finish" | "give back":
                return bool(statement[1] == world.task.token) and world.task.state in ACTIVE
        return world.task.state not in TERMINAL  # a claim

    # ── the agent ───────────────────────────────────────────────────────────────────────────────

    def _of_the_agent(self, world: World) -> Iterator[Step]:
        agent = world.agent
        if agent.connected:
            left = agent._replace(connected=False, inbox=frozenset())
            yield f"connection {agent.connections} of P drops", world._replace(agent=left)
            for dispatch in agent.inbox:
                yield self._take(world._replace(agent=agent._replace(inbox=agent.inbox - {dispatch})), *dispatch)
        elif agent.connections < self._bounds.hellos:
            yield self._say_hello(world)
        if agent.session:
            stopped = agent._replace(session=0, attempts=_stopped(agent.attempts, 0))
            yield "P cannot renew its lease: it stops all attempts", world._replace(agent=stopped)
        for token, phase in agent.attempts:
            others = agent.attempts - {(token, phase)}
            if phase == "armed":
                began = agent._replace(attempts=others | {(token, "running")})
                yield f"P begins {token}", world._replace(agent=began, begun=world.begun + self._once)
            elif phase == "running":
                done = agent._replace(attempts=others | {(token, "done")})
                yield f"P has done {token}", world._replace(agent=done)
            if phase != "armed" and agent.connected and agent.session == agent.connections:
                yield from self._report(world, token, phase)

    def _say_hello(self, world: World) -> Step:
        agent, n = world.agent, world.agent.connections + 1
        held = frozenset(
            token
            for token, phase in agent.attempts
            if phase in ("armed", "running") or self._rules.lists_unacknowledged
        )
        resumes = f"resumes {agent.session}" if agent.session else "begins anew"
        return f"P says hello {n}: it {resumes} and holds {sorted(held)}", world._replace(
            agent=agent._replace(connections=n, connected=True),
            endpoints=_with(world.endpoints, n, Endpoint()),
            flight=world.flight | {("hello", n, bool(agent.session), held)},
        )

    def _report(self, world: World, token: int, phase: str) -> Iterator[Step]:
        """Only starts that are recorded at once: one that is late or lost is as good as none."""
        n = world.agent.connections
        if phase == "running":
            if world.task.token == token and world.task.state in START.sources:
                task = world.task._replace(state=START.target)
                yield self._written(f"the start of {token} is recorded", world, token, task)
            return
        statement: Statement = ("finish", token, phase, n)
        if statement not in world.flight:
            reported = world._replace(flight=world.flight | {statement})
            if not self._rules.acknowledges_after_commit:
                reported = _acknowledged(reported, token)
            yield f"P reports {token} as {phase} on connection {n}", reported

    def _take(self, world: World, token: int, session: int) -> Step:
        agent = world.agent
        if self._rules.checks_session and session != agent.session:
            return f"P ignores the dispatch of {token}", world
        kept = frozenset(each for each in agent.attempts if each[1] != "armed")
        if any(phase == "running" for _, phase in kept):  # attempts never overlap: it gives this one back
            flight = world.flight | {("give back", token)}
            return f"P refuses {token}", world._replace(agent=agent._replace(attempts=kept), flight=flight)
        return f"P takes {token}", world._replace(agent=agent._replace(attempts=kept | {(token, "armed")}))

    # ── another agent ───────────────────────────────────────────────────────────────────────────

    def _of_the_other(self, world: World) -> Iterator[Step]:
        if world.other:
            task = world.task
            if task.token == world.other and task.state in FAIL.sources:
                task = task._replace(state=TaskState.SUCCEEDED)
            yield f"Q has done {world.other}", world._replace(other=0, task=task)
        elif world.task.state in ARM.sources and world.last_token < self._bounds.tokens:
            token = world.last_token + 1
            task = world.task._replace(state=RUNNING, token=token, session=Q)
            begun = world.begun + self._once
            yield f"Q claims and begins {token}", world._replace(task=task, last_token=token, other=token, begun=begun)

    # ── servers ─────────────────────────────────────────────────────────────────────────────────

    def _of_servers(self, world: World) -> Iterator[Step]:
        for n, endpoint in enumerate(world.endpoints, 1):
            if endpoint is None:
                continue
            claim: Statement = ("claim", n)
            if endpoint.welcomed and claim not in world.flight and world.task.state in ARM.sources:
                yield f"server {n} claims for session {n}", world._replace(flight=world.flight | {claim})
            if not (world.agent.connected and world.agent.connections == n):
                closed = world._replace(endpoints=_with(world.endpoints, n, None))
                yield f"server {n} notices that connection {n} is closed", closed
                session = world.sessions[n - 1]
                if endpoint.welcomed and not endpoint.held and session is not None and not session.ended:
                    ended = _with(world.sessions, n, session._replace(ended=True))
                    yield f"server {n} ends session {n}, which holds nothing", closed._replace(sessions=ended)

    def _carry_out(self, world: World, statement: Statement) -> Iterator[Step]:
        match statement:
            case ("hello", n, resumes, held):
                yield from self._open(world, n, resumes, held)
            case ("claim", n):
                yield self._claim(world, n)
            case ("finish", token, phase, n):
                yield from self._finish(world, token, phase, n)
            case ("give back", token):
                if self._is_own(world, token) and world.task.state in RECALL.sources:
                    task = world.task._replace(state=RECALL.target, session=0)
                    yield self._written(f"PostgreSQL takes {token} back", world, token, task)

    def _is_own(self, world: World, token: int) -> bool:
        return world.task.token == token or not self._rules.tokens_fence

    def _open(self, world: World, n: int, resumes: bool, held: frozenset[int]) -> Iterator[Step]:
        """mainspring.supersede, and the insert after it."""
        if self._rules.hellos_fence and any(world.sessions[n - 1 :]):
            yield f"PostgreSQL refuses hello {n}, which is late", world
            return
        sessions, task, kept = world.sessions, world.task, 0
        if resumes:
            live = [m for m, old in enumerate(sessions, 1) if old is not None and not old.ended]
            for m in live:
                sessions = _with(sessions, m, Session(ended=True, successor=True))
            if task.token in held and task.session in live and task.state in ACTIVE:
                task, kept = task._replace(session=n), task.token
        world = world._replace(sessions=_with(sessions, n, Session()), task=task)
        name = f"PostgreSQL opens session {n}, which keeps {kept or 'nothing'}"
        if world.endpoints[n - 1] is None:
            yield f"{name}; its server has given the connection up", world
            return
        world = world._replace(endpoints=_with(world.endpoints, n, Endpoint(True, kept)))
        agent = world.agent
        if not (agent.connected and agent.connections == n):
            yield f"{name}; the connection is gone", world
            return
        yield f"{name}; the welcome is lost with the connection", world._replace(agent=agent._replace(connected=False))
        welcomed = agent._replace(session=n, attempts=_stopped(agent.attempts, kept))
        yield f"{name}; P is welcomed", world._replace(agent=welcomed)

    def _claim(self, world: World, n: int) -> Step:
        if world.task.state not in ARM.sources or world.last_token == self._bounds.tokens:
            return f"PostgreSQL finds nothing to claim for session {n}", world
        token = world.last_token + 1
        world = world._replace(task=world.task._replace(state=ARM.target, token=token, session=n), last_token=token)
        endpoint, agent = world.endpoints[n - 1], world.agent
        if endpoint is None:  # its connection has closed: never sent
            world = world._replace(flight=world.flight | {("give back", token)})
            return f"PostgreSQL claims {token} for session {n}; its server cannot send it", world
        world = world._replace(endpoints=_with(world.endpoints, n, endpoint._replace(held=token)))
        if agent.connected and agent.connections == n:  # else it is lost
            world = world._replace(agent=agent._replace(inbox=agent.inbox | {(token, n)}))
        return f"PostgreSQL claims {token} for session {n}; its server sends it", world

    def _finish(self, world: World, token: int, phase: str, n: int) -> Iterator[Step]:
        name = f"PostgreSQL keeps the stale report of {token}"
        if self._is_own(world, token) and world.task.state in FAIL.sources:
            name = f"PostgreSQL records that {token} is {phase}"
            _, world = self._written(name, world, token, _after(world.task, self._after_report(phase)))
        endpoints = tuple(each and (each._replace(held=0) if each.held == token else each) for each in world.endpoints)
        world = world._replace(endpoints=endpoints)
        yield name, world
        if world.agent.connected and world.agent.connections == n and self._rules.acknowledges_after_commit:
            yield f"{name}, and acknowledges it", _acknowledged(world, token)

    # ── leases ──────────────────────────────────────────────────────────────────────────────────

    def _of_leases(self, world: World) -> Iterator[Step]:
        """A lease expires in the database only after the agent has stopped what it ran under it.

        A session that the agent's own hello has opened, and that it does not know yet, expires later than the lease
        that it knows: it was opened while that one held.
        """
        for n, session in enumerate(world.sessions, 1):
            relies = 0 < world.agent.session <= n and self._rules.stops_before_its_lease_ends
            if session is not None and not session.ended and not relies:
                ended = _with(world.sessions, n, Session(ended=True))
                yield f"the lease of session {n} expires, and the rescuer ends it", world._replace(sessions=ended)
        task = world.task
        holder = world.sessions[task.session - 1] if task.state in ACTIVE and task.session != Q else None
        if holder is not None and holder.ended:
            state = self._after_crash(task.state is RUNNING, holder.successor)
            name = f"the rescuer takes {task.token} from session {task.session}: {state.label}"
            yield self._written(name, world, task.token, _after(task, state))

    # ── verdicts ────────────────────────────────────────────────────────────────────────────────

    def _judge_crash(self, started: bool, given_back: bool) -> TaskState:
        verdict = after_crash(
            self._definition,
            _lost(),
            started=started,
            crashes=0,
            cancelled=False,
            random=0.5,
            given_back=given_back or self._rules.may_hold_is_requeued,
        )
        return _state_after(verdict)

    def _judge_report(self, phase: str) -> TaskState:
        if phase == "done":
            return TaskState.SUCCEEDED
        return _state_after(after_attempt(self._definition, _lost(), 0.5))


def _lost() -> Ending:
    return Ending(1, 1, 1, 1, TaskState.LOST, 1.0, 2.0, code="lost", labels=("lost",))


def _state_after(verdict: Ending | Again) -> TaskState:
    return RETRY.target if isinstance(verdict, Again) else verdict.state


def _after(task: Task, state: TaskState) -> Task:
    return Task(state, task.token, 0 if state is PENDING else task.session)


def _with(items: tuple[Item, ...], number: int, item: Item) -> tuple[Item, ...]:
    return (*items[: number - 1], item, *items[number:])


def _stopped(attempts: Attempts, kept: int) -> Attempts:
    """All but the one that is kept: what waits is dropped, what runs is stopped."""
    return frozenset(
        (token, "lost" if phase == "running" and token != kept else phase)
        for token, phase in attempts
        if phase != "armed" or token == kept
    )


def _acknowledged(world: World, token: int) -> World:
    """The agent forgets the attempt."""
    left = frozenset(each for each in world.agent.attempts if each[0] != token)
    return world._replace(agent=world.agent._replace(attempts=left))
