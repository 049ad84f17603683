"""Strangers: reports about attempts that their reporter does not hold. Its own of before pass; others' are refused.

An agent may repeat what it has reported before, or come late. What it says about another agent's task changes
nothing: it is written to the audit, and the connection goes on.
Writes  store.evidence.audit
Next:   server/recording/recorder.py
"""

from __future__ import annotations

import logging

from mainspring.model.messages import Refused
from mainspring.server.recording.batch import Batch, Report, Reporter, about, items
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import session_tasks
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

AUDIT_EVERY = 1.0  # seconds between two entries about one agent: a liar must not fill the audit


class Strangers:
    def __init__(self) -> None:
        self._audited_at: dict[str, float] = {}  # by agent

    async def sift(self, conn: Connection, batch: Batch) -> None:
        """Move what turns out to be the reporter's own into the batch; refuse the rest."""
        found: list[Report] = []
        for reporter, report in batch.foreign:
            attempts = [(item.task, item.token) for item in items(report)]
            own = await session_tasks.own(conn, reporter.instance, attempts)
            if kept := [item for item in items(report) if (item.task, item.token) in own]:
                found.append(about(report, kept))
            others = [attempt for attempt in attempts if attempt not in own]
            if others and not isinstance(report, Refused):  # to give back what one does not have is no lie
                await self._refuse(conn, reporter, report, others)
        batch.foreign = []  # not before the last answer: a batch that failed in between is sifted again
        for report in found:
            batch.add(report)

    async def _refuse(
        self, conn: Connection, reporter: Reporter, report: Report, others: list[tuple[int, int]]
    ) -> None:
        now = boottime()
        if now - self._audited_at.get(reporter.name, -AUDIT_EVERY) < AUDIT_EVERY:
            return
        self._audited_at[reporter.name] = now
        task, token = others[0]
        kind = type(report).__name__.lower()
        log.warning("agent %s reported (%s) on task %d, which is not its own; refused", reporter.name, kind, task)
        detail = {"report": kind, "tasks": [str(task) for task, _ in others[:20]], "count": len(others)}
        await session_tasks.audit(
            conn, f"agent {reporter.name}", "report_refused", f"task {task}, token {token}", detail
        )
