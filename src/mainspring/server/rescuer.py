"""Rescuer: tasks of agents that are gone run again, end, or are lost, by their delivery class.

Reads   store.agents.gone    sessions whose lease is over
Writes  store.outcomes       through the recorder's own moves, under the old token
Next:   model/verdict.py
"""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

from mainspring.model.messages import Ending
from mainspring.model.states import TaskState
from mainspring.model.verdict import Again, after_crash
from mainspring.server.catalogue import Catalogue
from mainspring.server.recorder import Recorder
from mainspring.store import agents, recalls
from mainspring.store.database import Connection, Database
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

BATCH = 500


def process_identity(pid: int | None = None) -> str | None:
    """Names a process so that a neighbour in the same kernel and pid namespace can see whether it lives.

    None where that cannot be told; then only the lease counts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        stat = Path(f"/proc/{pid or os.getpid()}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX":  # it is dead, and only nobody has asked how it ended
        return None
    return f"{boot} {namespace} {pid or os.getpid()} {fields[18]}"


def is_dead_neighbour(identity: str) -> bool:
    """True only if the process could be seen from here and is gone."""
    own = process_identity()
    if own is None or identity.split()[:2] != own.split()[:2]:
        return False
    return process_identity(int(identity.split()[2])) != identity


class Rescuer:
    def __init__(self, database: Database, catalogue: Catalogue, recorder: Recorder, clock: Clock) -> None:
        self._line = database.line()
        self._catalogue = catalogue
        self._recorder = recorder
        self._clock = clock

    async def step(self) -> int:
        """Rescue a batch; returns how many tasks were moved."""
        if self._recorder.is_behind:
            return 0  # some of them may have ended well: what we were told comes first
        moved = 0
        async with self._line as conn:
            dead = [s for s, process in await agents.neighbours(conn) if is_dead_neighbour(process)]
            if dead:
                log.warning("sessions %s died with their process; their tasks are rescued", dead)
                await agents.end(conn, dead)
            for session in await agents.gone(conn):
                moved += await self._rescue(conn, session)
        if moved:
            for listener in self._recorder.on_requeued:
                listener()
        return moved

    async def _rescue(self, conn: Connection, session: int) -> int:
        held = await agents.held(conn, session, BATCH)
        recalled = {task.task: task.token for task in held if self._can_be_planned_anew(task)}
        if recalled:
            await recalls.confirm(conn, list(recalled), list(recalled.values()))
        ended: list[Ending] = []
        again: list[Again] = []
        for task in held:
            if task.task in recalled:
                continue
            verdict = after_crash(
                self._catalogue.definition(task.job_id),
                Ending(
                    task=task.task,
                    token=task.token,
                    job=task.job_id,
                    attempt=task.attempt,
                    state=TaskState.LOST,
                    started_at=task.started_at,
                    finished_at=self._clock.now(),
                    code="lost",
                    error=f"its agent (session {session}) is gone",
                ),
                started=task.running,
                crashes=task.crashes,
                cancelled=task.cancelled,
                random=random.random(),
                scheduled=task.scheduled,
                handed_on=task.handed_on,
            )
            if isinstance(verdict, Again):
                again.append(verdict)
            else:
                ended.append(verdict)
        await self._recorder.apply(conn, ended, again)
        if len(held) < BATCH:
            await agents.bury(conn, session)
        return len(held)

    def _can_be_planned_anew(self, task: agents.Held) -> bool:
        """One that was asked back has not started, as far as we know; it may have, so not where that must not be."""
        definition = self._catalogue.definition(task.job_id)
        return task.recalled and definition is not None and definition.delivery != "at_most_once"

    async def close(self) -> None:
        await self._line.close()
