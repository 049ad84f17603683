"""AgentSession: cancels and pauses reach the agent once, also for attempts that it kept from another server."""

from __future__ import annotations

import pytest

from mainspring.model.messages import Armed, AttemptId, Cancel, Drain, Hello, Holding, Pause, Recall
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.server.agents.session import MANY_HELD, AgentSession, stop_message
from mainspring.store.tasks.session_tasks import CancelRequest
from mainspring.wire.channel import memory_pair
from mainspring.wire.clock import boottime
from mainspring.wire.link import Link


def session(*held: Holding) -> AgentSession:
    _, far = memory_pair()
    return AgentSession(1, Hello("agent", 1, {}, held=list(held)), Link(far), instance="x", local=False)


def test_a_pause_is_told_once_and_so_is_its_end() -> None:
    one = session()
    one.held = {7: 70, 8: 80}
    assert one.pause({70: 7}) == [Pause([AttemptId(7, 70)])]
    assert one.pause({70: 7}) == []
    assert one.pause({70: 7, 80: 8}) == [Pause([AttemptId(8, 80)])]
    assert one.pause({80: 8}) == [Pause([AttemptId(7, 70)], resume=True)]
    assert one.pause({}) == [Pause([AttemptId(8, 80)], resume=True)]
    assert one.pause({}) == []


def test_what_has_ended_while_it_was_paused_is_not_told_to_go_on() -> None:
    one = session()
    one.held = {7: 70}
    one.pause({70: 7})
    one.release(7)
    assert one.pause({}) == []


def test_what_an_agent_brings_from_another_server_is_told_to_go_on_unless_it_is_paused() -> None:
    """It may have been paused there, and resumed while nobody could tell it."""
    one = session(
        Holding(7, 70, TaskState.RUNNING), Holding(8, 80, TaskState.RUNNING), Holding(9, 90, TaskState.ASSIGNED)
    )
    one.held = {7: 70, 8: 80, 9: 90}
    assert one.pause({70: 7}) == [Pause([AttemptId(7, 70)]), Pause([AttemptId(8, 80)], resume=True)]


@pytest.mark.parametrize(
    ("since_renewal", "since_beat", "in_flight", "trusted"),
    [
        (0.0, 0.0, None, True),
        (12.0, 12.0, 2.9, True),
        (12.6, 0.0, None, False),  # its lease is about to expire
        (0.0, 12.6, None, False),  # its watchdog renews the lease; the agent itself is silent
        (0.0, 0.0, 3.1, False),  # it does not take what is sent to it
    ],
)
async def test_an_agent_gets_new_tasks_while_it_answers_and_its_lease_lasts(
    since_renewal: float, since_beat: float, in_flight: float | None, trusted: bool
) -> None:
    one, now = session(), boottime()
    one.renewed_at, one.heard_at = now - since_renewal, now - since_beat
    if in_flight is not None:
        one.link.post([Drain()])
        one.link._in_flight[0].first_sent = now - in_flight
    assert one.is_trusted(now, 15.0) is trusted


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (None, Cancel([AttemptId(7, 70)])),
        (CancelMode.RECALL, Recall([AttemptId(7, 70)])),
        (CancelMode.KILL, Cancel([AttemptId(7, 70)], kill=True)),
        (CancelMode.RESTART, Cancel([AttemptId(7, 70)], restart=True)),
    ],
)
def test_each_way_to_stop_has_its_message(mode: CancelMode | None, message: object) -> None:
    assert stop_message(CancelRequest(1, 7, 70, mode)) == message


def test_of_many_held_tasks_the_claims_are_compacted_once_most_have_ended() -> None:
    agent = session()
    tasks = [Armed(task, task * 10, 1, 1, 0.0, "{}") for task in range(2 * MANY_HELD + 3)]
    agent.arm(tasks, 0.0, {})
    for armed in tasks[: MANY_HELD + 1]:
        agent.release(armed.task)
    assert not agent.is_worth_compacting(1), "more than half are held"
    agent.release(tasks[-1].task)
    assert agent.is_worth_compacting(1)


def test_of_few_held_tasks_the_claims_are_compacted_whenever_they_have_changed() -> None:
    agent = session()
    agent.arm([Armed(1, 10, 1, 1, 0.0, "{}"), Armed(2, 20, 1, 1, 0.0, "{}")], 0.0, {})
    assert agent.is_worth_compacting(1)
    agent.compacted = (1, [1, 2])
    assert not agent.is_worth_compacting(1)
    agent.release(1)
    assert agent.is_worth_compacting(1)
