"""Outbox: what is gathered into one sending."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from mainspring.agent.attempt import Attempt
from mainspring.agent.connection.outbox import AT_ONCE, FRAME, GATHERED, START_DELAY, Outbox
from mainspring.model.messages import (
    ITEMS,
    AgentMessage,
    Armed,
    AttemptId,
    Chunk,
    Ending,
    Finished,
    Note,
    Output,
    Progress,
    Refused,
    Start,
    Started,
)
from mainspring.model.reports import items
from mainspring.model.tasks.jobs import Definition, Job, Python
from mainspring.model.tasks.states import TaskState
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


def take_one(outbox: Outbox) -> None:
    """A frame has just been sent."""
    outbox.ended(ending(100))
    assert outbox.take()


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
    await asyncio.wait_for(outbox.ready.wait(), 20)
    assert asyncio.get_running_loop().time() - began >= START_DELAY / 2
    assert outbox.take() == [Started([Start(1, 10, 5.0)])]


async def test_an_ending_that_can_wait_goes_at_once_after_a_pause_and_with_others_under_load(outbox: Outbox) -> None:
    outbox.ended(ending(1), can_wait=True)
    assert outbox.ready.is_set(), "nothing was sent for long: an idle agent reports at once"
    assert outbox.take() == [Finished([ending(1)])]
    outbox.ended(ending(2), can_wait=True)
    outbox.ended(ending(3), can_wait=True)
    assert not outbox.ready.is_set()
    assert [held.task for held in outbox.holdings()] == [2, 3], "until then the agent says that it holds them"
    await asyncio.wait_for(outbox.ready.wait(), 20)
    assert outbox.take() == [Finished([ending(2), ending(3)])]
    outbox.ended(ending(4), can_wait=True)
    await asyncio.wait_for(outbox.ready.wait(), 20)


async def test_an_ending_that_cannot_wait_takes_the_others_along(outbox: Outbox) -> None:
    take_one(outbox)
    outbox.ended(ending(1), can_wait=True)
    assert not outbox.ready.is_set()
    outbox.ended(ending(2))
    assert outbox.ready.is_set()
    assert outbox.take() == [Finished([ending(1), ending(2)])]
    outbox.ended(ending(3), can_wait=True)
    assert not outbox.ready.is_set(), "the wait of the first is over, and that of this one begins"


async def test_what_sends_nothing_is_no_frame_that_an_ending_waits_for(outbox: Outbox) -> None:
    assert outbox.take() == []
    outbox.ended(ending(1), can_wait=True)
    assert outbox.ready.is_set()


async def test_many_endings_do_not_wait(outbox: Outbox) -> None:
    take_one(outbox)
    for task in range(GATHERED):
        assert not outbox.ready.is_set()
        outbox.ended(ending(task), can_wait=True)
    assert outbox.ready.is_set()


async def test_the_delay_of_starts_sends_nothing_once_they_have_ended(outbox: Outbox) -> None:
    outbox.take()
    outbox.started(attempt(outbox, 1))
    outbox.ended(ending(1))
    outbox.take()
    await asyncio.sleep(2 * START_DELAY)
    assert not outbox.ready.is_set()


async def test_in_a_hurry_starts_go_at_once(outbox: Outbox) -> None:
    outbox.started(attempt(outbox, 1))
    outbox.hurry()
    assert outbox.ready.is_set()
    assert outbox.take() == [Started([Start(1, 10, 5.0)])]
    outbox.started(attempt(outbox, 2))
    assert outbox.take() == [], "the next one waits its own moment"


async def test_a_start_that_is_due_is_not_held_up_by_one_that_is_not(outbox: Outbox) -> None:
    outbox.started(attempt(outbox, 1))
    await asyncio.wait_for(outbox.ready.wait(), 20)
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
        outbox.refused(attempt(outbox, task).armed, reason)
    assert outbox.take() == [
        Refused([AttemptId(1, 10), AttemptId(3, 30)], "full"),
        Refused([AttemptId(2, 20)], "draining"),
    ]


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
        assert await asyncio.wait_for(sent.get(), 20) == [Finished([ending(task)])]
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
    assert await asyncio.wait_for(sent.get(), 20) == [Finished([ending(1), ending(2)])]
    sending.cancel()


async def test_a_note_may_come_from_the_thread_of_a_handler(outbox: Outbox) -> None:
    mine = attempt(outbox, 1)
    await asyncio.to_thread(mine.note, "0.5", None)
    await asyncio.wait_for(outbox.ready.wait(), 20)
    assert outbox.take() == [Progress([Note(1, 10, "0.5", None)])]


# ── what is large goes in parts ─────────────────────────────────────────────────────────────────


async def test_output_is_parted_to_fit_and_nothing_of_it_is_lost(outbox: Outbox) -> None:
    mine = attempt(outbox, 1)
    mine.output(1, b"abcdefgh")
    mine.output(0, b"a remark stays whole")
    outbox.ended(ending(1))
    chunks: list[Chunk] = []
    while (messages := outbox.take(3)) and isinstance(messages[0], Output):
        chunks += messages[0].chunks
        if len(messages) > 1:
            break
        outbox.ready.set()
    assert [(chunk.number, chunk.data) for chunk in chunks] == [
        (1, b"abc"), (2, b"def"), (3, b"gh"), (4, b"a remark stays whole"),
    ]  # fmt: skip
    assert Finished([ending(1)]) in messages


async def test_without_room_only_what_weighs_nothing_goes_and_the_rest_waits(outbox: Outbox) -> None:
    outbox.ended(ending(1))
    outbox.ended(replace(ending(2), result="[1]"))
    assert outbox.take(0) == [Finished([ending(1)])]
    assert not outbox.ready.is_set(), "it is set when there is room"
    assert outbox.take(1) == [Finished([replace(ending(2), result="[1]")])]


async def test_an_end_waits_for_the_checkpoint_before_it(outbox: Outbox) -> None:
    attempt(outbox, 1).note(None, "[1]")
    outbox.ended(ending(1))
    assert outbox.take(0) == []
    assert outbox.take(3) == [Progress([Note(1, 10, None, "[1]")]), Finished([ending(1)])]


async def test_checkpoints_together_make_no_frame_that_is_too_large(outbox: Outbox) -> None:
    for task in range(1, 4):
        attempt(outbox, task).note(None, "x" * (FRAME // 2 + 1))
    sent = [outbox.take() for _ in range(4)]
    assert [len(message.notes) for messages in sent for message in messages if isinstance(message, Progress)] == [1] * 3


async def test_endings_together_make_no_frame_that_is_too_large(outbox: Outbox) -> None:
    for task in range(AT_ONCE + 1):
        outbox.ended(ending(task))
    assert [len(message.endings) for _ in range(2) for message in outbox.take() if isinstance(message, Finished)] == [
        AT_ONCE, 1,
    ]  # fmt: skip


async def test_no_message_has_more_items_than_a_server_takes(outbox: Outbox) -> None:
    for task in range(1, AT_ONCE + 3):
        made = attempt(outbox, task)
        outbox.started(made)
        outbox.refused(made.armed, "full" if task % 2 else "draining")
        made.note("1", None)
        made.output(1, b"x")
    outbox.hurry()
    sent: list[AgentMessage] = []
    while outbox.ready.is_set():
        sent += outbox.take()
    for kind in (Started, Refused, Progress, Output):
        sizes = [len(items(message)) for message in sent if isinstance(message, kind)]
        assert (max(sizes) <= AT_ONCE <= ITEMS, sum(sizes)) == (True, AT_ONCE + 2), kind


async def test_a_large_backlog_goes_out_at_once_in_frames_between_which_the_loop_turns(outbox: Outbox) -> None:
    """Also while attempts wait for a slot: only the first of them waits for more."""
    for task in range(3 * AT_ONCE):
        outbox.ended(ending(task))
    turns = 0
    sent: list[tuple[int, int]] = []
    done = asyncio.Event()

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    async def send(messages: list[AgentMessage]) -> None:
        if not sent:
            turn()
        sent.append((sum(len(items(message)) for message in messages if isinstance(message, Finished)), turns))
        if len(sent) == 3:
            done.set()

    waits = 0

    def crowded() -> bool:
        nonlocal waits
        waits += 1
        return True

    sending = asyncio.ensure_future(outbox.run(send, crowded))
    async with asyncio.timeout(20):
        await done.wait()
    sending.cancel()
    assert [size for size, _ in sent] == [AT_ONCE] * 3
    assert sent[0][1] < sent[1][1] < sent[2][1], "the loop ran other steps in between"
    assert waits == 1


async def test_a_crowded_outbox_sends_once_no_attempt_waits(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.agent.connection.outbox.CROWDED_DELAY", 600.0)
    sent: list[AgentMessage] = []
    done, asked = asyncio.Event(), asyncio.Event()

    async def send(messages: list[AgentMessage]) -> None:
        sent.extend(messages)
        done.set()

    def crowded() -> bool:
        asked.set()
        return True

    outbox.ended(ending(1))
    sending = asyncio.ensure_future(outbox.run(send, crowded))
    async with asyncio.timeout(20):
        await asked.wait()
        outbox.ended(ending(2))
        await asyncio.sleep(0)
        assert not sent, "it waits for more"
        outbox.uncrowded.set()
        await done.wait()
    sending.cancel()
    assert sent == [Finished([ending(1), ending(2)])]


async def test_output_that_is_told_again_is_parted_too(outbox: Outbox) -> None:
    chunks = [Chunk(1, 10, number, 1, 5.0, b"x" * 10) for number in (1, 2, 3)]
    outbox.put_back([Output(chunks), Finished([ending(1)])])
    assert outbox.take(0) == []
    assert outbox.take(25) == [Output(chunks[:2])]
    assert outbox.take(5) == [Output(chunks[2:])]
    assert outbox.take(5) == [Finished([ending(1)])]
