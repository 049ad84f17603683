"""Broadcaster: a broadcast gets a child task on every matching agent of every server, and ends with the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.cluster import OWNER
from tests.server.dispatch.played import PlayedAgent

from mainspring.model.messages import (
    AgentMessage,
    Armed,
    AttemptId,
    Cancel,
    Ending,
    Finished,
    Hello,
    Pause,
    Refused,
    ServerMessage,
)
from mainspring.model.placement.lead import Lead
from mainspring.model.tasks.jobs import Command, Definition, Placement, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.server.dispatch.broadcaster import NOTICE
from mainspring.server.server import Server
from mainspring.store.cluster import agents
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import broadcasts, claims, control, jobs, rescue, tasks
from mainspring.store.views.task_views import TaskView

LEASE = 60.0
LEAD = 5.0


class Agent(PlayedAgent):
    """Keeps what else it is told."""

    def __init__(self, server: Server, name: str, labels: dict[str, str]) -> None:
        super().__init__(server, name)
        self.server = server
        self._labels = labels
        self.told: list[ServerMessage] = []

    async def join(self) -> Agent:
        await self.say_hello(Hello(self.name, 10, self._labels))
        return self

    async def heard(self, message: ServerMessage) -> None:
        self.told.append(message)

    has = PlayedAgent.holds

    async def hears(self) -> list[ServerMessage]:
        """What it was told other than what to run, once there is anything."""
        async with asyncio.timeout(20):
            while not self.told:
                await asyncio.sleep(0)
        told, self.told = self.told, []
        return told

    async def ends(
        self, armed: Armed, state: TaskState = TaskState.SUCCEEDED, *, late: float = 0.0, **more: Any
    ) -> None:
        start = armed.fire_at + late
        ending = Ending(armed.task, armed.token, armed.job, armed.attempt, state, start, start + 1, **more)
        await self._report(Finished([ending]))

    async def refuses(self, armed: Armed) -> None:
        await self._report(Refused([AttemptId(armed.task, armed.token)], "draining"))

    async def _report(self, message: AgentMessage) -> None:
        await self._link.send([message])
        recorder = self.server.recorder
        async with asyncio.timeout(20):
            while not recorder._reports:
                await asyncio.sleep(0)
        await recorder.flush()


class Cluster:
    """Two servers whose loops the test turns by hand, and their agents."""

    def __init__(self, servers: list[Server], conn: Connection) -> None:
        self.one, self.other = self.servers = servers
        self.conn = conn
        self._agents: list[Agent] = []

    async def agent(self, name: str, *, server: Server | None = None, **labels: str) -> Agent:
        agent = await Agent(server or self.one, name, labels).join()
        self._agents.append(agent)
        return agent

    async def submit(self, job: str = "sweep", **using: Any) -> int:
        given = ", ".join(f"{name} => '{value}'" for name, value in using.items())
        return int(await self.conn.fetchval(f"select mainspring.enqueue($1{', ' + given if given else ''})", job))

    async def send_out(self) -> None:
        """Both servers look, and both take up what was claimed for their sessions."""
        for server in self.servers:
            await server.broadcaster.step()
        for server in self.servers:
            await server.broadcaster.arm_claimed()

    async def status(self, task: int) -> TaskView:
        return await tasks.get(self.conn, task)

    async def close(self) -> None:
        for agent in self._agents:
            await agent.leave()
        for server in self.servers:
            await server.stop(patience=0.0)


BROADCAST = Definition(Python("sweep"), retry=Retry(retries=1, delay=0.0), placement=Placement(broadcast=True))


@pytest.fixture
async def cluster(dsn: str, conn: Connection) -> AsyncIterator[Cluster]:
    await jobs.register(
        conn,
        {
            "sweep": BROADCAST,
            "sweep_gpus": msgspec.structs.replace(BROADCAST, requires={"gpu": "yes"}),
            "plain": Definition(Python("plain")),
        },
    )
    databases = [Database(dsn), Database(dsn)]
    servers = [
        Server(
            database,
            ServerInfo(OWNER, "tests", "0", "here"),
            poll=0.1,
            lead=Lead(LEAD),
            lease=LEASE,
            keep_succeeded=timedelta(days=7),
            keep_failed=timedelta(days=7),
        )
        for database in databases
    ]
    for server in servers:
        server.server_lease.trusted_until = float("inf")
        await server.clock_loop.step()
        await server.catalogue.refresh()
    cluster = Cluster(servers, conn)
    yield cluster
    await cluster.close()
    for database in databases:
        await database.close()


# ── sending out ─────────────────────────────────────────────────────────────────────────────────


async def test_every_agent_of_every_server_gets_a_run_at_one_instant(cluster: Cluster) -> None:
    here = [await cluster.agent(f"here-{number}") for number in range(3)]
    there = [await cluster.agent(f"there-{number}", server=cluster.other) for number in range(2)]
    task = await cluster.submit()
    await cluster.send_out()
    runs = [(await agent.has(1))[0] for agent in (*here, *there)]
    assert len({run.task for run in runs}) == len({run.token for run in runs}) == 5
    assert len({run.fire_at for run in runs}) == 1
    assert (await cluster.status(task)).state == "running"
    children = await broadcasts.children(cluster.conn, task)
    assert [child.agent for child in children] == ["here-0", "here-1", "here-2", "there-0", "there-1"]
    assert {child.state for child in children} == {"assigned"}


async def test_a_broadcast_that_is_due_at_once_gives_its_agents_notice(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    before = cluster.one.clock.now()
    task = await cluster.submit()
    await cluster.send_out()
    [run] = await agent.has(1)
    assert run.fire_at >= before + NOTICE - 0.1
    assert (await cluster.status(task)).run_at.timestamp() == pytest.approx(run.fire_at)


async def test_a_broadcast_ahead_of_its_time_is_armed_within_the_lead_and_fires_at_its_own_instant(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent("a")
    far, near = await cluster.submit(delay="1 hour"), await cluster.submit(delay="3 seconds")
    instant = (await cluster.status(near)).run_at
    await cluster.send_out()
    [run] = await agent.has(1)
    assert run.fire_at == pytest.approx(instant.timestamp(), abs=0.001)
    assert [(await cluster.status(task)).state for task in (far, near)] == ["pending", "running"]


async def test_a_broadcast_is_armed_as_early_as_its_slowest_agent_needs(cluster: Cluster) -> None:
    await cluster.agent("here", gpu="yes")
    await cluster.agent("slow", server=cluster.other)
    await cluster.conn.execute("update mainspring.agent set lead = 25 where name = 'slow'")
    for server in cluster.servers:
        await server.registry.refresh()
    task = await cluster.submit(delay="20 seconds")
    await cluster.send_out()
    assert (await cluster.status(task)).state == "running"


async def test_only_agents_that_match_and_live_get_a_run(cluster: Cluster) -> None:
    fitting = await cluster.agent("fitting", gpu="yes")
    gone = await cluster.agent("gone", gpu="yes")
    await cluster.agent("plain")
    await agents.end(cluster.conn, [gone.session])
    task = await cluster.submit("sweep_gpus")
    await cluster.send_out()
    await fitting.has(1)
    assert [child.agent for child in await broadcasts.children(cluster.conn, task)] == ["fitting"]


async def test_of_two_sessions_of_one_agent_the_newer_gets_the_run(cluster: Cluster) -> None:
    await cluster.agent("a")
    newer = await cluster.agent("a", server=cluster.other)
    task = await cluster.submit()
    await cluster.send_out()
    await newer.has(1)
    assert len(await broadcasts.children(cluster.conn, task)) == 1


async def test_two_servers_that_expand_at_once_make_one_set_of_runs(cluster: Cluster, dsn: str) -> None:
    for number in range(4):
        await cluster.agent(f"a{number}", server=cluster.servers[number % 2])
    made = [await cluster.submit() for _ in range(10)]
    for _ in range(3):
        await asyncio.gather(*(server.broadcaster.step() for server in cluster.servers))
    rows = await cluster.conn.fetch("select parent_id, count(*) from mainspring.task where parent_id > 0 group by 1")
    assert {row[0]: row[1] for row in rows} == dict.fromkeys(made, 4)


async def test_the_dispatcher_leaves_broadcasts_and_their_runs_alone(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    task = await cluster.submit()
    assert await cluster.one.dispatcher.step() == 0
    assert await cluster.one.dispatcher.submit([Submission("sweep", "{}")]) == [None]
    assert (await cluster.status(task)).state == "pending"
    await cluster.send_out()
    [run] = await agent.has(1)
    await agent.refuses(run)
    assert await cluster.one.dispatcher.step() == 0, "a run that was given back waits for its own agent"
    assert (await cluster.status(run.task)).state == "pending"


async def test_more_agents_than_a_batch_has_tokens(cluster: Cluster) -> None:
    await cluster.conn.execute("""
        insert into mainspring.agent (name, slots, labels, lease_until)
        select 'agent ' || n, 1, '{}', mainspring.now() + interval '1 hour' from generate_series(1, 4500) n
    """)
    task = await cluster.submit()
    await cluster.one.broadcaster.step()
    rows = await cluster.conn.fetch("select token, session from mainspring.task where parent_id = $1", task)
    parent = await cluster.conn.fetchval("select token from mainspring.task where id = $1", task)
    assert len({row["token"] for row in rows}) == len({row["session"] for row in rows}) == 4500
    assert len({row["token"] // claims.BATCH_TOKENS for row in rows}) == 3
    assert all(row["token"] > parent for row in rows)
    noted = await cluster.conn.fetchval(f"""
        select count(*) from mainspring.claim c join mainspring.task t on t.session = c.session and t.id = any(c.tasks)
         where t.token / {claims.BATCH_TOKENS} = c.batch
    """)
    assert noted == 4500


# ── claims made for others ──────────────────────────────────────────────────────────────────────


async def claimed_between(cluster: Cluster, dsn: str, agent: Agent) -> int:
    """A broadcast whose batch was drawn before one of the agent's own server, and is committed after it."""
    await cluster.submit()
    slow = await Database(dsn).connect()
    try:
        async with slow.transaction():
            [parent] = await broadcasts.look(slow, ahead=LEAD)
            assert await broadcasts.expand(slow, parent.task, notice=NOTICE) == 1
            await cluster.submit("plain")
            assert await agent.server.dispatcher.step() == 1
        lower = await cluster.conn.fetchval("select batch from mainspring.claim where undispatched")
        assert lower < agent.server.gateway.known()[agent.session], "else this tests nothing"
        return parent.task
    finally:
        await slow.close()


