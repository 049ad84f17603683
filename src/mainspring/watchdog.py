"""Watchdog: a thread that stands in for the event loop of a server or an agent while it is blocked.

Blocking code in an async handler stops everything on its loop, heartbeats too: the process would look dead, and its
tasks would be given to others while they run. The watchdog has a thread, an event loop and connections of its own. It
pings the other loop. As long as that does not answer, the watchdog renews the leases, logs what blocks the loop and
counts it. It ends the process if the loop does not come back within a limit, or if a lease is lost meanwhile: nothing
else can stop a handler that blocks.

While the watchdog's thread cannot run either, nothing is renewed and nothing counted: the process is frozen (SIGSTOP),
or a C extension keeps the interpreter's lock. Then the leases expire, like those of a dead process.
Next: agent/connection/session_keeper.py (servers: server/agents/lease_keeper.py)
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mainspring.errors import MainspringError
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

LONGEST_TICK = 0.25  # seconds between two pings; less if the lease is short
TICKS = 12  # in a lease, at least
LOG_AFTER = 1.0  # seconds that the loop is blocked
STACK_AGAIN = 60.0  # seconds between two stacks of one job in the log
# Of a lease, from MARGIN to KILL_MARGIN (agent/connection/lease.py): a loop that ran in it has stopped its attempts.
END_AFTER = 2 / 15
FROZEN_AFTER = 1.0  # seconds that this thread woke late
PREPARE_AFTER = 2.0  # seconds from the start: what ends sooner, such as a test, opens no connection
FRAMES = 15  # of the stack that are logged
LOG_WITHIN = 1.0  # seconds for the last log line before the process ends
CALLERS = {"mainspring.agent.executors.python", "asyncio.events", "asyncio.base_events", "asyncio.runners", "uvloop"}
DEBUGGERS = {"bdb", "pdb", "ipdb", "pydevd", "_pydevd_bundle", "debugpy"}

ADVICE = "async code must not block: use a `def` handler, or asyncio.to_thread()"


class Blocker(NamedTuple):
    """The attempt whose handler blocks the loop."""

    job: str
    task: int


@dataclass
class Blockages:
    """How often the loop was blocked for longer than LOG_AFTER, and for how long in all, since the start."""

    times: int = 0
    seconds: float = 0.0


class Keeper(Protocol):
    """Renews leases from the watchdog's thread, by a connection of its own."""

    async def prepare(self) -> None:
        """Connect ahead of time; called once."""

    async def renew(self, blocked: float) -> None:
        """Renew what is due. The loop has been blocked for so many seconds."""

    async def relieve(self) -> None:
        """The loop is back; called after the last `renew`."""

    async def close(self) -> None: ...


