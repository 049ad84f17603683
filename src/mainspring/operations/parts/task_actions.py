"""Actions: what may be done to many tasks at once, and in which states; most of it in one statement.

Next: store/tasks/control.py
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.states import ACTIVE, LIVE
from mainspring.model.words.names import check_note
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import control, tasks

Action = Literal["cancel", "kill", "skip", "retry", "change"]

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

    @property
    def detail(self) -> dict[str, object]:
        given = {"note": self.note, "priority": self.priority, "now": self.now or None}
        return {name: value for name, value in given.items() if value is not None}

    async def each(self, conn: Connection, ids: list[int]) -> set[int]:
        """Do it to these, but for those that others hold or that are in another state; returns to which."""
        match self.action:
            case "retry":
                return await tasks.run_each_again(conn, ids)
            case "skip":
                return await control.skip_each(conn, ids, self.why)
            case "change":
                return await control.change_each(conn, ids, priority=self.priority, now=self.now)
            case _:
                return await tasks.cancel_each(conn, ids, kill=self.action == "kill")


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
