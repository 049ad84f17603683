"""Actions: what may be done to many tasks at once, and in which states; most of it in one statement.

Next: store/tasks/control.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.states import ACTIVE, LIVE
from mainspring.model.words.names import check_note
from mainspring.operations.parts.slices import Slices
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import control, tasks
from mainspring.store.tasks.control import Changed, Waiting

Action = Literal["cancel", "kill", "skip", "retry", "change"]

NOTED_TOGETHER = audit.MOST_MEMBERS // len(Waiting._fields)  # tasks, in one row of the audit

# Where the filter names no states.
ACTED_ON = {
    "cancel": LIVE,
    "kill": LIVE,
    "skip": control.SKIPPED_FROM,
    "retry": tasks.RETRIED,
    "change": LIVE - ACTIVE,
}


class Wanted(NamedTuple):
    """What is done to each."""

    action: Action
    note: str | None
    why: str  # it is skipped
    priority: int | None
    now: bool

    async def each(self, conn: Connection, actor: Actor, ids: list[int]) -> set[int]:
        """Do it to these and note it in the audit, but for those that others hold or that are in another state;
        returns to which."""
        if self.action == "change":
            changed = await control.change_each(conn, ids, priority=self.priority, now=self.now)
            await _note_changes(conn, actor, changed)
            return changed.keys() | set()
        done = await self._each(conn, ids)
        if done:
            detail = {"tasks": sorted(done), **({} if self.note is None else {"note": self.note})}
            await audit.record(conn, actor, f"task.{self.action}", f"{len(done)} tasks", detail)
        return done

    async def _each(self, conn: Connection, ids: list[int]) -> set[int]:
        match self.action:
            case "retry":
                return await tasks.run_each_again(conn, ids)
            case "skip":
                return await control.skip_each(conn, ids, self.why)
            case _:
                return await tasks.cancel_each(conn, ids, kill=self.action == "kill")


async def _note_changes(conn: Connection, actor: Actor, changed: Mapping[int, Changed]) -> None:
    """What each task was before, in as few rows as hold all of it."""
    ids, rows = sorted(changed), []
    for start in range(0, len(ids), NOTED_TOGETHER):
        part = ids[start : start + NOTED_TOGETHER]
        old, new = ({str(id): getattr(changed[id], side)._asdict() for id in part} for side in ("before", "after"))
        rows.append(audit.Change("task.change", f"{len(part)} tasks", old, new))
    await audit.all_changed(conn, actor, rows, Slices().rest)


def wanted(actor: Actor, action: Action, note: str | None, priority: int | str | None, now: bool) -> Wanted:
    if note is not None and action != "skip":
        raise ValidationError(f"note: belongs to skip, not to {action}", field="note")
    is_changed = priority is not None or now
    if is_changed != (action == "change"):
        why = "give at least one of them" if action == "change" else f"belong to change, not to {action}"
        raise ValidationError(f"priority, now: {why}", field="priority")
    level = None if priority is None else priority_level(priority)
    return Wanted(action, note, why_skipped(actor, note), level, now)


def why_skipped(actor: Actor, note: str | None) -> str:
    """The error of a task that this actor skips."""
    said = "" if note is None else check_note(note)
    return f"skipped by {actor.name}: {said}" if said else f"skipped by {actor.name}"
