"""What every channel and the link over it must do: the same suite over memory and over WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random
from typing import Generic, TypeVar

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from mainspring.model.messages import (
    AgentMessage,
    Chunk,
    Configure,
    Drain,
    Frame,
    Heartbeat,
    Output,
    ServerMessage,
)
from mainspring.wire.channel import Channel, ChannelClosed, memory_pair
from mainspring.wire.link import Link
from mainspring.wire.websocket import MAX_FRAME, WebSocketChannel

AgentEnd = Channel[AgentMessage, ServerMessage]
ServerEnd = Channel[ServerMessage, AgentMessage]
Out = TypeVar("Out")
In = TypeVar("In")
Pair = tuple[AgentEnd, ServerEnd]
Links = tuple[Link[AgentMessage, ServerMessage], Link[ServerMessage, AgentMessage]]


@asynccontextmanager
async def memory() -> AsyncIterator[Pair]:
    yield memory_pair()


@asynccontextmanager
async def websocket() -> AsyncIterator[Pair]:
    """A real connection over loopback."""
    far: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()

    async def talk(connection: ServerConnection) -> None:
        far.set_result(connection)
        await connection.wait_closed()

    async with serve(talk, "127.0.0.1", 0, compression=None, max_size=MAX_FRAME, close_timeout=1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        near = await connect(
            f"ws://127.0.0.1:{port}", compression=None, max_size=MAX_FRAME, proxy=None, close_timeout=1
        )
        yield WebSocketChannel(near, ServerMessage), WebSocketChannel(await far, AgentMessage)
        await near.close()


PAIRS: dict[str, Callable[[], AbstractAsyncContextManager[Pair]]] = {"memory": memory, "websocket": websocket}


@pytest.fixture(params=PAIRS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with PAIRS[request.param]() as pair:
        yield pair


@pytest.fixture
def links(pair: Pair) -> Links:
    return Link(pair[0]), Link(pair[1])


async def soon(awaitable: asyncio.Task[object]) -> bool:
    """Whether it ends once everything has run that can; over a network that takes a moment."""
    await asyncio.wait([awaitable], timeout=0.05)
    return awaitable.done()


async def pump(link: Link[AgentMessage, ServerMessage]) -> None:
    """Receive until the channel closes."""
    with suppress(ChannelClosed):
        while True:
            await link.receive()


# ── channel ─────────────────────────────────────────────────────────────────────────────────────


async def test_frames_arrive_in_order_and_both_ways(pair: tuple[AgentEnd, ServerEnd]) -> None:
    agent, server = pair
    for number in range(1, 101):
        await agent.send(Frame(number, 0, [Heartbeat(number)]))
    await server.send(Frame(1, 100, [Drain()]))
    assert [(await server.receive()).messages for _ in range(100)] == [[Heartbeat(n)] for n in range(1, 101)]
    last = await agent.receive()
    assert (last.sequence, last.ack, last.messages) == (1, 100, [Drain()])


async def test_what_was_under_way_arrives_before_the_close(pair: tuple[AgentEnd, ServerEnd]) -> None:
    agent, server = pair
    await agent.send(Frame(1, 0, [Heartbeat(1)]))
    await agent.close()
    assert (await server.receive()).sequence == 1
    with pytest.raises(ChannelClosed):
        await server.receive()


async def test_a_close_ends_a_receive_that_waits_at_either_end(pair: tuple[AgentEnd, ServerEnd]) -> None:
    agent, server = pair
    waiting = [asyncio.ensure_future(agent.receive()), asyncio.ensure_future(server.receive())]
    await asyncio.sleep(0)
    await server.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
    assert [type(outcome) for outcome in outcomes] == [ChannelClosed, ChannelClosed]


async def test_nothing_goes_through_a_closed_channel(pair: tuple[AgentEnd, ServerEnd]) -> None:
    agent, server = pair
    await agent.close()
    await agent.close()  # once is enough, twice is harmless
    for attempt in (agent.send(Frame(1, 0, [])), agent.receive(), server.receive()):
        with pytest.raises(ChannelClosed):
            await attempt
    with pytest.raises(ChannelClosed):
        await server.send(Frame(1, 0, []))


async def test_a_peer_that_reads_nothing_does_not_hold_its_sender_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.wire.websocket.SEND_TIMEOUT", 0.2)
    frame: Frame[AgentMessage] = Frame(0, 0, [Output([Chunk(1, 1, 1, 1, 1.0, b"x" * 4000)])])
    async with websocket() as (agent, _), asyncio.timeout(30):
        with pytest.raises(ChannelClosed, match="reads nothing"):
            while True:
                await agent.send(frame)


# ── link ────────────────────────────────────────────────────────────────────────────────────────


async def test_frames_are_numbered_from_one(links: Links) -> None:
    agent, server = links
    assert [await agent.send([Heartbeat(n)]) for n in range(3)] == [1, 2, 3]
    assert [await server.receive() for _ in range(3)] == [(n + 1, [Heartbeat(n)]) for n in range(3)]


async def test_nothing_is_acknowledged_on_a_closed_link_whatever_was_taken_from_it(links: Links) -> None:
    agent, _ = links
    sequence = await agent.send([Heartbeat(1, 1.0)])
    await agent.close()
    agent.take_unacknowledged()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(agent.acknowledged(sequence), 20)


async def test_what_is_not_settled_stays_unacknowledged(links: Links) -> None:
    agent, server = links
    await agent.send([Heartbeat(1)])
    await server.receive()
    await server.send([Drain()])
    await agent.receive()
    assert agent.unacknowledged == 1


async def test_a_settled_frame_is_acknowledged_with_all_before_it(links: Links) -> None:
    agent, server = links
    for number in range(3):
        await agent.send([Heartbeat(number)])
        await server.receive()
    await server.settle(2)
    receiving = asyncio.ensure_future(agent.receive())
    assert not await soon(receiving), "an acknowledgement alone is no message"
    assert agent.unacknowledged == 1
    receiving.cancel()


async def test_settling_later_goes_with_the_next_frame(links: Links) -> None:
    agent, server = links
    await agent.send([Heartbeat(1)])
    await server.receive()
    server.settle_later(1)
    receiving = asyncio.ensure_future(agent.receive())
    assert not await soon(receiving)
    assert agent.unacknowledged == 1
    await server.send([Configure(15.0, 1.0)])
    await receiving
    assert agent.unacknowledged == 0


async def test_an_acknowledgement_never_goes_back(links: Links) -> None:
    agent, server = links
    for number in range(3):
        await agent.send([Heartbeat(number)])
        await server.receive()
    server.settle_later(3)
    server.settle_later(1)
    await server.settle(2)
    await server.send([Drain()])
    await agent.receive()
    assert agent.unacknowledged == 0


async def test_who_waits_for_an_acknowledgement_goes_on_when_it_comes(links: Links) -> None:
    agent, server = links
    first, second = await agent.send([Heartbeat(1)]), await agent.send([Heartbeat(2)])
    waits = [asyncio.ensure_future(agent.acknowledged(sequence)) for sequence in (first, first, second)]
    pumping = asyncio.ensure_future(pump(agent))
    await server.receive()
    await server.settle(first)
    assert await soon(waits[0])
    assert await soon(waits[1])
    assert not await soon(waits[2])
    await server.receive()
    await server.settle(second)
    assert await soon(waits[2])
    await asyncio.wait_for(agent.acknowledged(first), 20)  # long settled: at once
    await server.close()
    await pumping


async def test_who_gives_up_waiting_does_not_hinder_the_others(links: Links) -> None:
    agent, server = links
    sequence = await agent.send([Heartbeat(1)])
    impatient, patient = (asyncio.ensure_future(agent.acknowledged(sequence)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    pumping = asyncio.ensure_future(pump(agent))
    await server.receive()
    await server.settle(sequence)
    assert await soon(patient)
    await server.close()
    await pumping


async def test_what_has_not_come_is_sent_again_the_same(links: Links) -> None:
    agent, server = links
    for number in range(3):
        await agent.send([Heartbeat(number)])
    await server.receive()
    await server.send([Drain()])  # says with it what has come so far
    await agent.receive()
    assert await agent.resend() == 2
    assert agent.unacknowledged == 3, "come is not committed"
    assert [(await server.receive())[0] for _ in range(2)] == [2, 3]


async def test_a_frame_that_comes_twice_is_received_once_and_answered(links: Links) -> None:
    agent, server = links
    await agent.send([Heartbeat(1)])
    await agent.send([Heartbeat(2)])
    await agent.resend()
    await agent.send([Heartbeat(3)])
    assert [(await server.receive())[0] for _ in range(3)] == [1, 2, 3]
    receiving = asyncio.ensure_future(server.receive())
    assert not await soon(receiving)
    receiving.cancel()


async def test_a_repeated_frame_gets_the_acknowledgement_that_was_lost(pair: tuple[AgentEnd, ServerEnd]) -> None:
    raw, end = pair
    server: Link[ServerMessage, AgentMessage] = Link(end)
    frame: Frame[AgentMessage] = Frame(1, 0, [Heartbeat(1)])
    await raw.send(frame)
    await server.receive()
    await server.settle(1)
    assert (await raw.receive()).ack == 1
    await raw.send(frame)
    receiving = asyncio.ensure_future(server.receive())
    answer = await asyncio.wait_for(raw.receive(), 20)
    assert (answer.sequence, answer.ack) == (0, 1)
    receiving.cancel()


async def test_a_closed_link_keeps_what_was_not_acknowledged(links: Links) -> None:
    agent, server = links
    await agent.send([Heartbeat(1)])
    await server.close()
    with pytest.raises(ChannelClosed):
        await agent.receive()
    with pytest.raises(ChannelClosed):
        await agent.send([Heartbeat(2)])
    assert agent.unacknowledged == 2


# ── a network that loses, repeats and reorders ──────────────────────────────────────────────────


class Unruly(Generic[Out, In]):
    """A channel that does to what is sent through it as it likes, by a seed."""

    def __init__(self, channel: Channel[Out, In], random: Random) -> None:
        self._channel = channel
        self._random = random
        self._kept: list[Frame[Out]] = []

    async def send(self, frame: Frame[Out]) -> None:
        frame = msgspec.structs.replace(frame)  # as it is now: the link writes into frames that it sends again
        dice = self._random.random()
        if dice < 0.2:
            return  # lost
        if dice < 0.4:
            self._kept.append(frame)  # overtaken by those after it
            return
        for each in [frame, *([frame] if dice < 0.6 else []), *self._kept]:
            await self._channel.send(each)
        self._kept.clear()

    async def receive(self) -> Frame[In]:
        return await self._channel.receive()

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    async def refuse(self, reason: str, code: int = 1008) -> None:
        await self._channel.refuse(reason)

    async def close(self) -> None:
        await self._channel.close()

    def abort(self) -> None:
        self._channel.abort()


@pytest.mark.parametrize("seed", range(4))
async def test_every_frame_comes_once_and_in_order_whatever_the_network_does(
    pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.wire.link.SOONEST", 0.02)
    monkeypatch.setattr("mainspring.wire.link.LATEST", 0.05)
    random = Random(seed)
    agent: Link[AgentMessage, ServerMessage] = Link(Unruly(pair[0], random))
    server: Link[ServerMessage, AgentMessage] = Link(Unruly(pair[1], random))
    tending = [asyncio.ensure_future(link.maintain()) for link in (agent, server)]
    pumping = asyncio.ensure_future(pump(agent))
    come: list[AgentMessage] = []
    for number in range(100):
        await agent.send([Heartbeat(number)])
        if number % 7 == 0:
            await server.send([Drain()])
    async with asyncio.timeout(30):
        while len(come) < 100:
            sequence, messages = await server.receive()
            come += messages
            server.settle_later(sequence)
        listening = asyncio.ensure_future(server.receive())  # keeps processing acknowledgements
        while agent.unacknowledged or agent.in_flight or server.in_flight:
            await asyncio.sleep(0.01)
    assert come == [Heartbeat(number) for number in range(100)]
    assert agent.reliability < 1.0
    listening.cancel()
    for task in (*tending, pumping):
        task.cancel()


async def test_what_was_never_acknowledged_is_taken_along_to_the_next_connection(links: Links) -> None:
    agent, server = links
    for number in range(3):
        await agent.send([Heartbeat(number)])
    await server.receive()
    await server.settle(1)
    receiving = asyncio.ensure_future(agent.receive())
    while agent.unacknowledged == 3:
        await asyncio.sleep(0.001)
    assert agent.take_unacknowledged() == [Heartbeat(1), Heartbeat(2)]
    assert (agent.unacknowledged, agent.in_flight) == (0, 0)
    receiving.cancel()


async def test_a_message_out_of_turn_is_neither_kept_nor_numbered(links: Links) -> None:
    agent, server = links
    await agent.send_unnumbered([Heartbeat(7)])
    assert await server.receive() == (0, [Heartbeat(7)])
    assert (agent.unacknowledged, agent.in_flight) == (0, 0)
    assert await agent.send([Heartbeat(8)]) == 1


async def test_an_acknowledgement_that_finds_nothing_to_ride_on_is_sent_a_moment_later(links: Links) -> None:
    agent, server = links
    tending = asyncio.ensure_future(server.maintain())
    await agent.send([Heartbeat(1)])
    sequence, _ = await server.receive()
    server.settle_later(sequence)
    receiving = asyncio.ensure_future(agent.receive())
    async with asyncio.timeout(20):
        while agent.unacknowledged:
            await asyncio.sleep(0.01)
    assert agent.ack_time > 0
    for task in (tending, receiving):
        task.cancel()


async def test_a_frame_that_nobody_answers_is_looked_at_only_when_it_may_be_lost(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = links
    alarms: list[float] = []
    look_within = agent._look_within

    def counted(seconds: float) -> None:
        alarms.append(seconds)
        look_within(seconds)

    monkeypatch.setattr(agent, "_look_within", counted)
    agent._resend_after = 0.05
    tending = asyncio.ensure_future(agent.maintain())
    await agent.send([Heartbeat(1)])
    async with asyncio.timeout(20):
        while agent._in_flight[0].resent < 3:
            await asyncio.sleep(0.01)
    assert len(alarms) <= 8, "one for each wait of 0.05, 0.1 and 0.2 s, and one more if its clock was behind"
    tending.cancel()


async def test_on_a_slow_line_the_patience_grows_and_stays(links: Links) -> None:
    agent, server = links
    await agent.send([Heartbeat(1)], 100)
    agent._resend_after = 4.0  # it has been sent again a few times
    await agent.resend()
    assert agent.bytes_in_flight == 100
    landed: list[int] = []
    agent.on_arrival = lambda size, _: landed.append(size)
    hearing = asyncio.ensure_future(pump(agent))
    sequence, _ = await server.receive()
    await server.settle(sequence)
    async with asyncio.timeout(20):
        while agent.in_flight:
            await asyncio.sleep(0.001)
    assert (agent._resend_after, agent.bytes_in_flight, landed) == (4.0, 0, [100])
    hearing.cancel()


async def test_who_posts_does_not_wait_for_one_who_does_not_read(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, server = links
    send, gate = server._channel.send, asyncio.Event()

    async def blocked(frame: Frame[ServerMessage]) -> None:
        await gate.wait()
        await send(frame)

    monkeypatch.setattr(server._channel, "send", blocked)
    for _ in range(3):
        server.post([Drain()])
    server.settle_now(0)
    assert server.in_flight == 3
    gate.set()
    assert [await asyncio.wait_for(agent.receive(), 20) for _ in range(3)] == [(n, [Drain()]) for n in (1, 2, 3)]


# ── a patient receiver ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def patient(pair: Pair) -> AsyncIterator[Links]:
    """The server would wait for minutes with an acknowledgement that is not urgent, the agent with a resend."""
    agent: Link[AgentMessage, ServerMessage] = Link(pair[0])
    agent.expect(ack_time=100.0, reliability=1.0)
    server: Link[ServerMessage, AgentMessage] = Link(pair[1], patience=300.0)
    running = [asyncio.ensure_future(each) for each in (agent.maintain(), server.maintain(), pump(agent))]
    yield agent, server
    for task in running:
        task.cancel()


async def until_acknowledged(link: Link[AgentMessage, ServerMessage]) -> None:
    async with asyncio.timeout(20):
        while link.unacknowledged:
            await asyncio.sleep(0.005)


async def report(links: Links, size: int = 0) -> None:
    """A frame that the server has settled."""
    agent, server = links
    await agent.send([Heartbeat(1)], size)
    sequence, _ = await server.receive()
    server.settle_now(sequence)


async def test_a_patient_receiver_acknowledges_with_its_next_frame(patient: Links) -> None:
    agent, server = patient
    await report(patient)
    await asyncio.sleep(0.1)
    assert agent.unacknowledged == 1
    server.post([Drain()])
    await until_acknowledged(agent)


async def test_a_patient_receiver_answers_a_sender_that_waits(patient: Links) -> None:
    agent, server = patient
    await report(patient)
    listening = asyncio.ensure_future(server.receive())
    await asyncio.wait_for(agent.acknowledged(1), 20)
    listening.cancel()


async def test_a_patient_receiver_answers_at_once_what_was_sent_as_urgent(patient: Links) -> None:
    agent, server = patient
    await agent.send([Heartbeat(1)], urgent=True)
    sequence, _ = await server.receive()
    server.settle_now(sequence)
    await until_acknowledged(agent)
    await asyncio.sleep(0.1)
    await report(patient)
    await asyncio.sleep(0.1)
    assert agent.unacknowledged == 1, "the next frame was not urgent"


async def test_a_patient_receiver_does_not_hold_up_a_window(patient: Links) -> None:
    agent, _ = patient
    await report(patient, size=200)
    await asyncio.sleep(0.1)
    assert agent.bytes_in_flight == 200
    await report(patient, size=200)  # more than any window leaves room for
    await until_acknowledged(agent)
    assert agent.bytes_in_flight == 0


async def test_a_link_that_closes_acknowledges_what_is_settled(patient: Links) -> None:
    agent, server = patient
    await report(patient)
    await server.close()
    await until_acknowledged(agent)


async def test_what_was_posted_is_written_before_the_link_closes(links: Links) -> None:
    agent, server = links
    server.post([Drain()])
    await server.close()
    assert await asyncio.wait_for(agent.receive(), 20) == (1, [Drain()])


async def test_a_congested_receiver_settles_frames_and_does_not_announce_arrivals(links: Links) -> None:
    agent, server = links
    arrived: list[int] = []
    agent.on_arrival = lambda size, _: arrived.append(size)
    pumping, tending = asyncio.ensure_future(pump(agent)), asyncio.ensure_future(server.maintain())
    server.is_congested = True
    for size in (1, 2, 3):
        await agent.send([Heartbeat(size)], size)
        await server.receive()
    await asyncio.sleep(0.1)
    assert arrived == []
    server.settle_later(1)
    while arrived != [1]:
        await asyncio.sleep(0.01)
    server.relieve()
    while arrived != [1, 2, 3]:
        await asyncio.sleep(0.01)
    for task in (pumping, tending):
        task.cancel()