async def test_a_claim_with_a_lower_number_than_the_last_known_one_is_armed(cluster: Cluster, dsn: str) -> None:
    agent = await cluster.agent("a", server=cluster.other)
    await claimed_between(cluster, dsn, agent)
    await agent.has(1)
    await cluster.other.broadcaster.arm_claimed()
    assert len({armed.task for armed in await agent.has(2)}) == 2


async def test_a_claim_that_was_not_taken_up_is_not_compacted_away(cluster: Cluster, dsn: str) -> None:
    agent = await cluster.agent("a", server=cluster.other)
    await claimed_between(cluster, dsn, agent)
    await cluster.other.gateway.compact()
    assert len(await rescue.held(cluster.conn, agent.session, 10)) == 2, "the rescuer would find it"
    await cluster.other.broadcaster.arm_claimed()
    await agent.has(2)
    await cluster.other.gateway.compact()
    assert len(await rescue.held(cluster.conn, agent.session, 10)) == 2
    assert await cluster.conn.fetchval("select count(*) from mainspring.claim") == 1, "all is in one row now"


async def test_a_claim_with_a_higher_number_hides_none_of_the_servers_own(cluster: Cluster) -> None:
    agent = await cluster.agent("a", server=cluster.other)
    gateway = cluster.other.gateway
    with gateway.claiming():  # a claim of its own is on its way
        await cluster.submit()
        await cluster.send_out()
        await agent.has(1)
        assert gateway.known()[agent.session] == 0
    assert gateway.known()[agent.session] > 0


