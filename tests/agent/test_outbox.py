"""Outbox: what is gathered into one sending."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.agent.attempt import Attempt
from mainspring.agent.outbox import START_DELAY, Outbox
from mainspring.model.jobs import Definition, Job, Python
from mainspring.model.messages import (
    AgentMessage,
    Armed,
    Ending,
    Finished,
    Held,
    Note,
    Output,
    Progress,
    Refused,
    Start,
    Started,
)
from mainspring.model.states import TaskState
from mainspring.wire.clock import Clock

JOB = Job(1, "job", 1, 1, Definition(Python("job")))


@pytest.fixture
async def outbox() -> Outbox:
    return Outbox(Clock())


def attempt(outbox: Outbox, task: int) -> Attempt:
    made = Attempt(Armed(task, task * 10, 1, 1, 0.0, "{}"), JOB, outbox)
    made.started_at = 5.0
    return made


def ending(task: int) -> Ending:
    return Ending(task, task * 10, 1, 1, TaskState.SUCCEEDED, 5.0, 6.0)


async def test_a_start_with_its_end_is_sent_as_an_end_alone(outbox: Outbox) -> None:
    outbox.started(attempt(outbox, 1))
    outbox.ended(ending(1))
    outbox.hurry()
    assert outbox.take() == [Finished([ending(1)])]
    assert outbox.take() == []


async def test_a_start_waits_a_moment_for_its_end(outbox: Outbox) -> None:
    outbox.started(attempt(outbox, 1))
    outbox.started(attempt(outbox, 2))
    assert not outbox.ready.is_set()
    outbox.ended(ending(2))
    assert outbox.take() == [Finished([ending(2)])]
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(outbox.ready.wait(), 5)
    assert asyncio.get_running_loop().time() - began >= START_DELAY / 2
    assert outbox.take() == [Started([Start(1, 10, 5.0)])]


async def test_in_a_hurry_starts_go_at_once(outbox: Outbox) -> None:
    outbox.started(attempt(outbox, 1))
    outbox.hurry()
    assert outbox.ready.is_set()
    assert outbox.take() == [Started([Start(1, 10, 5.0)])]
    outbox.started(attempt(outbox, 2))
    assert outbox.take() == [], "the next one waits its own moment"


async def test_a_start_that_is_due_is_not_held_up_by_one_that_is_not(outbox: Outbox) -> None:
    outbox.started(attempt(outbox, 1))
    await asyncio.wait_for(outbox.ready.wait(), 5)
    outbox.started(attempt(outbox, 2))
    sent = outbox.take()
    assert sent, "its delay was over"
    assert isinstance(sent[0], Started)
    assert Start(1, 10, 5.0) in sent[0].starts


async def test_notes_of_an_attempt_become_one(outbox: Outbox) -> None:
    first, second = attempt(outbox, 1), attempt(outbox, 2)
    first.note("0.1", None)
    first.note(None, '{"at": 1}')
    first.note("0.2", None)
    second.note("0.9", None)
    assert outbox.take() == [Progress([Note(1, 10, "0.2", '{"at": 1}'), Note(2, 20, "0.9", None)])]


async def test_output_is_numbered_within_its_attempt(outbox: Outbox) -> None:
    first, second = attempt(outbox, 1), attempt(outbox, 2)
    first.output(1, b"a")
    second.output(2, b"b")
    [sent] = outbox.take()
    first.output(1, b"c")
    [later] = outbox.take()
    assert isinstance(sent, Output)
    assert isinstance(later, Output)
    told = [(c.task, c.token, c.number, c.stream, c.data) for c in sent.chunks + later.chunks]
    assert told == [(1, 10, 1, 1, b"a"), (2, 20, 1, 2, b"b"), (1, 10, 2, 1, b"c")]


async def test_what_is_given_back_is_told_by_reason(outbox: Outbox) -> None:
    for task, reason in [(1, "full"), (2, "draining"), (3, "full")]:
        outbox.refused(attempt(outbox, task), reason)
    assert outbox.take() == [Refused([Held(1, 10), Held(3, 30)], "full"), Refused([Held(2, 20)], "draining")]


async def test_an_end_comes_after_the_output_before_it(outbox: Outbox) -> None:
    mine = attempt(outbox, 1)
    mine.note("1", None)
    mine.output(1, b"a")
    outbox.ended(ending(1))
    assert [type(message) for message in outbox.take()] == [Progress, Output, Finished]


async def test_it_sends_whenever_there_is_something(outbox: Outbox) -> None:
    sent: asyncio.Queue[list[AgentMessage]] = asyncio.Queue()

    async def send(messages: list[AgentMessage]) -> None:
        sent.put_nowait(messages)

    sending = asyncio.ensure_future(outbox.run(send, lambda: False))
    for task in (1, 2):
        outbox.ended(ending(task))
        assert await asyncio.wait_for(sent.get(), 5) == [Finished([ending(task)])]
    outbox.ready.set()  # for nothing
    await asyncio.sleep(0)
    assert sent.empty()
    sending.cancel()


async def test_while_attempts_wait_for_a_slot_it_sends_in_larger_batches(outbox: Outbox) -> None:
    sent: asyncio.Queue[list[AgentMessage]] = asyncio.Queue()

    async def send(messages: list[AgentMessage]) -> None:
        sent.put_nowait(messages)

    sending = asyncio.ensure_future(outbox.run(send, lambda: True))
    outbox.ended(ending(1))
    await asyncio.sleep(0)
    outbox.ended(ending(2))
    assert await asyncio.wait_for(sent.get(), 5) == [Finished([ending(1), ending(2)])]
    sending.cancel()


async def test_a_note_may_come_from_the_thread_of_a_handler(outbox: Outbox) -> None:
    mine = attempt(outbox, 1)
    await asyncio.to_thread(mine.note, "0.5", None)
    await asyncio.wait_for(outbox.ready.wait(), 5)
    assert outbox.take() == [Progress([Note(1, 10, "0.5", None)])]
