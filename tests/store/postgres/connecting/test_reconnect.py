"""The circuit breaker: one caller probes while PostgreSQL is down; a few connect at a time when it is back."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable
from mainspring.store.postgres.connecting import reconnect
from mainspring.store.postgres.connecting.reconnect import MAX_CONNECTING, CircuitBreaker
from mainspring.store.postgres.connection import Connection

CONNECTION = cast(Connection, object())


class Place:
    """A server that is up or down; counts the attempts to connect."""

    def __init__(self, fault: MainspringError | None = None) -> None:
        self.fault = fault
        self.tried = 0
        self.at_once = 0
        self.most_at_once = 0
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    async def connect(self) -> Connection:
        self.tried += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            await self._open.wait()
            if self.fault is not None:
                raise self.fault
            return CONNECTION
        finally:
            self.at_once -= 1


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "MIN_BACKOFF", 0.001)
    monkeypatch.setattr(reconnect, "MAX_BACKOFF", 0.004)


async def many(breaker: CircuitBreaker, place: Place, count: int = 30) -> list[Connection | BaseException]:
    return await asyncio.gather(*(breaker.connect(place.connect) for _ in range(count)), return_exceptions=True)


async def shut(breaker: CircuitBreaker, place: Place) -> None:
    place.fault = StoreUnavailable("PostgreSQL does not answer")
    with pytest.raises(StoreUnavailable):
        await breaker.connect(place.connect)


async def test_the_first_failure_is_raised_at_once() -> None:
    breaker, place = CircuitBreaker(), Place(StoreUnavailable("PostgreSQL does not answer"))
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await breaker.connect(place.connect)


async def test_connections_are_opened_a_few_at_a_time() -> None:
    breaker, place = CircuitBreaker(), Place()
    assert await many(breaker, place) == [CONNECTION] * 30
    assert (place.tried, place.most_at_once) == (30, MAX_CONNECTING)


async def test_while_postgresql_is_down_one_caller_probes_and_all_get_its_result() -> None:
    breaker, place = CircuitBreaker(), Place()
    await shut(breaker, place)
    place.tried = 0
    found = await many(breaker, place)
    assert {str(error) for error in found} == {"PostgreSQL does not answer"}
    assert place.tried == 1


async def test_when_postgresql_is_back_the_waiting_callers_connect_a_few_at_a_time() -> None:
    breaker, place = CircuitBreaker(), Place()
    await shut(breaker, place)
    place.hold()
    waiting = asyncio.create_task(many(breaker, place))
    await asyncio.sleep(0.02)
    assert place.at_once == 1
    place.fault = None
    place.let_go()
    assert await waiting == [CONNECTION] * 30
    assert place.most_at_once <= MAX_CONNECTING


async def test_callers_that_queue_when_an_outage_begins_do_not_probe_one_after_another() -> None:
    breaker, place = CircuitBreaker(), Place()
    place.hold()
    waiting = asyncio.create_task(many(breaker, place))
    await asyncio.sleep(0.01)
    place.fault = StoreUnavailable("PostgreSQL does not answer")
    place.let_go()
    assert all(isinstance(error, StoreUnavailable) for error in await waiting)
    assert place.tried <= MAX_CONNECTING + 2


async def test_if_the_probing_caller_is_cancelled_the_next_one_probes() -> None:
    breaker, place = CircuitBreaker(), Place()
    await shut(breaker, place)
    place.hold()
    first = asyncio.create_task(breaker.connect(place.connect))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(breaker.connect(place.connect))
    await asyncio.sleep(0.01)
    first.cancel()
    place.fault = None
    place.let_go()
    assert await asyncio.wait_for(second, 20) is CONNECTION


async def test_a_refusal_is_an_answer_and_ends_the_outage() -> None:
    breaker, place = CircuitBreaker(), Place()
    await shut(breaker, place)
    place.fault = AccessDenied("no")
    with pytest.raises(AccessDenied):
        await breaker.connect(place.connect)
    place.fault = None
    place.tried = 0
    assert await many(breaker, place) == [CONNECTION] * 30
    assert place.tried == 30


async def test_the_longer_the_outage_the_rarer_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "MAX_BACKOFF", 100.0)
    breaker, place = CircuitBreaker(), Place()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await shut(breaker, place)
    assert breaker._probe_at - began < 20.0
    assert breaker._down_since is not None
    breaker._down_since -= 1000.0
    await shut(breaker, place)
    assert breaker._probe_at - loop.time() > 20.0
    breaker._probe_at = began
    place.fault = None
    assert await breaker.connect(place.connect) is CONNECTION