async def test_what_was_taken_up_is_not_armed_again(cluster: Cluster) -> None:
    agent = await cluster.agent("a", server=cluster.other)
    await cluster.submit()
    await cluster.one.broadcaster.step()
    await cluster.other.broadcaster.arm_claimed()
    [run] = await agent.has(1)
    await cluster.conn.execute("update mainspring.claim set undispatched = true")  # as if it had died before
    await cluster.other.broadcaster.arm_claimed()
    await agent.ends(run)
    assert len(agent.armed) == 1
    assert await cluster.conn.fetchval("select count(*) from mainspring.claim where undispatched") == 0


async def test_a_claim_for_a_session_of_another_server_is_left_to_that_server(cluster: Cluster) -> None:
    agent = await cluster.agent("a", server=cluster.other)
    await cluster.submit()
    await cluster.one.broadcaster.step()
    await cluster.one.broadcaster.arm_claimed()
    assert await cluster.conn.fetchval("select undispatched from mainspring.claim")
    await cluster.other.broadcaster.arm_claimed()
    await agent.has(1)


# ── how it ends ─────────────────────────────────────────────────────────────────────────────────


async def test_a_broadcast_succeeds_when_all_its_runs_have_and_tells_how_far_apart_they_started(
    cluster: Cluster,
) -> None:
    first, second = await cluster.agent("a"), await cluster.agent("b", server=cluster.other)
    task = await cluster.submit()
    await cluster.send_out()
    await first.ends((await first.has(1))[0], late=0.002)
    await cluster.send_out()
    assert (await cluster.status(task)).state == "running"
    await second.ends((await second.has(1))[0], late=0.0125)
    await cluster.send_out()
    view = await cluster.status(task)
    assert view.state == "succeeded"
    assert view.result == {
        "agents": 2,
        "succeeded": 2,
        "failed": [],
        "spread_ms": pytest.approx(10.5, abs=0.01),
        "lateness_ms": pytest.approx(12.5, abs=0.01),
    }
    assert view.lateness_ms == pytest.approx(2.0, abs=0.01)
    assert await tasks.attempts(cluster.conn, task) == []


