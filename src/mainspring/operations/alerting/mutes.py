"""Mutes: rules and subjects that are not told of for a while.

Next: store/alerts/mutes.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from mainspring.errors import NotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.access.patterns import overlap
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.names import check_name, check_note
from mainspring.operations.parts import reach
from mainspring.store.access import audit
from mainspring.store.alerts import channels, mutes
from mainspring.store.alerts.mutes import MuteView
from mainspring.store.postgres.connection import Connection

LONGEST = timedelta(days=366)
MOST_PATTERNS = 100


async def listing(conn: Connection, actor: Actor) -> list[MuteView]:
    """The mutes in force, the first to end first; without those that name what is out of reach."""
    return [mute for mute in await mutes.listing(conn) if _is_within_reach(actor, mute)]


def _is_within_reach(actor: Actor, mute: MuteView) -> bool:
    """Its note may tell of all that it names."""
    if not actor.jobs:
        return True
    reached = [f"job:{pattern}" for pattern in actor.jobs]
    names_all = all(rule == "*" for rule in mute.rules)
    return all(overlap([subject], reached) for subject in mute.subjects) and (bool(mute.subjects) or names_all)


async def create(
    conn: Connection,
    actor: Actor,
    note: str,
    *,
    rules: Sequence[str] = (),
    subjects: Sequence[str] = (),
    until: datetime | None = None,
    duration: Duration | None = None,
) -> MuteView:
    """Tell nothing of these rules and subjects (`job:report*`) until an instant, or for so long.

    What happens meanwhile is not told later; what still lasts at the end is.
    """
    reach.check_all(actor, "a mute hides what happens to tasks")
    if (until is None) == (duration is None):
        raise ValidationError("until, duration: give one of them", field="until")
    if not rules and not subjects:
        raise ValidationError("rules: name rules or subjects; * is all of them", field="rules")
    of_rules, of_subjects = _patterns(rules, "rules"), _patterns(subjects, "subjects")
    said = check_note(note).strip()
    if not said:
        raise ValidationError("note: say why, for those who wonder where the alerts are", field="note")
    async with conn.transaction():
        now: datetime = await conn.fetchval("select mainspring.now()")
        end = until or now + timedelta(seconds=seconds(duration or 0, field="duration", at_least=1.0))
        if not now < end <= now + LONGEST:
            raise ValidationError("until: give an instant within the next year", field="until")
        made = await mutes.add(conn, of_rules, of_subjects, end, said, actor.name)
        await audit.record(
            conn, actor, "mute.create", f"mute:{made.id}",
            {"rules": made.rules, "subjects": made.subjects, "until": made.until, "note": said},
        )  # fmt: skip
    return made


def _patterns(given: Sequence[str], field: str) -> list[str]:
    if len(given) > MOST_PATTERNS:
        raise ValidationError(f"{field}: at most {MOST_PATTERNS}; use patterns with *", field=field)
    return [check_name(pattern, field=field) for pattern in given]


async def delete(conn: Connection, actor: Actor, id: int) -> MuteView:
    """End a mute now; what still fires is sent."""
    reach.check_all(actor, "a mute hides what happens to tasks")
    async with conn.transaction():
        ended = await mutes.end(conn, id) if 0 < id < 2**31 else None
        if ended is None:
            raise NotFound(f"no mute {id} is in force; `mainspring alert mutes` shows those that are", field="id")
        await audit.record(conn, actor, "mute.delete", f"mute:{id}", {"note": ended.note})
        await channels.hint(conn)
    return ended
