"""Stories that make metrics move: real servers, agents and PostgreSQL in this process.

tests/api/test_metrics.py runs them. Each gets a `Stage`, makes something happen, and `stage.moved` waits until all that
it is about has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import asyncpg
from prometheus_client.parser import text_string_to_metric_families

from mainspring import App
from mainspring.api.metering.cluster_metrics import ClusterMetrics
from mainspring.api.metering.tallies import HttpTally, LoopLag, build
from mainspring.api.metering.text import Source, process, render
from mainspring.compose.local import Settings, identity_of, load, make_server
from mainspring.loops import run_every
from mainspring.model.access.actors import Actor
from mainspring.model.messages import PROTOCOL, Ending, Hello, Refused
from mainspring.model.metrics.metrics import METRICS, Metric
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.settings import RunTimeSettings
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.operations.definitions.holds import hold, hold_job
from mainspring.server.alerting.evaluator import Evaluator
from mainspring.server.metrics import ServerMetrics
from mainspring.server.server import Server
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import backfill, schedules
from mainspring.store.tasks import claims, jobs, tasks
from mainspring.store.testing.clock import set_forward
from mainspring.wire.channel import ChannelClosed
from tests.cluster import OWNER
from tests.server.agents.test_gateway import Agent
from tests.server.recovery.test_rescuer import crash

WITHIN = 15.0  # seconds until all has moved

Series = tuple[str, frozenset[tuple[str, str]]]
Scrape = Mapping[Series, float]


class Move(NamedTuple):
    """A metric, by its name without the prefix, with some of its labels."""

    metric: str
    labels: dict[str, str] = {}  # noqa: RUF012 — never changed


def move(metric: str, **labels: str) -> Move:
    return Move(metric, labels)


def scrape(sources: Iterable[Source]) -> dict[Series, float]:
    text = render(sources)[1].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Scrape, metric: Metric, labels: Mapping[str, str]) -> float:
    """Of a metric with these labels, whatever the others are; a histogram's is how many values it has."""
    name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
    return sum(
        number for (named, its), number in found.items() if named == name and labels.items() <= dict(its).items()
    )


class Stage:
    def __init__(self, dsn: str, database: Database, conn: Connection) -> None:
        self.dsn = dsn
        self.database = database
        self.conn = conn
        self._sources: list[Source] = []
        self._refresh: Callable[[], Awaitable[None]] | None = None
        self._before: Scrape = {}

    async def watch(self, sources: Sequence[Source], refresh: Callable[[], Awaitable[None]] | None = None) -> None:
        """From now on what these tell is compared."""
        self._sources, self._refresh = list(sources), refresh
        self._before = await self._scrape()

    async def _scrape(self) -> Scrape:
        if self._refresh is not None:
            await self._refresh()
        return scrape(self._sources)

    async def moved(self, moves: Iterable[Move]) -> None:
        """Wait until they have. A counter has grown; a gauge is another, at any look since the story began."""
        left = list(moves)
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                while left:
                    now = await self._scrape()
                    left = [one for one in left if not self._has_moved(now, one)]
                    await asyncio.sleep(0.01)
        assert not left, f"did not move: {left}"

    def _has_moved(self, now: Scrape, one: Move) -> bool:
        metric = METRICS[one.metric]
        before, after = (value(found, metric, one.labels) for found in (self._before, now))
        return before != after if metric.kind == "gauge" else after > before


def server_settings(dsn: str) -> Settings:
    return load({"dsn": dsn, "lease": "60", "server_name": "stories"})


@asynccontextmanager
async def idle_server(stage: Stage) -> AsyncIterator[Server]:
    """A server whose loops do not run: the story takes each step."""
    settings = server_settings(stage.dsn)
    identity = identity_of(settings)
    server = make_server(settings, stage.database, identity, None, {})
    await jobs.register(stage.conn, {"job": Definition(Python("job"), Retry(retries=1000, backoff="fixed", delay=0.0))})
    await server.catalogue.refresh()
    await stage.watch([ServerMetrics(server).families])
    yield server
    await server.gateway.close()
    identity.close()


# ── a server with an agent that runs tasks ──────────────────────────────────────────────────────


