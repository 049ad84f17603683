"""One task on every host, by the jobs' own ledger: three worker processes, each a server and an agent."""

from __future__ import annotations

from collections import Counter

from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import explain, fires, schedules
from mainspring.store.tasks import broadcasts
from tests.conftest import eventually
from tests.journey.conftest import Story, Worker


async def three(story: Story, **settings: object) -> list[Worker]:
    return [await story.worker(agent_name=f"host-{number}", **settings) for number in range(3)]


def pids(story: Story, event: str = "effect") -> Counter[int]:
    return Counter(line.pid for line in story.ledger() if line.event == event)


async def test_a_broadcast_has_one_effect_on_every_worker(story: Story, conn: Connection) -> None:
    workers = await three(story)
    task = await story.app["everywhere"].enqueue()
    result = await task.result(timeout=30)
    assert (result["agents"], result["succeeded"]) == (3, 3)
    assert pids(story) == Counter(worker.pid for worker in workers)
    children = await broadcasts.children(conn, task.id)
    assert [(child.agent, child.state) for child in children] == [(f"host-{n}", "succeeded") for n in range(3)]
    starts = [child.started_at for child in children if child.started_at is not None]
    spread = (max(starts) - min(starts)).total_seconds() * 1000
    assert abs(result["spread_ms"] - spread) < 0.01


async def test_cron_on_all_hosts_runs_each_plan_time_on_each_of_them(story: Story, conn: Connection) -> None:
    workers = await three(story)
    plan = define_schedule("all-hosts", "everywhere", {"cron": "* * * * * *", "overlap": "skip", "max_runs": 3})
    assert await schedules.create(conn, plan, enabled=True)

    async def all_ended() -> bool:
        return bool(await conn.fetchval("select count(*) = 3 from mainspring.task_history where schedule_id > 0"))

    await eventually(all_ended, timeout=30)
    rows = await conn.fetch("select state, result, plan_time from mainspring.task_history where schedule_id > 0")
    assert {row["state"] for row in rows} == {10}
    assert len({row["plan_time"] for row in rows}) == 3
    assert pids(story) == Counter({worker.pid: 3 for worker in workers})
    stored = await schedules.find(conn, "all-hosts")
    [told] = [one for one in await explain.explain(conn, stored) if one.fires]
    assert any("on 3 agents" in said for said in told.fires[0].said)
    assert await fires.last_decided(conn, stored) is not None


async def test_a_worker_that_is_killed_fails_the_broadcast_and_no_other_does_its_run(
    story: Story, conn: Connection
) -> None:
    workers = await three(story, lease="2s")
    gate = story.directory / "gate"
    task = await story.app["hold_everywhere"].enqueue(gate=str(gate))
    await story.until_written(3)
    await workers[1].kill()
    gate.touch()

    async def ended() -> bool:
        return (await task.status()).state == "failed"

    await eventually(ended, timeout=40)
    view = await task.status()
    assert view.error == "1 of 3 agents did not succeed: host-1"
    children = {child.agent: child.state for child in await broadcasts.children(conn, task.id)}
    assert children == {"host-0": "succeeded", "host-1": "lost", "host-2": "succeeded"}
    assert set(pids(story)) == {workers[0].pid, workers[2].pid}


async def test_a_worker_that_comes_back_does_its_own_run_again(story: Story) -> None:
    workers = await three(story, lease="10s")
    gate = story.directory / "gate"
    task = await story.app["hold_everywhere"].enqueue(gate=str(gate))
    await story.until_written(3)
    await workers[1].kill()
    back = await story.worker(agent_name="host-1", lease="10s")
    gate.touch()
    result = await task.result(timeout=40)
    assert (result["agents"], result["succeeded"]) == (3, 3)
    assert set(pids(story)) == {workers[0].pid, workers[2].pid, back.pid}
