"""Explain: the story of a plan time, from whether it was expected to what became of its tasks.

Reads   the ledger (store/schedules/fires.py), tasks and their attempts
Next:   model/schedules/story.py, for the sentences that need no database
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from mainspring.errors import TaskNotFound
from mainspring.model.schedules import story
from mainspring.model.schedules.schedules import Overlap
from mainspring.model.schedules.story import FireStory, Past, Story, local
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.words.zones import by_its_clocks
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules.fires import FireRow, UsedUp, last_decided, used_up, versions
from mainspring.store.schedules.schedules import Stored
from mainspring.store.search.task_views import AttemptView, TaskView
from mainspring.store.tasks import tasks

SCOPES_SHOWN = 20  # scopes whose tasks are described one by one


async def explain(conn: Connection, stored: Stored, at: datetime | None = None) -> list[Story]:
    """The story of a plan time; by default of the last decided, the overdue and the next plan time."""
    if at is not None:
        return [await _story(conn, stored, at)]
    found = {await last_decided(conn, stored), timing(stored.schedule).after(stored.now)}
    if stored.next_plan_at is not None and stored.next_plan_at <= stored.now:
        found.add(stored.next_plan_at)
    return [await _story(conn, stored, one) for one in sorted(one for one in found if one is not None)]


async def _story(conn: Connection, stored: Stored, at: datetime) -> Story:
    rows = await conn.fetch(
        """
        select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
         where schedule_id = $1 and plan_time = $2 order by scope
        """,
        stored.id,
        at,
    )
    decided = [FireRow(*row) for row in rows]
    past = _in_force(await versions(conn, stored, at), at)
    shown = [await _fire(conn, stored, past, row) for row in decided[:SCOPES_SHOWN]]
    used = None if past is None else await used_up(conn, stored, past.version)
    expected, status, said = _expected(stored, past, at, decided, used)
    timing_then = timing(stored.schedule) if past is None else past.timing
    before = story.last_before(timing_then, at)
    after = timing_then.after(max(at, stored.created_at))
    return Story(
        plan_time=by_its_clocks(at, timing_then.zone),
        expected=expected,
        status=status,
        said=said,
        fires=shown,
        more_fires=len(decided) - len(shown),
        before=by_its_clocks(before, timing_then.zone) if before is not None and before > stored.created_at else None,
        after=None if after is None else by_its_clocks(after, timing_then.zone),
    )


def _in_force(versions: Sequence[Past], at: datetime) -> Past | None:
    for past in versions:
        if past.version.since < at and (past.version.until is None or at <= past.version.until):
            return past
    return None


def _expected(
    stored: Stored, past: Past | None, at: datetime, decided: Sequence[FireRow], used: UsedUp | None
) -> tuple[bool, story.Status, list[str]]:
    """Whether a plan time was expected, its status, and the sentences that say so."""
    is_decided = any(row.origin != "manual" for row in decided)
    status: story.Status = "decided" if decided else "not_expected"
    if past is None:
        made = local(stored.created_at, timing(stored.schedule))
        known = "the version that was in force then is no longer kept"
        return False, status, [f"not expected: the schedule was made at {made}" if at <= stored.created_at else known]
    if stored.schedule.kind == "daemon":
        return False, status, ["not expected: it keeps replicas running, and has no plan times"]
    if not past.has(at):
        return False, status, [story.why_not(past, at)]
    enabled = past.version.enabled
    words = f"{'expected' if enabled else 'a time of the schedule'}: {past.timing.words}, in {past.timing.zone}"
    if past.version.until is not None:
        words += f"; by the version that was in force until {local(past.version.until, past.timing)}"
    if is_decided:
        return enabled, "decided", [words]
    if used is not None and used.has(at):
        return False, "not_expected", [story.why_used_up(used.max_runs)]
    status, why = story.undecided(
        past, at, stored.now, cursor=stored.next_plan_at, enabled=stored.enabled, problem=stored.problem
    )
    return enabled, status, [words, why]


async def _fire(conn: Connection, stored: Stored, past: Past | None, row: FireRow) -> FireStory:
    view: TaskView | None = None
    attempts: list[AttemptView] = []
    if row.task_id is not None:
        with suppress(TaskNotFound):  # retention dropped it
            view = await tasks.get(conn, row.task_id)
            attempts = await tasks.attempts(conn, row.task_id)
    teller = _Teller(row, past, timing(stored.schedule) if past is None else past.timing, stored.now)
    if row.reason is not None:
        said = [story.why_no_task(row.reason, past, row.plan_time, row.decided_at)]
    else:
        said = [teller.planned(stored.schedule.name), *teller.came_of(view, attempts)]
        if (due := _due(attempts)) is not None and teller.overlap != "allow":
            said[2:2] = await _waited(conn, stored, teller.overlap, row, due)
    first = attempts[0] if attempts else None
    return FireStory(
        scope=row.scope,
        origin=row.origin,
        decided_at=row.decided_at,
        reason=row.reason,
        task_id=row.task_id,
        state=None if view is None else view.state,
        agent=attempts[-1].agent if attempts else None,
        run_at=None if view is None else view.run_at,
        started_at=None if first is None else first.started_at,
        finished_at=None if view is None else view.finished_at,
        lateness_ms=None if first is None else first.lateness_ms,
        armed_ahead=None if first is None else first.armed_ahead,
        attempts=len(attempts),
        said=said,
    )


def _due(attempts: Sequence[AttemptView]) -> datetime | None:
    """The instant of a task's first attempt: `run_at` of the task moves with every retry."""
    first = attempts[0] if attempts else None
    if first is None or first.started_at is None or first.lateness_ms is None:
        return None
    return first.started_at - timedelta(milliseconds=first.lateness_ms)