async def engine(stage: Stage, moves: Sequence[Move]) -> None:
    app = App("metrics", dsn=stage.dsn, poll=0.1, lease=2, stop_patience=0.2, agent_name="tester", clock_offset=3)
    go_on = asyncio.Event()

    @app.job
    async def works() -> None: ...

    @app.job(retries=1, retry_delay="0s")
    async def fails() -> None:
        raise RuntimeError("on purpose")

    @app.job
    async def waits() -> None:
        await go_on.wait()

    @app.job(requires={"gpu": "yes"})
    async def nowhere() -> None: ...

    @app.job(every="1s")
    async def ticks() -> None: ...

    async with app.running():
        assert app._engine is not None
        server = app._engine.server
        cluster = ClusterMetrics(app.database, lambda: server.server_lease.id)
        await stage.watch([])  # nothing was told before the engine ran
        stage._sources = [ServerMetrics(server).families, cluster.families]
        stage._refresh = cluster.refresh
        for job in (works, fails, waits, nowhere):
            await job.enqueue()
        async with app.batch("metrics", on_complete=works) as batch:
            await works.using(batch=batch).enqueue()
        await works.using(delay="4s").enqueue()  # armed ahead
        await stage.conn.execute(
            "update mainspring.schedule set next_plan_at = now() - interval '1 h', look_at = now() - interval '1 h'"
        )
        server.planner.wake.set()
        counting = asyncio.create_task(run_every(0.2, server.queue_counter.step))  # and not only every five seconds
        await stage.moved(moves)
        counting.cancel()
        await asyncio.wait([counting])
        go_on.set()
        await cluster.close()


async def watched(stage: Stage, moves: Sequence[Move]) -> None:
    """A schedule with an SLO that nobody plans, and addresses that are refused: loopback is not allowed."""
    async with idle_server(stage) as server:
        given: Any = {"every": "1h", "slo": {"lateness": "1ms"}, "ping_url": "http://127.0.0.1:9/"}
        assert await schedules.create(stage.conn, define_schedule("watched", "job", given), enabled=True)
        await stage.conn.execute("update mainspring.server set status = 'active', lease_until = now() + interval '1 h'")
        server.catalogue.settings = RunTimeSettings(heartbeat_url="http://127.0.0.1:9/")
        await server.heartbeat.step()
        await backfill.run_now(stage.conn, "watched")
        await stage.conn.execute("update mainspring.task set state = 3, attempt = 1, started_at = mainspring.now()")
        await set_forward(stage.conn, 3700.0, 3700.0)
        await server.pinger.step()
        await server.slo_counter.step()
        await stage.moved(moves)
        await server.pinger.close()
        await server.fetcher.close()


async def maintenance(stage: Stage, moves: Sequence[Move]) -> None:
    async with idle_server(stage) as server:
        await stage.conn.execute("""
            insert into mainspring.segment_move (at, term, reason, segments)
                values (mainspring.now() - interval '10 years', 1, 'free', '{1}');
            alter table mainspring.task_key rename to task_key_of_old
        """)
        await server.janitor.step()
        await stage.moved(moves)


async def dead_rows(stage: Stage, moves: Sequence[Move]) -> None:
    cluster = ClusterMetrics(stage.database)
    await stage.watch([cluster.families], cluster.refresh)
    for _ in range(20):
        await stage.conn.execute("update mainspring.segment set epoch = epoch + 1")
    await stage.conn.execute("select pg_stat_force_next_flush()")
    await stage.moved(moves)
    await cluster.close()


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────


async def crashes(stage: Stage, moves: Sequence[Move]) -> None:
    """A task whose agents die, three times; then one of them reports after all."""
    async with idle_server(stage) as server:
        id = await stage.conn.fetchval("select mainspring.enqueue('job')")
        for _ in range(3):
            await stage.conn.execute("update mainspring.task set run_at = mainspring.now()")
            assert await crash(stage.conn) == [id]
            assert await server.rescuer.step() == 1
        late = Ending(id, 1, 1, 1, TaskState.SUCCEEDED, 1_790_000_000.0, 1_790_000_001.0)
        await server.recorder.record(stage.conn, [late])
        await stage.moved(moves)


async def mute_agent(stage: Stage, moves: Sequence[Move]) -> None:
    """An agent that acknowledges nothing, gives one task back, and goes away."""
    async with idle_server(stage) as server:
        agent = await Agent(server).join()  # type: ignore[arg-type]  # a whole server has what it needs
        await stage.conn.execute("select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[2]))")
        pool = await stage.conn.fetchval("select pool from mainspring.job")
        claim = await claims.claim(stage.conn, OWNER, pool, [agent.session], 2, [BOTTOM] * 10, ahead=5.0)
        await server.gateway.arm(claim)
        await server.gateway.sessions[agent.session].link.resend()
        [armed, _] = claim.tasks[agent.session]
        await agent.say(Refused([armed], "no"))
        await stage.moved([move("dispatches_total", result="refused")])
        await agent.leave()
        await stage.moved(moves)


