"""One torture run: boot, load and faults, heal, settle, stop, gather the evidence.

Next: tests/torture/invariants.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import psutil

import mainspring
from tests.conftest import directory_for_a_server
from tests.ledger import read_ledger
from tests.torture import alerts
from tests.torture import evidence as gathered
from tests.torture.app import END, LEDGER, START
from tests.torture.batches import BatchLoad
from tests.torture.cluster import Cluster
from tests.torture.crowd import Crowd
from tests.torture.evidence import Evidence
from tests.torture.holder import Holder
from tests.torture.injector import Injector
from tests.torture.load import JOBS, WAITS, Load
from tests.torture.oracle import expected
from tests.torture.plan import LEASE, Fault, Sizes
from tests.torture.timetable import TIMETABLE

SOURCE = Path(mainspring.__file__).parents[1]
BOOT = 10.0  # seconds before the first plan time
SETTLE_WITHIN = 60.0  # seconds after the heal
LEFT_WITHIN = 10.0  # seconds for the last processes to go
EXTRA = 0.5  # seconds: plan times are whole ones, so none lies on an edge


class Trial(NamedTuple):
    """What is run: `source` is where the product's code is."""

    seed: int
    seconds: float
    plan: Sequence[Fault]
    sizes: Sizes = Sizes()
    source: Path = SOURCE
    jobs: Mapping[str, int] = JOBS  # that are submitted, with their weights
    holds: bool = True  # jobs are held and released
    alerts: bool = True  # there is a channel
    crowd: bool = True  # more is submitted of a bounded job than may wait
    waits: Mapping[float, int] = WAITS  # seconds at work of what is submitted, with their weights


async def torture(trial: Trial, keep: Path | None = None) -> Evidence:
    """Run it, and return what is left behind. With `keep`, logs and evidence stay there."""
    with directory_for_a_server() if keep is None else _kept(keep) as directory:
        evidence = await _run(trial, directory)
        gathered.save(evidence, directory / "evidence.json")
    return evidence


@contextmanager
def _kept(directory: Path) -> Iterator[Path]:
    directory.mkdir(mode=0o711, parents=True)
    yield directory


async def _run(trial: Trial, directory: Path) -> Evidence:
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=BOOT + EXTRA)
    end = begin + timedelta(seconds=trial.seconds)
    ledger = directory / "ledger"
    environment = {LEDGER: str(ledger), START: begin.isoformat(), END: end.isoformat(), **alerts.ALLOW}
    cluster = Cluster(directory, trial.sizes, trial.source, environment)
    injector = Injector(cluster)
    evidence = Evidence(trial.seed, LEASE)
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(alerts.receiver(trial.seed))
        stack.push_async_callback(cluster.close)
        await cluster.open(standby=any(fault.kind == "failover" for fault in trial.plan))
        since = await _boot(cluster)
        if trial.alerts:
            async with cluster.connected() as conn:
                await alerts.begin(conn, receiver)
        load = Load(cluster.dsn_through("client"), trial.seed, trial.jobs, trial.waits)
        batches = BatchLoad(cluster.dsn_through("client"), trial.seed)
        holder = Holder(cluster.dsn_through("client"), trial.seed, trial.jobs)
        crowd = Crowd(cluster.dsn_through("client"), cluster.connected)
        cluster.watch()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(trial.seconds))
            group.create_task(batches.run(trial.seconds))
            group.create_task(injector.run(trial.plan))
            if trial.crowd:
                group.create_task(crowd.run(trial.seconds))
            if trial.holds:
                group.create_task(holder.run(trial.seconds))
        plans = [expected([tick], max(since[tick.name], begin), end) for tick in TIMETABLE]
        evidence.expected = sorted(chain.from_iterable(plans))
        await _settle(cluster, evidence, end)
        if trial.alerts:
            async with cluster.connected() as conn:
                await alerts.settle(conn)
        evidence.did_not_stop = [*injector.did_not_stop, *await cluster.stop()]
        evidence.processes_left = await _processes_left(str(ledger))
        evidence.accepted = load.accepted | crowd.accepted  # all that answers came for
        evidence.most_waiting = crowd.most_waiting
        evidence.accepted_at = load.accepted_at
        evidence.opened = batches.opened
        evidence.held = holder.spans
        async with cluster.connected() as conn:
            await gathered.dump(conn, evidence)
        evidence.receipts = alerts.receipts(receiver)
    evidence.lines = read_ledger(ledger)
    evidence.faults, evidence.clock_steps = injector.happened, injector.clock_steps
    evidence.lives = [life for node in cluster.nodes.values() for life in node.lives]
    return evidence


async def _boot(cluster: Cluster) -> dict[str, datetime]:
    """Start all, the first server alone: it makes the schema. Returns when each schedule was registered."""
    first, *others = cluster.sizes.processes
    await cluster.start([first])
    async with cluster.connected() as conn:
        await conn.execute(gathered.PREPARE)
        since = dict(await conn.fetch("select name, since from mainspring.schedule"))
    await cluster.give_token()
    await cluster.start(others)
    return since


_LEFT = """
    select (select count(*) from mainspring.task) + (select count(*) from mainspring.batch where state < 2),
           (select count(*) from mainspring.fire),
           (select count(*) from mainspring.segment s left join mainspring.server o on o.id = s.owner
             where o.status is distinct from 'active' or o.lease_until <= mainspring.now())
"""


async def _settle(cluster: Cluster, evidence: Evidence, end: datetime) -> None:
    """Wait until all has ended that was accepted or planned, and every segment has an owner that lives."""
    evidence.bound = SETTLE_WITHIN
    healed = time.monotonic()
    async with cluster.connected() as conn:
        left = (end - await conn.fetchval("select mainspring.now()")).total_seconds()
        await asyncio.sleep(max(0.0, left))
        began = time.monotonic()
        while time.monotonic() - began < SETTLE_WITHIN:
            live, fires, unowned = await conn.fetchrow(_LEFT)
            if not live and not unowned and fires >= len(evidence.expected):
                evidence.settled = round(time.monotonic() - healed, 2)
                return
            await asyncio.sleep(0.2)


async def _processes_left(mark: str) -> list[str]:
    """Processes of commands that are still there, after a while: they have the ledger's name in their arguments."""
    deadline = time.monotonic() + LEFT_WITHIN
    while True:
        found = [
            f"{process.pid} {' '.join(words)}"
            for process in psutil.process_iter(["cmdline"])
            if mark in (words := process.info["cmdline"] or [])
        ]
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)
