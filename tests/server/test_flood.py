"""Flood: who sends too much is slowed down, then sent away."""

from __future__ import annotations

import pytest

from mainspring.server.flood import BURST, RATE, Flood
from mainspring.wire.channel import ChannelClosed


def test_an_honest_agent_is_never_slowed_down() -> None:
    flood = Flood()
    assert not any(flood.pause(100 + number / (RATE / 2)) for number in range(20_000))


def test_a_burst_passes_and_a_flood_does_not() -> None:
    flood = Flood()
    assert not any(flood.pause(100.0) for _ in range(int(BURST)))
    assert flood.pause(100.0) > 0
    with pytest.raises(ChannelClosed):
        for _ in range(100_000):
            flood.pause(100.0)


def test_after_a_rest_all_is_forgiven() -> None:
    flood = Flood()
    for _ in range(int(BURST) + 100):
        flood.pause(100.0)
    assert flood.pause(200.0) == 0.0
