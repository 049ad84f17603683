"""FrameLimit: an agent that sends too many frames is slowed down, then disconnected."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.model.messages import AgentMessage, Frame, ServerMessage
from mainspring.server.agents.frame_limit import BURST, RATE, FrameLimit, LimitedChannel
from mainspring.wire.channel import ChannelClosed, memory_pair
from mainspring.wire.link import Link


def test_an_honest_agent_is_never_slowed_down() -> None:
    limit = FrameLimit()
    assert not any(limit.pause(100 + number / (RATE / 2)) for number in range(20_000))


def test_a_burst_passes_and_a_flood_does_not() -> None:
    limit = FrameLimit()
    assert not any(limit.pause(100.0) for _ in range(int(BURST)))
    assert limit.pause(100.0) > 0
    with pytest.raises(ChannelClosed):
        for _ in range(100_000):
            limit.pause(100.0)


def test_after_a_rest_all_is_forgiven() -> None:
    limit = FrameLimit()
    for _ in range(int(BURST) + 100):
        limit.pause(100.0)
    assert limit.pause(200.0) == 0.0


async def test_frames_that_say_nothing_count_too_and_the_flood_is_told_why_it_is_sent_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mainspring.server.agents.frame_limit.PATIENCE", 0.0)
    near, far = memory_pair()
    for _ in range(int(BURST) + 1000):
        await near.send(Frame(0, 0, []))
    told: list[str] = []

    async def refuse(reason: str) -> None:
        told.append(reason)

    monkeypatch.setattr(far, "refuse", refuse)
    link: Link[ServerMessage, AgentMessage] = Link(LimitedChannel(far))
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(link.receive(), 10)
    assert told == ["more frames or bytes than any agent sends"]