async def strangers(stage: Stage, moves: Sequence[Move]) -> None:
    """An agent that speaks another protocol, and one that comes back."""
    async with idle_server(stage) as server:
        stranger = Agent(server)  # type: ignore[arg-type]
        await stranger.say(Hello("agent", 1, {}, protocol=PROTOCOL + 1))
        with suppress(ChannelClosed):
            await stranger.hear()
        first = await Agent(server).join()  # type: ignore[arg-type]
        again = Agent(server)  # type: ignore[arg-type]
        again.hello = Hello("agent", 10, {}, instance=first.hello.instance, session=first.session, connection=2)
        await again.join()
        await stage.moved(moves)
        await first.leave()
        await again.leave()


async def lost_leases(stage: Stage, moves: Sequence[Move]) -> None:
    """A server that was declared dead, and an agent whose session has ended in the database."""
    async with idle_server(stage) as server:
        agent = await Agent(server).join()  # type: ignore[arg-type]
        await server.membership.join()
        await stage.conn.execute("update mainspring.server set status = 'dead'")
        await stage.conn.execute("update mainspring.agent set ended_at = now()")
        await server.membership.beat()
        await server.gateway.renew()
        await server.leader.step()
        await server.coordinator.step()
        await server.membership.drain()
        await stage.moved(moves)
        await agent.leave()
        await server.leader.close()
        await server.membership.close()


async def store(stage: Stage, moves: Sequence[Move]) -> None:
    async with idle_server(stage):
        async with stage.database.acquire() as conn:
            with suppress(asyncpg.DivisionByZeroError):
                await conn.fetchval("select 1 / 0")
        await stage.moved(moves)


async def queues(stage: Stage, moves: Sequence[Move]) -> None:
    await jobs.register(stage.conn, {"small": Definition(Python("small"), max_queued=1)})
    async with idle_server(stage) as server:
        cluster = ClusterMetrics(stage.database)
        await stage.watch([ServerMetrics(server).families, cluster.families], cluster.refresh)
        async with stage.database.acquire() as conn:
            await conn.fetchval("select mainspring.enqueue('small', expires => '1 millisecond')")
            await tasks.cancel(conn, await conn.fetchval("select mainspring.enqueue('job')"))
        requests = stage.database.for_api()
        async with requests.acquire() as conn:
            with suppress(asyncpg.PostgresError):
                await conn.fetchval("select mainspring.enqueue('small')")
        await requests.close()
        await asyncio.sleep(0.01)
        await server.expiry.step()
        await server.queue_counter.step()
        await stage.moved(moves)
        await cluster.close()


# ── this process ────────────────────────────────────────────────────────────────────────────────


async def requests(stage: Stage, moves: Sequence[Move]) -> None:
    http = HttpTally()
    await stage.watch([http.families])
    http.add("tasks.cancel", 202, 0.004)
    http.refuse("expired")
    http.streams = lambda: 1
    await stage.moved(moves)


async def loop(stage: Stage, moves: Sequence[Move]) -> None:
    lag = LoopLag()
    await stage.watch([])
    stage._sources = [lag.families, build, process]
    sampling = asyncio.create_task(lag.run())
    await stage.moved(moves)
    sampling.cancel()
    await asyncio.wait([sampling])


async def alerts(stage: Stage, moves: Sequence[Move]) -> None:
    cluster, evaluator = ClusterMetrics(stage.database), Evaluator(stage.database)
    await stage.watch([cluster.families], cluster.refresh)
    await stage.conn.execute("update mainspring.alert_rule set hold = '0' where name = 'no-agents'")
    await evaluator.step()
    await stage.moved(moves)
    await cluster.close()


async def unowned(stage: Stage, moves: Sequence[Move]) -> None:
    cluster = ClusterMetrics(stage.database)
    await stage.watch([cluster.families], cluster.refresh)
    await stage.conn.execute("update mainspring.server set status = 'active', lease_until = now() + interval '1 hour'")
    await stage.moved(moves)
    await cluster.close()


async def holds(stage: Stage, moves: Sequence[Move]) -> None:
    cluster = ClusterMetrics(stage.database)
    await jobs.register(stage.conn, {"works": Definition(Python("works"))})
    await stage.watch([cluster.families], cluster.refresh)
    await hold_job(stage.conn, Actor("alice"), "works")
    await stage.conn.execute("select mainspring.enqueue('works')")
    await hold(stage.conn, Actor("alice"))
    await stage.moved(moves)
    await cluster.close()


async def aging(stage: Stage, moves: Sequence[Move]) -> None:
    app = App("metrics", dsn=stage.dsn, poll=0.1, lease=2, stop_patience=0.2, agent_name="tester", slots=1)

    @app.job(priority="critical")
    async def works() -> None:
        await asyncio.sleep(0.01)

    async with app.running():
        assert app._engine is not None
        await stage.watch([ServerMetrics(app._engine.server).families])
        await works.enqueue_many([()] * 200)
        await works.using(priority="low", run_at=datetime.now(UTC) - timedelta(hours=1)).enqueue()
        await stage.moved(moves)