async def test_a_broadcast_fails_when_one_of_its_runs_does_and_names_the_agent(cluster: Cluster) -> None:
    good, bad = await cluster.agent("good"), await cluster.agent("bad")
    task = await cluster.submit()
    await cluster.send_out()
    await good.ends((await good.has(1))[0])
    await bad.ends((await bad.has(1))[0], TaskState.FAILED, final=True)
    await cluster.send_out()
    view = await cluster.status(task)
    assert (view.state, view.error_code) == ("failed", "broadcast_failed")
    assert view.error == "1 of 2 agents did not succeed: bad"
    assert (view.result["succeeded"], view.result["failed"]) == (1, ["bad"])


async def test_the_result_names_twenty_agents_at_most(cluster: Cluster) -> None:
    await cluster.conn.execute("""
        insert into mainspring.agent (name, slots, labels, lease_until)
        select 'agent ' || n, 1, '{}', mainspring.now() + interval '1 hour' from generate_series(1, 30) n
    """)
    task = await cluster.submit()
    await cluster.one.broadcaster.step()
    await tasks.cancel(cluster.conn, task)
    await cluster.conn.execute("update mainspring.task set state = 1, session = null where parent_id > 0")
    await cluster.one.broadcaster.step()
    await cluster.one.broadcaster.step()
    view = await cluster.status(task)
    assert (view.state, len(view.result["failed"])) == ("cancelled", 20)
    assert (view.result["spread_ms"], view.result["lateness_ms"]) == (None, None)
    assert view.error is not None
    assert view.error.endswith(", …")


async def test_without_an_agent_a_broadcast_waits_for_its_instant_and_fails_then(cluster: Cluster) -> None:
    soon, due = await cluster.submit(delay="5 seconds"), await cluster.submit()
    await cluster.one.broadcaster.step()
    assert (await cluster.status(due)).state == "pending", "a first agent may be on its way"
    await cluster.conn.execute("update mainspring.task set run_at = run_at - interval '3 seconds'")
    await cluster.one.broadcaster.step()
    assert (await cluster.status(soon)).state == "pending"
    view = await cluster.status(due)
    assert (view.state, view.error_code) == ("failed", "no_agents")


