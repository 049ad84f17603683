"""The pace of loops: what keeps something alive comes at its time, what looks for work slows down."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import loops


@pytest.mark.parametrize(("adaptive", "slower"), [(False, False), (True, True)])
async def test_only_an_adaptive_loop_slows_down_when_it_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, adaptive: bool, slower: bool
) -> None:
    waits: list[float] = []

    async def nothing() -> int:
        if len(waits) == 60:
            raise LookupError  # enough
        return 0

    def at_once(wait: float) -> asyncio.Timeout:
        waits.append(wait)
        return asyncio.Timeout(asyncio.get_running_loop().time())

    monkeypatch.setattr("mainspring.loops.asyncio.timeout", at_once)
    with pytest.raises(LookupError):
        await loops.run_every(5.0, nothing, adaptive=adaptive)
    assert all(4.5 <= wait <= 5.5 for wait in waits[:4])
    assert (waits[-1] > 15.0) is slower