class Watchdog:
    """`lease` returns its length. `find_blocker` returns the attempt that runs in a task of the loop. `why_end` takes
    the seconds until the next look, and returns why the process must end before that; None if it need not."""

    def __init__(
        self,
        keepers: Sequence[Keeper],
        *,
        lease: Callable[[], float],
        limit: float,
        blockages: Blockages,
        find_blocker: Callable[[asyncio.Task[Any] | None], Blocker | None] = lambda task: None,
        why_end: Callable[[float], str | None] = lambda ahead: None,
    ) -> None:
        self._keepers = list(keepers)
        self._lease = lease
        self._limit = limit
        self._blockages = blockages
        self._find_blocker = find_blocker
        self._why_end = why_end
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop  # the one that is watched
        self._loop_thread = 0
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()  # of the own loop
        self._has_answered = True
        self._blocked = 0.0  # seconds, so far
        self._is_logged = self._is_failing = False  # what was logged about this blockage
        self._stack_at: dict[str | None, float] = {}  # when one was logged, by job
        self._under_way: dict[Keeper, asyncio.Task[None]] = {}
        self._to_relieve: set[Keeper] = set()

    def add(self, keeper: Keeper) -> None:
        """One more, which need not be prepared. Called on the loop that is watched, at any time."""
        self._keepers.append(keeper)

    def start(self) -> None:
        """Watch the running loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="mainspring-watchdog", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """No effect before `start`."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        while thread.is_alive() and self._own_loop is None:
            await asyncio.sleep(0.001)  # it is starting
        if self._own_loop is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._own_loop.call_soon_threadsafe(self._stop.set)
        while thread.is_alive():
            await asyncio.sleep(0.001)

    @property
    def _tick(self) -> float:
        return min(LONGEST_TICK, self._lease() / TICKS)

    # ── in the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception:
            log.exception("the watchdog failed: a blocked event loop will cost its leases")

    async def _watch(self) -> None:
        self._own_loop = asyncio.get_running_loop()
        preparing = asyncio.create_task(self._prepare())
        last = boottime()
        try:
            while not self._stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._tick):
                        await self._stop.wait()
                now = boottime()
                if not self._look(now - last):
                    return
                last = now
        finally:
            tasks = [preparing, *self._under_way.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for keeper in self._keepers:
                await self._close(keeper)

    def _look(self, passed: float) -> bool:
        """Called once a tick. False: the loop is closed."""
        if passed > self._tick + FROZEN_AFTER:
            _log_apart(
                logging.WARNING,
                f"this process was frozen for {passed:.1f} s: it was stopped, or code kept the GIL",
            )
        if self._has_answered:
            if self._blocked:
                self._back()
            for keeper in self._to_relieve - self._under_way.keys():
                self._to_relieve.discard(keeper)
                self._run_task(keeper, self._relieve(keeper))
            self._has_answered = False
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return False
        else:
            self._blocked += min(passed, 2 * self._tick)  # the rest of it, this thread did not run either
            self._stand_in()
        return True

    def _answer(self) -> None:
        """Runs on the loop that is watched."""
        self._has_answered = True

    def _stand_in(self) -> None:
        for keeper in self._keepers:
            if keeper not in self._under_way:
                self._run_task(keeper, self._renew(keeper))
        if self._blocked >= LOG_AFTER and not self._is_logged:
            self._is_logged = True
            self._log_blocked()
        if self._blocked >= self._lease() * END_AFTER and (reason := self._why_end(self._tick)) is not None:
            self._end(reason)
        elif self._blocked >= self._limit:
            self._end(f"it does not come back within {self._limit:g} s (setting block_limit)")

    def _run_task(self, keeper: Keeper, call: Coroutine[Any, Any, None]) -> None:
        self._under_way[keeper] = task = asyncio.create_task(call)
        task.add_done_callback(lambda _: self._under_way.pop(keeper))

    async def _renew(self, keeper: Keeper) -> None:
        """A keeper that fails is called again at the next tick."""
        try:
            async with asyncio.timeout(self._lease() / 3):
                await keeper.renew(self._blocked)
        except (MainspringError, OSError, TimeoutError) as error:
            if self._blocked >= LOG_AFTER and not self._is_failing:
                self._is_failing = True
                reason = str(error) or type(error).__name__
                _log_apart(logging.WARNING, f"a lease of the blocked event loop is not renewed: {reason}; trying again")
        except Exception as error:  # a bug in one keeper must not cost the other's leases
            _log_apart(logging.ERROR, f"a lease of a blocked event loop is not renewed: {error!r}")

    async def _prepare(self) -> None:
        await asyncio.sleep(PREPARE_AFTER)
        for keeper in self._keepers:
            with suppress(MainspringError, OSError):
                await keeper.prepare()

    async def _close(self, keeper: Keeper) -> None:
        with suppress(MainspringError, OSError, TimeoutError):
            await keeper.close()

    async def _relieve(self, keeper: Keeper) -> None:
        with suppress(MainspringError, OSError, TimeoutError):
            await keeper.relieve()

    def _back(self) -> None:
        """The loop answers again."""
        self._to_relieve.update(self._keepers)
        if self._blocked >= LOG_AFTER:
            self._blockages.times += 1
            self._blockages.seconds += self._blocked
        self._blocked = 0.0
        self._is_logged = self._is_failing = False

    # ── logging ─────────────────────────────────────────────────────────────────────────────────

    def _log_blocked(self) -> None:
        blocker = self._find_blocker(asyncio.current_task(self._loop))
        job = None if blocker is None else blocker.job
        text = self._blockage(blocker)
        if boottime() - self._stack_at.get(job, -STACK_AGAIN) >= STACK_AGAIN:
            self._stack_at[job] = boottime()
            text = f"{text}; {ADVICE}\n{self._stack()}"
        _log_apart(logging.WARNING, text)

    def _blockage(self, blocker: Blocker | None) -> str:
        by = "" if blocker is None else f" by job {blocker.job}, task {blocker.task}"
        return f"the event loop has been blocked for {self._blocked:.1f} s{by}"

    def _stack(self) -> str:
        """The innermost frames, down from the handler or from the event loop."""
        frame, found = sys._current_frames().get(self._loop_thread), traceback.StackSummary()
        while frame is not None and len(found) < FRAMES and frame.f_globals.get("__name__") not in CALLERS:
            found.insert(0, traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return "".join(found.format()).rstrip()

    def _end(self, reason: str) -> None:
        """End the process: nothing else ends a handler that blocks, and its task may be given to another agent."""
        if self._is_debugged():
            return
        blockage = self._blockage(self._find_blocker(asyncio.current_task(self._loop)))
        text = f"{blockage}, and {reason}: this process ends; {ADVICE}\n{self._stack()}"
        _log_apart(logging.CRITICAL, text).join(LOG_WITHIN)
        os._exit(1)

    def _is_debugged(self) -> bool:
        frame = sys._current_frames().get(self._loop_thread)
        while frame is not None:
            if frame.f_globals.get("__name__", "").partition(".")[0] in DEBUGGERS:
                return True
            frame = frame.f_back
        return False


def _log_apart(level: int, text: str) -> threading.Thread:
    """Log in a thread: the blocked loop may hold the lock of a logging handler, as with a full pipe for stderr."""
    thread = threading.Thread(target=log.log, args=(level, "%s", text), name="mainspring-watchdog-log", daemon=True)
    thread.start()
    return thread
