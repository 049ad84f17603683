"""Watchdog: it stands in for a blocked event loop, and for no other. The stories of whole processes are in
journey/test_blocked_loop.py."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.watchdog import Blockages, Blocker, Watchdog
from tests.conftest import eventually

LEASE = 3.0  # seconds: a tick of the watchdog is a twelfth of it


class Recording:
    """A keeper that notes when it is called."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self.calls: list[float] = []
        self.threads: set[int] = set()
        self.is_closed = False
        self.relieved = 0
        self._fails, self._hangs = fails, hangs

    async def prepare(self) -> None: ...

    async def renew(self, blocked: float) -> None:
        self.calls.append(blocked)
        self.threads.add(threading.get_ident())
        if self._fails:
            raise StoreUnavailable("no answer")
        if self._hangs:
            await asyncio.Event().wait()

    async def relieve(self) -> None:
        self.relieved += 1

    async def close(self) -> None:
        self.is_closed = True


async def watch(
    *keepers: Recording,
    block: Callable[[], None],
    limit: float = 60.0,
    blockages: Blockages | None = None,
    why_end: Callable[[float], str | None] = lambda ahead: None,
) -> None:
    watchdog = Watchdog(
        keepers,
        lease=lambda: LEASE,
        limit=limit,
        blockages=blockages or Blockages(),
        find_blocker=lambda task: Blocker("report", 17) if task is asyncio_task else None,
        why_end=why_end,
    )
    asyncio_task = asyncio.current_task()
    watchdog.start()
    await asyncio.sleep(0.3)
    block()
    await asyncio.sleep(0.6)
    await watchdog.stop()
    assert all(keeper.is_closed for keeper in keepers)


async def test_keepers_renew_from_another_thread_while_the_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mainspring.watchdog.LOG_AFTER", 0.3)
    good, failing, hanging, blockages = Recording(), Recording(fails=True), Recording(hangs=True), Blockages()
    with caplog.at_level(logging.WARNING, "mainspring"):
        await watch(good, failing, hanging, block=lambda: time.sleep(1.5), blockages=blockages)
    assert len(good.calls) > 2
    assert len(failing.calls) > 2
    assert hanging.calls, "and it holds up nothing"
    assert good.relieved
    assert failing.relieved
    assert threading.get_ident() not in good.threads
    assert blockages.times == 1
    assert blockages.seconds > 0.9
    assert "s by job report, task 17; async code must not block" in caplog.text
    assert "time.sleep(1.5)" in caplog.text
    assert caplog.text.count("is not renewed: no answer") == 1


async def test_a_short_blockage_is_neither_logged_nor_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mainspring.watchdog.LOG_AFTER", 30.0)  # a busy machine may make it longer
    blockages = Blockages()
    keeper = Recording()
    await watch(keeper, block=lambda: time.sleep(0.6), blockages=blockages)
    assert keeper.calls
    assert blockages == Blockages()
    assert "blocked" not in caplog.text


@pytest.mark.parametrize(("module", "ends"), [("shop", True), ("pdb", False)])
async def test_a_loop_that_a_debugger_holds_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch, module: str, ends: bool
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("mainspring.watchdog.os._exit", ended.append)
    namespace = {"__name__": module, "time": time}
    exec("def block(): time.sleep(1.5)", namespace)
    await watch(Recording(), block=namespace["block"], limit=0.3)  # type: ignore[arg-type]
    assert bool(ended) is ends


@pytest.mark.parametrize(("seconds", "ends"), [(0.0, False), (1.5, True)])
async def test_a_lost_lease_ends_the_process_only_if_its_loop_had_no_time_to_stop_the_attempts(
    monkeypatch: pytest.MonkeyPatch, seconds: float, ends: bool
) -> None:
    """A loop that is only slow, or was frozen with its process, does it itself."""
    ended: list[int] = []
    monkeypatch.setattr("mainspring.watchdog.os._exit", ended.append)
    await watch(Recording(), block=lambda: time.sleep(seconds), why_end=lambda ahead: "the lease is over")
    assert bool(ended) is ends


async def test_a_watchdog_ends_with_a_loop_that_was_closed_without_stopping_it() -> None:
    def run() -> None:
        async def start() -> None:
            Watchdog([], lease=lambda: LEASE, limit=60.0, blockages=Blockages()).start()

        asyncio.run(start())

    before = set(threading.enumerate())
    await asyncio.to_thread(run)

    async def is_gone() -> bool:
        return not [t for t in set(threading.enumerate()) - before if t.name == "mainspring-watchdog"]

    await eventually(is_gone)
