"""Ownership: whose attempts are reports about that the reporter's session does not hold?

An agent may repeat a report, or send it late in another session: reports on attempts that its process had are written.
A report on another agent's attempt changes nothing: it is refused and audited, and the connection stays open.
Writes  store.tasks.ownership   (audit)
Next:   server/recording/recorder.py
"""

from __future__ import annotations

import logging

from mainspring.model.messages import Refused
from mainspring.model.reports import Report, about, items
from mainspring.server.recording.batch import Batch, Reporter
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import session_tasks
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

AUDIT_EVERY = 1.0  # seconds between two entries about one agent: it must not fill the audit


class Ownership:
    def __init__(self) -> None:
        self._audited_at: dict[str, float] = {}  # by agent

    async def resolve(self, conn: Connection, batch: Batch) -> None:
        """Move the foreign reports on attempts of the reporter's own process into the batch; refuse the rest."""
        found: list[Report] = []
        for reporter, report in batch.foreign:
            attempts = [(item.task, item.token) for item in items(report)]
            own = await session_tasks.own(conn, reporter.instance, attempts)
            if kept := [item for item in items(report) if (item.task, item.token) in own]:
                found.append(about(report, kept))
            others = [attempt for attempt in attempts if attempt not in own]
            if others and not isinstance(report, Refused):  # giving back what it does not hold does no harm
                await self._refuse(conn, reporter, report, others)
        batch.foreign = []  # only after the last answer: a batch that fails in between is resolved again
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
        log.warning("agent %s reported (%s) on task %d, which it does not own; refused", reporter.name, kind, task)
        detail = {"report": kind, "tasks": [str(task) for task, _ in others[:20]], "count": len(others)}
        await session_tasks.audit(
            conn, f"agent {reporter.name}", "report_refused", f"task {task}, token {token}", detail
        )