_RUN_BEFORE = """
    select task_id from mainspring.fire
     where schedule_id = $1 and scope = $2 and plan_time < $3 and task_id is not null and origin <> 'backfill'
     order by plan_time desc limit 1
"""


async def _waited(conn: Connection, stored: Stored, overlap: Overlap, row: FireRow, due: datetime) -> list[str]:
    """That a task waited for the previous run of its scope, if it did."""
    before = await conn.fetchval(_RUN_BEFORE, stored.id, row.scope, row.plan_time)
    if before is None or row.origin == "backfill":
        return []
    try:
        ended = (await tasks.get(conn, before)).finished_at
    except TaskNotFound:
        return []
    why = story.waited(overlap, due, ended)
    return [] if why is None else [why]


class _Teller(NamedTuple):
    """Describes one fire; times on the day of its plan time are written without the date."""

    row: FireRow
    past: Past | None
    zone: Timing
    now: datetime

    @property
    def overlap(self) -> Overlap:
        return "allow" if self.past is None else self.past.version.policies.overlap

    def at(self, at: datetime) -> str:
        return local(at, self.zone, on=self.row.plan_time)

    def planned(self, name: str) -> str:
        if self.row.origin == "manual":
            return "run now, by hand"
        if self.row.origin == "backfill":
            return f"backfilled at {self.at(self.row.decided_at)}"
        moved = None if self.past is None else story.moved(name, self.past, self.row.plan_time, self.row.scope)
        return f"planned at {self.at(self.row.decided_at)}" + (f", to run after {moved}" if moved else "")

    def came_of(self, view: TaskView | None, attempts: Sequence[AttemptView]) -> list[str]:
        """What became of the task."""
        if view is None:
            return [f"what came of its task {self.row.task_id} is not kept any longer"]
        task = f"task {view.id}"
        if not attempts and isinstance(view.result, dict) and "spread_ms" in view.result:
            return self.broadcast(view)
        match view.state:
            case "blocked":
                return [f"{task} waits for its turn", story.waits(self.overlap, self.at(view.run_at))]
            case "pending" if not attempts and view.run_at > self.now:
                return [f"{task} is to run at {self.at(view.run_at)}"]
            case "pending" if not attempts:
                return [f"{task} waits for an agent since {self.at(view.run_at)}"]
            case "assigned" if len(attempts) == 1:
                return [f"{task} is armed on {attempts[0].agent}, to fire at {self.at(view.run_at)}"]
            case "running" if not attempts:
                return [f"{task} was sent out to its agents, to fire at {self.at(view.run_at)}"]
        return [f"{task} {self.fired(attempts)}", *self.ended(view, attempts)]

    def broadcast(self, view: TaskView) -> list[str]:
        """What became of a broadcast that has ended."""
        report, fired = view.result, "did not start"
        if view.started_at is not None:
            spread = story.span(timedelta(milliseconds=report["spread_ms"]))
            fired = f"fired at {self.at(view.started_at)} on {report['agents']} agents, within {spread}"
        ended = "" if view.finished_at is None else f" at {self.at(view.finished_at)}"
        said = [
            f"task {view.id} {fired}",
            f"{view.state}{ended}: {report['succeeded']} of {report['agents']} runs succeeded",
        ]
        return [*said, f"its error: {_first_line(view.error)}"] if view.error else said

    def fired(self, attempts: Sequence[AttemptView]) -> str:
        started = next((attempt for attempt in attempts if attempt.started_at is not None), None)
        if started is None or started.started_at is None:
            return "did not start"
        late = "" if started.lateness_ms is None else f", {story.lateness(started.lateness_ms)}"
        ahead = "" if started.armed_ahead is None else f", {story.armed(started.armed_ahead)}"
        return f"fired at {self.at(started.started_at)}{late}, on {started.agent or 'an agent that is gone'}{ahead}"

    def ended(self, view: TaskView, attempts: Sequence[AttemptView]) -> list[str]:
        count = f"{len(attempts)} attempts" if len(attempts) != 1 else "1 attempt"
        if view.finished_at is not None:
            ended = [f"{view.state} at {self.at(view.finished_at)} after {count}"]
            return [*ended, f"its error: {_first_line(view.error)}"] if view.error else ended
        going = "it runs" if view.state == "running" else f"the next attempt is at {self.at(view.run_at)}"
        error = next((attempt.error for attempt in reversed(attempts) if attempt.error), None)
        last = [f"the last error: {_first_line(error)}"] if error else []
        return [f"{going}, {count} so far", *last]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