async def test_who_waits_for_a_broadcast_goes_on_when_it_has_ended(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    task = await cluster.submit()
    then = int(await cluster.conn.fetchval("select mainspring.enqueue('plain', after => array[$1::bigint])", task))
    await cluster.one.dependencies.step()
    await cluster.send_out()
    heard: list[int] = []
    cluster.one.recorder.on_ended.connect(lambda endings: heard.extend(ending.task for ending in endings))
    await agent.ends((await agent.has(1))[0])
    await cluster.one.broadcaster.step()
    assert task in heard
    await cluster.one.dependencies.step()
    assert (await cluster.status(then)).state == "pending"


# ── running again ───────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_failed_runs_again_on_the_same_agent_only(cluster: Cluster) -> None:
    bad, good = await cluster.agent("bad", server=cluster.other), await cluster.agent("good")
    task = await cluster.submit()
    await cluster.send_out()
    [run] = await bad.has(1)
    await bad.ends(run, TaskState.FAILED, late=0.001)
    await good.ends((await good.has(1))[0], late=0.003)
    await cluster.send_out()
    again = (await bad.has(2))[1]
    assert (again.task, again.attempt) == (run.task, 2)
    assert again.token > run.token
    await bad.ends(again, late=7.0)
    await cluster.send_out()
    view = await cluster.status(task)
    assert (view.state, view.result["spread_ms"]) == ("succeeded", pytest.approx(2.0, abs=0.01)), "of the first starts"
    assert len(good.armed) == 1


async def test_a_run_goes_to_the_session_that_its_agent_has_now(cluster: Cluster) -> None:
    old = await cluster.agent("a")
    await cluster.submit()
    await cluster.send_out()
    [run] = await old.has(1)
    await old.refuses(run)
    new = await cluster.agent("a", server=cluster.other)
    await cluster.send_out()
    [again] = await new.has(1)
    assert again.task == run.task


@pytest.mark.parametrize(("started", "state"), [(True, "lost"), (False, "skipped")])
async def test_a_run_whose_agent_stays_away_for_a_lease_ends(cluster: Cluster, started: bool, state: str) -> None:
    agent = await cluster.agent("a")
    await cluster.agent("another")
    task = await cluster.submit()
    await cluster.send_out()
    [run] = await agent.has(1)
    if started:
        await cluster.conn.execute("update mainspring.task set state = 3 where id = $1", run.task)
        await agents.end(cluster.conn, [agent.session])
        assert await cluster.one.rescuer.step() == 1
        await cluster.conn.execute("update mainspring.task set run_at = mainspring.now() where id = $1", run.task)
    else:
        await agent.refuses(run)
        await agents.end(cluster.conn, [agent.session])
    await cluster.conn.execute("update mainspring.task set run_at = mainspring.now() where parent_id > 0 and state = 1")
    await cluster.send_out()
    assert (await cluster.status(run.task)).state == "pending", "it may come back"
    await cluster.conn.execute(
        "update mainspring.agent set lease_until = lease_until - make_interval(secs => $1) where name = 'a'", LEASE
    )
    await cluster.send_out()
    view = await cluster.status(run.task)
    assert (view.state, view.error_code) == (state, "agent_gone")
    assert view.error is not None
    assert view.error.startswith("agent a")
    assert (await cluster.status(task)).state == "running", "the other agent still has its run"


async def test_an_agent_that_gives_its_run_back_at_once_is_not_asked_in_a_circle(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    await cluster.submit()
    await cluster.send_out()
    await agent.refuses((await agent.has(1))[0])
    assert await cluster.one.broadcaster.step() == 0, "the next look is only after a while"


async def test_a_broadcast_that_is_run_again_by_hand_counts_only_its_new_runs(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    task = await cluster.submit()
    await cluster.send_out()
    await agent.ends((await agent.has(1))[0], TaskState.FAILED, final=True)
    await cluster.send_out()
    assert (await cluster.status(task)).state == "failed"
    await tasks.run_again(cluster.conn, task)
    await cluster.send_out()
    await agent.ends((await agent.has(2))[1])
    await cluster.send_out()
    view = await cluster.status(task)
    assert (view.state, view.result["agents"]) == ("succeeded", 1)


async def test_a_single_run_is_retried_by_hand_on_its_own_agent(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    await cluster.agent("b")
    await cluster.submit()
    await cluster.send_out()
    [run] = await agent.has(1)
    await agent.ends(run, TaskState.FAILED, final=True)
    await tasks.run_again(cluster.conn, run.task)
    assert await cluster.one.dispatcher.step() == 0
    await cluster.send_out()
    assert (await agent.has(2))[1].task == run.task


# ── cancelling ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kill", [False, True])
async def test_cancelling_a_broadcast_cancels_its_runs(cluster: Cluster, kill: bool) -> None:
    first, second = await cluster.agent("a"), await cluster.agent("b", server=cluster.other)
    task = await cluster.submit()
    await cluster.send_out()
    runs = [(await agent.has(1))[0] for agent in (first, second)]
    assert await tasks.cancel(cluster.conn, task, kill=kill) is TaskState.RUNNING
    for server in cluster.servers:
        await server.gateway.cancel()
    for agent, run in zip((first, second), runs, strict=True):
        assert await agent.hears() == [Cancel([AttemptId(run.task, run.token)], kill=kill)]
        await agent.ends(run, TaskState.CANCELLED)
    await cluster.send_out()
    view = await cluster.status(task)
    assert (view.state, view.error_code, view.result["succeeded"]) == ("cancelled", "cancelled", 0)


async def test_a_run_that_waits_to_run_again_is_cancelled_with_its_broadcast(cluster: Cluster) -> None:
    agent = await cluster.agent("a")
    task = await cluster.submit()
    await cluster.send_out()
    [run] = await agent.has(1)
    await agent.ends(run, TaskState.FAILED)
    await tasks.cancel(cluster.conn, task)
    await cluster.send_out()
    await cluster.send_out()
    assert [(await cluster.status(id)).state for id in (run.task, task)] == ["cancelled", "cancelled"]
    assert len(agent.armed) == 1


async def test_a_run_is_not_given_out_again_once_its_broadcast_is_being_cancelled(cluster: Cluster) -> None:
    """The cancel may come between the look for such runs and the one for runs to give out."""
    agent = await cluster.agent("a")
    task = await cluster.submit()
    await cluster.send_out()
    await agent.ends((await agent.has(1))[0], TaskState.FAILED)
    await tasks.cancel(cluster.conn, task)
    assert await broadcasts.assign(cluster.conn, ahead=LEAD) == 0


async def test_a_broadcast_that_was_not_sent_out_is_cancelled_at_once(cluster: Cluster) -> None:
    task = await cluster.submit(delay="1 hour")
    assert await tasks.cancel(cluster.conn, task) is TaskState.CANCELLED


# ── wishes about single tasks, through the same servers ─────────────────────────────────────────


async def test_a_running_command_is_paused_resumed_and_restarted_by_its_own_server(cluster: Cluster) -> None:
    await jobs.register(cluster.conn, {"plain": Definition(Command(("sleep", "600")))})
    agent = await cluster.agent("a", server=cluster.other)
    task = await cluster.submit("plain")
    await cluster.other.dispatcher.step()
    [run] = await agent.has(1)
    held = [AttemptId(run.task, run.token)]
    await cluster.conn.execute("update mainspring.task set state = 3 where id = $1", task)
    for act, message in (
        (control.pause, Pause(held)),
        (control.resume, Pause(held, resume=True)),
        (control.restart, Cancel(held, restart=True)),
    ):
        await act(cluster.conn, task)
        for _ in range(2):
            for server in cluster.servers:
                await server.gateway.cancel()
        assert await agent.hears() == [message]
