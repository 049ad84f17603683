"""The entrance: one knocks while PostgreSQL is away, and a few at a time come in when it is back."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import pytest

from mainspring.errors import AccessDenied, MainspringError, StoreUnavailable
from mainspring.store.postgres import reconnect as entrances
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.reconnect import AT_A_TIME, Entrance

CONNECTION = cast(Connection, object())


class Place:
    """Somewhere to connect to, that is there or not; counts who comes."""

    def __init__(self, fault: MainspringError | None = None) -> None:
        self.fault = fault
        self.dialled = 0
        self.at_once = 0
        self.most_at_once = 0
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    async def dial(self) -> Connection:
        self.dialled += 1
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
    monkeypatch.setattr(entrances, "SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(entrances, "LONGEST_PAUSE", 0.004)


async def many(entrance: Entrance, place: Place, count: int = 30) -> list[Connection | BaseException]:
    return await asyncio.gather(*(entrance.connect(place.dial) for _ in range(count)), return_exceptions=True)


async def shut(entrance: Entrance, place: Place) -> None:
    place.fault = StoreUnavailable("PostgreSQL does not answer")
    with pytest.raises(StoreUnavailable):
        await entrance.connect(place.dial)


async def test_a_first_failure_is_told_at_once() -> None:
    entrance, place = Entrance(), Place(StoreUnavailable("PostgreSQL does not answer"))
    async with asyncio.timeout(1.0):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await entrance.connect(place.dial)


async def test_connections_are_opened_a_few_at_a_time() -> None:
    entrance, place = Entrance(), Place()
    assert await many(entrance, place) == [CONNECTION] * 30
    assert (place.dialled, place.most_at_once) == (30, AT_A_TIME)


async def test_while_it_is_away_one_knocks_and_all_hear_what_it_found() -> None:
    entrance, place = Entrance(), Place()
    await shut(entrance, place)
    place.dialled = 0
    found = await many(entrance, place)
    assert {str(error) for error in found} == {"PostgreSQL does not answer"}
    assert place.dialled == 1


async def test_when_it_is_back_all_who_waited_come_in_a_few_at_a_time() -> None:
    entrance, place = Entrance(), Place()
    await shut(entrance, place)
    place.hold()
    waiting = asyncio.create_task(many(entrance, place))
    await asyncio.sleep(0.02)
    assert place.at_once == 1
    place.fault = None
    place.let_go()
    assert await waiting == [CONNECTION] * 30
    assert place.most_at_once <= AT_A_TIME


async def test_those_who_wait_for_their_turn_when_it_goes_do_not_knock_one_after_another() -> None:
    entrance, place = Entrance(), Place()
    place.hold()
    waiting = asyncio.create_task(many(entrance, place))
    await asyncio.sleep(0.01)
    place.fault = StoreUnavailable("PostgreSQL does not answer")
    place.let_go()
    assert all(isinstance(error, StoreUnavailable) for error in await waiting)
    assert place.dialled <= AT_A_TIME + 2


async def test_who_is_cancelled_while_knocking_leaves_it_to_the_next() -> None:
    entrance, place = Entrance(), Place()
    await shut(entrance, place)
    place.hold()
    first = asyncio.create_task(entrance.connect(place.dial))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(entrance.connect(place.dial))
    await asyncio.sleep(0.01)
    first.cancel()
    place.fault = None
    place.let_go()
    assert await asyncio.wait_for(second, 1.0) is CONNECTION


async def test_a_refusal_is_an_answer_and_opens_the_gate() -> None:
    entrance, place = Entrance(), Place()
    await shut(entrance, place)
    place.fault = AccessDenied("no")
    with pytest.raises(AccessDenied):
        await entrance.connect(place.dial)
    place.fault = None
    place.dialled = 0
    assert await many(entrance, place) == [CONNECTION] * 30
    assert place.dialled == 30


async def test_the_longer_it_is_away_the_rarer_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrances, "LONGEST_PAUSE", 0.1)
    entrance, place = Entrance(), Place()
    loop = asyncio.get_running_loop()
    asked: list[float] = []
    while not asked or asked[-1] < asked[0] + 1.0:
        await shut(entrance, place)
        asked.append(loop.time())
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert 10 * min(pauses) < min(pauses[-3:])
    place.fault = None
    assert await entrance.connect(place.dial) is CONNECTION
