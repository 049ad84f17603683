"""Reports that wait for a flush: each session has its share, and no more memory than its own."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.model.messages import AgentMessage, Chunk, Ending, Finished, Output, ServerMessage
from mainspring.model.tasks.states import TaskState
from mainspring.server.recording.flush import (
    FLUSH_BYTES,
    FLUSH_ITEMS,
    ITEM,
    SHARE,
    SLOW_DOWN_FROM,
    STOP_READING_FROM,
    SUCCESSES,
    Reports,
    ServerLink,
)
from mainspring.wire.channel import ChannelClosed, memory_pair
from mainspring.wire.link import Link


def link() -> ServerLink:
    made: Link[ServerMessage, AgentMessage] = Link(memory_pair()[1])
    return made


def add(reports: Reports, link: ServerLink, sequence: int, size: int = 0) -> None:
    """A frame of so many bytes with the output of the attempt `sequence`."""
    link.received_bytes = size
    reports.add(link, sequence, [Output([Chunk(1, sequence, 1, 1, 1.0, b"x")])])


def test_a_session_that_reports_much_does_not_delay_one_that_reports_little() -> None:
    reports, greedy, modest = Reports(), link(), link()
    for sequence in range(1, 101):
        add(reports, greedy, sequence, SHARE)
    add(reports, modest, 1)
    flush = reports.take()
    assert flush.settles[modest] == 1
    assert flush.settles[greedy] <= FLUSH_BYTES // SHARE
    add(reports, modest, 2)
    assert reports.take().settles[modest] == 2


def test_a_session_left_out_of_a_flush_is_first_in_the_next() -> None:
    reports, links = Reports(), [link() for _ in range(20)]
    for each in links:
        add(reports, each, 1, SHARE)
        add(reports, each, 2, SHARE)
    rounds = [list(reports.take().settles) for _ in range(3)]
    assert rounds[0] + rounds[1] + rounds[2][: len(links) - len(rounds[0]) - len(rounds[1])] == links


def test_a_session_alone_gets_the_whole_flush_in_order_and_nothing_is_lost() -> None:
    reports, only = Reports(), link()
    for sequence in range(1, 31):
        add(reports, only, sequence, SHARE - ITEM)
    tokens: list[int] = []
    flushes = 0
    while reports:
        flush = reports.take()
        tokens += [chunk.token for chunk in flush.chunks]
        assert flush.settles == {only: tokens[-1]}
        flushes += 1
    assert tokens == list(range(1, 31))
    assert flushes == 30 * SHARE // FLUSH_BYTES + 1


def add_many(
    reports: Reports, link: ServerLink, sequence: int, endings: int, state: TaskState = TaskState.FAILED
) -> None:
    made = [Ending(1, token, 1, 1, state, 1.0, 2.0) for token in range(endings)]
    reports.add(link, sequence, [Finished(made)])


def test_a_flush_takes_only_so_many_items_and_leaves_no_session_behind() -> None:
    reports, greedy, modest, other = Reports(), link(), link(), link()
    for sequence in (1, 2, 3):
        add_many(reports, greedy, sequence, FLUSH_ITEMS * 3 // 5)
    add_many(reports, modest, 1, 1)
    add_many(reports, other, 1, FLUSH_ITEMS)
    taken = []
    while reports:
        flush = reports.take()
        taken.append((len(flush.endings), flush.settles))
    three_fifths = FLUSH_ITEMS * 3 // 5
    assert taken == [
        (three_fifths + 1, {greedy: 1, modest: 1}),
        (FLUSH_ITEMS, {other: 1}),  # it did not fit, and is first now
        (three_fifths, {greedy: 2}),
        (three_fifths, {greedy: 3}),
    ]


def test_a_flush_takes_four_times_as_many_successes() -> None:
    reports, only = Reports(), link()
    for sequence in range(1, 2 * SUCCESSES + 1):
        add_many(reports, only, sequence, FLUSH_ITEMS, TaskState.SUCCEEDED)
    add_many(reports, only, 2 * SUCCESSES + 1, 1)
    taken = [len(reports.take().endings) for _ in range(3)]
    assert taken == [SUCCESSES * FLUSH_ITEMS, SUCCESSES * FLUSH_ITEMS, 1]


def test_a_flush_of_successes_takes_those_up_to_the_first_other_report_of_each_session() -> None:
    reports, mixed, late, only = Reports(), link(), link(), link()
    add_many(reports, mixed, 1, 2, TaskState.SUCCEEDED)
    add(reports, mixed, 2)
    add_many(reports, mixed, 3, 2, TaskState.SUCCEEDED)
    add_many(reports, late, 1, 1, TaskState.FAILED)
    add_many(reports, late, 2, 1, TaskState.SUCCEEDED)
    add_many(reports, only, 1, 3, TaskState.SUCCEEDED)
    plain = reports.take(only_successes=True)
    assert plain.has_only_successes
    assert plain.settles == {mixed: 1, only: 1}
    assert not reports.take(only_successes=True).settles
    rest = reports.take()
    assert not rest.has_only_successes
    assert rest.settles == {mixed: 3, late: 2}


def test_a_frame_with_more_items_than_a_flush_goes_alone() -> None:
    reports, large, small = Reports(), link(), link()
    add_many(reports, small, 1, 1)
    add_many(reports, large, 1, FLUSH_ITEMS + 1)
    add_many(reports, small, 2, 1)
    assert [reports.take().settles for _ in range(3)] == [{small: 2}, {large: 1}, {}]


def test_the_endings_that_wait_are_counted() -> None:
    reports, only = Reports(), link()
    ending = Ending(1, 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)
    reports.add(only, 1, [Finished([ending] * 3)])
    reports.add(only, 2, [Finished([ending])])
    assert reports.endings == 4
    reports.take()
    assert (reports.endings, bool(reports)) == (0, False)


async def test_who_has_too_much_waiting_is_slowed_down_then_not_read_until_it_is_written() -> None:
    reports, much, other = Reports(), link(), link()
    add(reports, much, 1, SLOW_DOWN_FROM)
    assert much.is_congested
    await asyncio.wait_for(reports.room(much), 20)
    add(reports, much, 2, STOP_READING_FROM)
    waiting = asyncio.ensure_future(reports.room(much))
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    await asyncio.wait_for(reports.room(other), 20)
    while reports:
        reports.take()
    await asyncio.wait_for(waiting, 20)
    assert not much.is_congested


async def test_who_waits_for_room_learns_that_its_connection_has_closed() -> None:
    reports, only = Reports(), link()
    add(reports, only, 1, STOP_READING_FROM + 1)
    waiting = asyncio.ensure_future(reports.room(only))
    await asyncio.sleep(0)
    only.abort()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(waiting, 10)
