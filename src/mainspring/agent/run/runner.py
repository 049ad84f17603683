"""Runner: fires armed attempts at their instant, as many at a time as there are slots, and stops them.

Of the due attempts that wait for a slot, the most important one starts first.

Sends   Started, Finished, Refused, through the outbox
Next:   agent/timing/timers.py (once it runs: agent/run/durations.py; several in one call: agent/run/chunks.py)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from mainspring.agent.attempt import Attempt, AttemptFailed, ChunkCall, Executor, Exhausted, Expired, StopReason
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.context import Control, TaskCancelled, running, running_chunk
from mainspring.agent.run import endings
from mainspring.agent.run.chunks import Chunks
from mainspring.agent.run.durations import Durations
from mainspring.agent.run.failures import Failures
from mainspring.agent.run.health import watched
from mainspring.agent.run.tokens import TokenFilter
from mainspring.agent.run.workers import Workers
from mainspring.agent.timing.timers import LATEST, Timers
from mainspring.model.messages import Armed, AttemptId, Holding
from mainspring.model.secrets.values import NO_SECRETS, SecretValues
from mainspring.model.tasks.jobs import Job, Python, Run
from mainspring.model.tasks.states import SUCCEEDED, TaskState
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")

STOP_WITHIN = 5.0  # seconds beyond its grace, for an attempt that does not stop
REFUSE_AFTER = 1.0  # seconds that a due attempt waits for a slot
NO_JOB_SECRETS: Mapping[int, SecretValues] = {}


class Runner:
    def __init__(
        self,
        slots: int,
        clock: Clock,
        timers: Timers,  # for instants, on the database's clock
        boot_timers: Timers,  # for durations, on the clock that cannot be set
        outbox: Outbox,
        executors: Mapping[type[Run], Executor],
        confirm: Callable[[], Awaitable[None]],
        lease_expired: Callable[[float], bool] = lambda now: False,
        failures: Failures | None = None,
        agent: str = "",  # its name
    ) -> None:
        self._workers = Workers(slots, self._run, lease_expired, self._suspended, outbox.uncrowded.set)
        self._failures = failures or Failures()
        self._chunks = Chunks(self._workers, clock, boot_timers, outbox, confirm, self._failures, self._over)
        self._workers.run_chunk = self._chunks.run
        self._clock = clock
        self._timers = timers
        self._boot_timers = boot_timers
        self._durations = Durations(boot_timers, self._stop)
        self._outbox = outbox
        self._executors = executors
        self._confirm = confirm  # returns once everything reported so far is durable
        self._held: dict[int, Attempt] = {}  # by task
        self._tokens = TokenFilter()
        self.database = ""  # the id of the servers' database, from the first welcome on
        self.agent = agent
        self.draining = False
        self.dispatches = 0  # so far: a change tells that there was work
        self.empty = asyncio.Event()
        self.empty.set()

    # ── arming ──────────────────────────────────────────────────────────────────────────────────

    def arm(
        self, tasks: Iterable[Armed], jobs: Mapping[int, Job], secrets: Mapping[int, SecretValues] = NO_JOB_SECRETS
    ) -> None:
        """Arm the attempts of a dispatch: each starts at its instant, or now if that is past. `secrets`: by job."""
        now, at = self._clock.now(), boottime()
        due = self._due  # one for all: thousands of bound methods would be scanned by the garbage collector
        self.dispatches += 1
        for armed in tasks:
            attempt = self._accept(armed, jobs.get(armed.job), now, secrets)
            if attempt is None:
                continue
            self._held[armed.task] = attempt
            if armed.fire_at > now:
                attempt.timer = self._timers.at(armed.fire_at, due, attempt)
            elif attempt.chunk:
                self._chunks.add(attempt)
            else:
                self._workers.start(attempt, at)
        if self._held:
            self.empty.clear()

    def _accept(self, armed: Armed, job: Job | None, now: float, secrets: Mapping[int, SecretValues]) -> Attempt | None:
        """The attempt, prepared, if it is to run here. A newer token replaces an older one."""
        if not self._tokens.add(armed.token):
            if self._tokens.has_forgotten(armed.token) and armed.task not in self._held:
                # It may be new: a claim whose dispatch was lost is sent late. If it is not, a refusal changes nothing.
                self._outbox.refused(armed, "too old to know")
            return None  # a repeated dispatch
        is_held = armed.task in self._held
        if is_held and not self._supersede(armed):
            return None
        if job is None:
            self._outbox.ended(endings.unknown_job(armed, now))
            return None
        if not 0.0 <= armed.fire_at < LATEST or not 0.0 <= (armed.plan_time or 0.0) < LATEST:  # NaN as well
            self._outbox.ended(endings.impossible_time(armed, now))
            return None
        if self.draining:
            self._outbox.refused(armed, "draining")
            return None
        if is_held and armed.task in self._held:  # attempts never overlap; refused late, else it would come at once
            reason = "its last attempt is not over"
            self._boot_timers.after(REFUSE_AFTER, lambda late: self._outbox.refused(late, reason), armed)
            return None
        outbox, executor = self._outbox, self._executors[type(job.definition.run)]
        attempt = Attempt(
            armed, job, outbox, self.database, self.agent, outbox.submissions, executor,
            lead=armed.fire_at - now, grace=job.definition.grace,
        )  # fmt: skip
        if secrets:
            attempt.secrets = secrets.get(armed.job, NO_SECRETS)
        try:
            executor.prepare(attempt)
        except Exception as error:
            ending = endings.executor_error(attempt, error, now)
            self._outbox.ended(self._failures.report(attempt, ending, error))
            return None
        return attempt

    def _supersede(self, armed: Armed) -> bool:
        """Drop or stop the attempt of the same task that is held here; False if it is the newer one."""
        present = self._held[armed.task]
        if present.armed.token > armed.token:
            return False
        present.grace = 0.0
        self._replace(present)
        return True

    def _replace(self, attempt: Attempt) -> None:
        """The task belongs to another attempt now: drop this one, or stop it."""
        if attempt.is_waiting:
            self._drop(attempt)
        else:
            self._stop(attempt, "lost")

    def _due(self, attempt: Attempt) -> None:
        attempt.timer = None
        if attempt.chunk:
            self._chunks.add(attempt)
        else:
            self._workers.start(attempt, boottime())

    # ── across connections ──────────────────────────────────────────────────────────────────────

    def holdings(self) -> list[Holding]:
        """The attempts held here, and whether each has started."""
        return [
            Holding(a.armed.task, a.armed.token, TaskState.ASSIGNED if a.is_waiting else TaskState.RUNNING)
            for a in self._held.values()
        ]

    def keep_only(self, kept: list[AttemptId]) -> None:
        """Keep the attempts that the server lists; any other belongs to another agent by now."""
        ours = {attempt.token for attempt in kept}
        for attempt in [a for a in self._held.values() if a.armed.token not in ours]:
            attempt.grace = 0.0  # it may already run elsewhere
            self._replace(attempt)

    def lose_all(self, grace: float) -> None:
        """The lease expires soon: drop the attempts that wait, stop those that run within `grace` seconds."""
        self._workers.waiting.clear()
        for attempt in list(self._held.values()):
            attempt.grace = min(attempt.grace, grace)
            self._replace(attempt)

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    async def _run(self, attempt: Attempt, began: float) -> None:
        """Run an attempt that begins at this boot time; report its ending, and its start once it waits."""
        armed = attempt.armed
        attempt.started_at = self._clock.at(began)
        has_begun = can_wait = False
        try:
            if attempt.stopping is not None:
                raise asyncio.CancelledError
            if attempt.starts_durably:
                self._outbox.started(attempt)
                self._outbox.hurry()
                await self._confirm()
                self._durations.begin(attempt, 0.0)
            if armed.expires_at is not None and attempt.has_expired(self._clock.now()):
                raise Expired
            has_begun = True
            result = await (self._run_watched(attempt) if armed.daemon else attempt.executor.run(attempt))
            ending = endings.ended(attempt, SUCCEEDED, self._clock.now(), result)
            can_wait = attempt.lead > 0.0 and attempt.ending_can_wait  # cheap test first: most are not armed ahead
        except (AttemptFailed, Exhausted, Expired, Control, TaskCancelled, asyncio.CancelledError) as error:
            ending = endings.raised(attempt, error, self._clock.now())
            if not has_begun:
                endings.give_back(ending)
            ending = self._failures.report(attempt, ending, error)
        except BaseException as error:
            ending = self._failures.report(attempt, endings.executor_error(attempt, error, self._clock.now()), error)
        finally:
            self._over(attempt)
        self._outbox.ended(ending, can_wait=can_wait)

    def _suspended(self, attempt: Attempt) -> None:
        """It waits for the first time. Nothing could have stopped it before: most attempts need no timers at all."""
        if not attempt.starts_durably:  # else `_run` does both
            self._outbox.started(attempt)
            self._durations.begin(attempt, self._clock.now() - attempt.started_at)

    async def _run_watched(self, attempt: Attempt) -> str | None:
        with watched(attempt, self._executors, partial(self._stop, reason="unhealthy")):
            return await attempt.executor.run(attempt)

    def _over(self, attempt: Attempt) -> None:
        attempt.handle = None  # the worker takes another attempt
        attempt.executor.forget(attempt)  # it may have been stopped before its executor ran
        self._durations.end(attempt)
        self._let_go(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        if self._held.get(attempt.armed.task) is attempt:
            del self._held[attempt.armed.task]
            if not self._held:
                self.empty.set()

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def _stop(self, attempt: Attempt, reason: StopReason) -> None:
        if attempt.call is not None:
            self._chunks.stop(attempt, reason)
            return
        attempt.stop(reason)
        self._durations.stopped(attempt)

    def _drop(self, attempt: Attempt) -> None:
        """Hold an attempt that has not started no longer."""
        attempt.executor.forget(attempt)
        if attempt.timer is not None:
            self._timers.disarm(attempt.timer)
        elif attempt.call is not None:
            self._chunks.leave(attempt)
        elif attempt in self._workers.waiting:
            self._workers.waiting.remove(attempt)
        self._let_go(attempt)

    def _refuse(self, attempt: Attempt, reason: str) -> None:
        """Give an attempt that has not started back to the server."""
        self._drop(attempt)
        self._outbox.refused(attempt.armed, reason)

    def _find(self, attempts: list[AttemptId]) -> Iterator[Attempt]:
        """Those of these attempts that are held here."""
        for held in attempts:
            attempt = self._held.get(held.task)
            if attempt is not None and attempt.armed.token == held.token:
                yield attempt

    def cancel(self, attempts: list[AttemptId], *, kill: bool = False, restart: bool = False) -> None:
        """End the attempts that wait, stop those that run; with `kill`, without grace.

        With `restart` they will run again: those that wait are refused, not ended.
        """
        for attempt in self._find(attempts):
            if kill:
                attempt.grace = 0.0
            if attempt.is_waiting and restart:
                self._refuse(attempt, "restarted")
            elif attempt.is_waiting:
                self._drop(attempt)
                self._outbox.ended(endings.cancelled_before_start(attempt, self._clock.now()))
            elif kill and attempt.stopping is not None and attempt.handle is not None and attempt.call is None:
                attempt.handle.cancel()  # the executor is waiting for the old grace to end
            else:
                self._stop(attempt, "restart" if restart else "cancelled")

    def pause(self, attempts: list[AttemptId], *, resume: bool) -> None:
        """Pause or resume running attempts. Paused time does not count towards a timeout."""
        for attempt in self._find(attempts):
            if attempt.is_waiting or attempt.stopping is not None:
                continue
            if not attempt.executor.pause(attempt, resume=resume):
                if not resume:  # a server resumes all attempts of an agent that reconnects
                    log.info("task %d cannot be paused: only commands can", attempt.armed.task)
                continue
            self._durations.pause(attempt, resume=resume)

    def recall(self, attempts: list[AttemptId]) -> None:
        """Refuse those of these attempts that have not started."""
        for attempt in self._find(attempts):
            if attempt.is_waiting:
                self._refuse(attempt, "recalled")

    def drain(self) -> None:
        """Accept nothing new; refuse what has not started; stop daemons, which would never end."""
        self.draining = True
        self._workers.waiting.clear()
        for attempt in list(self._held.values()):
            if attempt.is_waiting:
                self._refuse(attempt, "draining")
            elif attempt.armed.daemon:
                self._stop(attempt, "shutdown")

    def refuse_overdue(self, now: float) -> None:
        """Refuse attempts that have waited too long for a slot at `now` (boot time): another agent may have one."""
        for work in self._workers.take_overdue(now - REFUSE_AFTER):
            for attempt in list(work.members) if isinstance(work, ChunkCall) else [work]:
                self._refuse(attempt, "full")

    def stop_all(self, reason: StopReason) -> None:
        """Stop the attempts that run; refuse those that are about to start."""
        for attempt in list(self._held.values()):
            if not attempt.is_waiting:
                self._stop(attempt, reason)
            elif attempt.timer is None:
                self._refuse(attempt, "stopping")

    # ── for the watchdog's thread ───────────────────────────────────────────────────────────────

    @property
    def runs_handlers(self) -> bool:
        """Whether a Python handler has started and not ended."""
        held = list(self._held.values())  # in one step: the loop runs in another thread
        return any(a.started_at and type(a.job.definition.run) is Python for a in held)

    def in_task(self, task: asyncio.Task[Any] | None) -> Attempt | None:
        """The attempt that runs in a task of the loop, or in one that its handler has started."""
        if task is None:
            return None
        found = next((attempt for attempt in list(self._held.values()) if attempt.handle is task), None)
        if found is None and hasattr(task, "get_context"):  # Python 3.12
            context = task.get_context()
            found = context.get(running) or next(iter(context.get(running_chunk) or ()), None)
        return found

    @property
    def running(self) -> int:
        return self._workers.busy

    @property
    def crowded(self) -> bool:
        """Whether due attempts wait for a slot."""
        return bool(self._workers.waiting)

    async def wait_until_stopped(self) -> None:
        """Wait, in bounded time, for stopped attempts to end: a handler can ignore its cancellation."""
        grace = max((attempt.grace for attempt in self._held.values()), default=0.0)
        try:
            async with asyncio.timeout(grace + STOP_WITHIN):
                await self.empty.wait()
        except TimeoutError:
            log.error("tasks %s do not stop; the agent no longer waits for them", sorted(self._held))

    def close(self) -> None:
        self._workers.close()
