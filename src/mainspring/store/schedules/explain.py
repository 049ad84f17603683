"""Explain: the story of a plan time, from whether it was expected to what became of its tasks.

Reads   the ledger (store/schedules/fires.py), tasks and their attempts
Next:   model/schedules/story.py, for the sentences that need no database
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec.structs import replace

from mainspring.errors import TaskNotFound
from mainspring.model.forecasting.preview import transition
from mainspring.model.schedules import steps, story
from mainspring.model.schedules.schedules import Overlap
from mainspring.model.schedules.skips import covering
from mainspring.model.schedules.steps import Before, first_line
from mainspring.model.schedules.story import FireStory, Past, Step, Story, local
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.tasks.states import ASSIGNED, BLOCKED, PENDING
from mainspring.model.tasks.waits import Wait
from mainspring.model.words.zones import Change, by_its_clocks, change_around
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules.fires import FireRow, UsedUp, last_decided, skipped_by, used_up, versions
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import tasks
from mainspring.store.views.task_views import AttemptView, TaskView

SCOPES_SHOWN = 20  # scopes whose tasks are described one by one

Waits = Callable[[Connection, Sequence[int]], Awaitable[dict[int, Wait]]]  # store/limits/waits.py, which is above this


async def explain(
    conn: Connection, stored: Stored, at: datetime | None = None, *, waits: Waits | None = None
) -> list[Story]:
    """The story of a plan time; by default of the last decided, the overdue and the next plan time.

    `at` without an offset is a local time of the schedule: one that comes twice has two stories.
    """
    if at is not None and at.tzinfo is None:
        return await _local(conn, stored, at, waits)
    if at is not None:
        return [await _story(conn, stored, at, waits)]
    found = {await last_decided(conn, stored), timing(stored.schedule).after(stored.now)}
    if stored.next_plan_at is not None and stored.next_plan_at <= stored.now:
        found.add(stored.next_plan_at)
    return [await _story(conn, stored, one, waits) for one in sorted(one for one in found if one is not None)]


async def _local(conn: Connection, stored: Stored, asked: datetime, waits: Waits | None) -> list[Story]:
    """The stories of a time as the clocks of the schedule show it: two where it comes twice."""
    zone = timing(stored.schedule).zone
    change = change_around(zone, asked)
    if change is None:
        return [await _story(conn, stored, asked.replace(tzinfo=zone).astimezone(UTC), waits)]
    if change.is_gap:
        return [await _no_such_time(conn, stored, asked, change, waits)]
    passes = [asked.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
    found = [await _story(conn, stored, at, waits) for at in passes]
    return [replace(one, asked=asked.isoformat()) for one in found]


async def _no_such_time(
    conn: Connection, stored: Stored, asked: datetime, change: Change, waits: Waits | None
) -> Story:
    """Of the plan time that stands for it, if there is one."""
    past = _in_force(await versions(conn, stored, change.at), change.at)
    told = await _story(conn, stored, change.at, waits)
    if past is None or stored.schedule.kind == "daemon":
        return replace(told, asked=asked.isoformat())
    why = story.why_no_such_time(past, asked, change)
    if why.plan_time is None:  # what happened at the instant after it is another story
        told = replace(told, expected=False, status="not_expected", fires=[], more_fires=0, steps=[why])
    else:
        told = replace(told, steps=[why, *(step for step in told.steps if step.kind != "clock")])
    sentence = why.said if why.plan_time is None else f"{why.said}. {told.sentence}"
    said = [step.sentence for step in told.steps]
    return replace(told, said=said, sentence=sentence, asked=asked.isoformat())


_DECIDED = f"""
    select f.plan_time, f.scope, f.task_id, f.reason, f.origin, f.decided_at, {skipped_by("$1")}
      from mainspring.fire f where f.schedule_id = $1 and f.plan_time = $2 order by f.scope
"""


async def _story(conn: Connection, stored: Stored, at: datetime, waits: Waits | None) -> Story:
    decided = [FireRow(*row) for row in await conn.fetch(_DECIDED, stored.id, at)]
    past = _in_force(await versions(conn, stored, at), at)
    shown = [await _fire(conn, stored, past, row, waits) for row in decided[:SCOPES_SHOWN]]
    used = None if past is None else await used_up(conn, stored, past.version)
    expected, status, told = _expected(stored, past, at, decided, used)
    if status == "undecided" and (skip := covering(stored.skips, at)) is not None:
        said = f"it is skipped by {skip.who}; `mainspring schedule unskip` takes that back"
        told.append(Step("skipped", said, skip.made_at, code="skipped"))
    timing_then = timing(stored.schedule) if past is None else past.timing
    before = story.last_before(timing_then, at)
    after = timing_then.after(max(at, stored.created_at))
    more = len(decided) - len(shown)
    return Story(
        plan_time=by_its_clocks(at, timing_then.zone),
        expected=expected,
        status=status,
        said=[step.sentence for step in told],
        fires=shown,
        more_fires=more,
        before=by_its_clocks(before, timing_then.zone) if before is not None and before > stored.created_at else None,
        after=None if after is None else by_its_clocks(after, timing_then.zone),
        sentence=story.in_one(told, shown, more),
        steps=told,
    )


def _in_force(versions: Sequence[Past], at: datetime) -> Past | None:
    for past in versions:
        if past.version.since < at and (past.version.until is None or at <= past.version.until):
            return past
    return None


def _expected(
    stored: Stored, past: Past | None, at: datetime, decided: Sequence[FireRow], used: UsedUp | None
) -> tuple[bool, story.Status, list[Step]]:
    """Whether a plan time was expected, its status, and the steps that say so."""
    is_decided = any(row.origin != "manual" for row in decided)
    status: story.Status = "decided" if decided else "not_expected"
    if at <= stored.created_at and any(row.origin == "plan" for row in decided):
        said = "it was the latest plan time when the schedule began (first=latest)"
        return True, "decided", [Step("expected", said)]
    if past is None and at <= stored.created_at:
        made = f"the schedule was made at {local(stored.created_at, timing(stored.schedule))}"
        return False, status, [Step("not_expected", made, stored.created_at)]
    if past is None:
        return False, status, [Step("gone", "the version that was in force then is no longer kept")]
    if stored.schedule.kind == "daemon":
        return False, status, [Step("not_expected", "it keeps replicas running, and has no plan times")]
    if not past.has(at):
        return False, status, [story.why_not(past, at)]
    told = _why_expected(past, at)
    if is_decided:
        return past.version.enabled, "decided", told
    if used is not None and used.has(at):
        return False, "not_expected", [Step("not_expected", story.why_used_up(used.max_runs), code="max_runs")]
    status, why = story.undecided(
        past, at, stored.now, cursor=stored.next_plan_at, enabled=stored.enabled, problem=stored.problem
    )
    kind: story.StepKind = "overdue" if status == "overdue" else "to_come"
    return past.version.enabled, status, [*told, Step(kind, why, code=status)]


def _why_expected(past: Past, at: datetime) -> list[Step]:
    """By which expression, calendars and version; and what a clock change did to it."""
    version = past.version
    words = f"{past.timing.words}, in {past.timing.zone}"
    if version.policies.calendars:
        words += f", but for the days of {', '.join(version.policies.calendars)}"
    if version.until is not None:
        words += f"; by the version that was in force until {local(version.until, past.timing)}"
    told = [Step("expected" if version.enabled else "disabled", words, version=version.number)]
    note = transition(past.timing, at)
    return told if note is None else [*told, Step("clock", note)]


async def _fire(conn: Connection, stored: Stored, past: Past | None, row: FireRow, waits: Waits | None) -> FireStory:
    view: TaskView | None = None
    attempts: list[AttemptView] = []
    if row.task_id is not None:
        with suppress(TaskNotFound):  # retention dropped it
            view = await tasks.get(conn, row.task_id)
            attempts = await tasks.attempts(conn, row.task_id)
    teller = _Teller(row, past, timing(stored.schedule) if past is None else past.timing, stored.now)
    before = await _run_before(conn, stored, row) if _may_wait(teller.overlap, row, attempts) else None
    if row.reason is not None:
        said = [story.why_no_task(row.reason, past, row.plan_time, row.decided_at, skipped_by=row.skipped_by)]
        instead = None
        if row.reason == "coalesced":
            instead = await conn.fetchval(_INSTEAD, stored.id, row.scope, row.plan_time, row.decided_at)
        told = steps.skipped(row, past, before, instead)
    else:
        wait = None
        if waits is not None and view is not None and view.state in _WAITING:
            wait = (await waits(conn, [view.id])).get(view.id)
        said = [teller.planned(stored.schedule.name), *teller.came_of(view, attempts, wait)]
        told = [steps.planned(row, teller.moved(stored.schedule.name))]
        waited = None if before is None else _waited(teller.overlap, before, attempts)
        if waited is not None:
            said[2:2] = [waited.said]
        told += [steps.dropped(row)] if view is None else steps.came_of(view, attempts, stored.now, wait, waited)
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
        steps=told,
    )


_WAITING = tuple(state.label for state in (BLOCKED, PENDING, ASSIGNED))


def _due(attempts: Sequence[AttemptView]) -> datetime | None:
    """The instant of a task's first attempt: `run_at` of the task moves with every retry."""
    first = attempts[0] if attempts else None
    if first is None or first.started_at is None or first.lateness_ms is None:
        return None
    return first.started_at - timedelta(milliseconds=first.lateness_ms)


def _may_wait(overlap: Overlap, row: FireRow, attempts: Sequence[AttemptView]) -> bool:
    """Whether the run before it may have been in its way."""
    if row.origin == "backfill" or overlap == "allow":
        return False
    return row.reason == "overlap" or (row.reason is None and _due(attempts) is not None)


_RUN_BEFORE = """
    select task_id, plan_time from mainspring.fire
     where schedule_id = $1 and scope = $2 and plan_time < $3 and task_id is not null and origin <> 'backfill'
     order by plan_time desc limit 1
"""
# The plan time that was decided together with a late one, and got the task.
_INSTEAD = """
    select plan_time from mainspring.fire
     where schedule_id = $1 and scope = $2 and plan_time > $3 and plan_time <= $4 and task_id is not null
       and origin <> 'manual'
     order by plan_time limit 1
"""


async def _run_before(conn: Connection, stored: Stored, row: FireRow) -> Before | None:
    found = await conn.fetchrow(_RUN_BEFORE, stored.id, row.scope, row.plan_time)
    if found is None:
        return None
    try:
        ended = (await tasks.get(conn, found["task_id"])).finished_at
    except TaskNotFound:
        return None
    return Before(found["task_id"], found["plan_time"], ended)


def _waited(overlap: Overlap, before: Before, attempts: Sequence[AttemptView]) -> Step | None:
    """That a task waited for the previous run of its scope, if it did."""
    due = _due(attempts)
    why = None if due is None else story.waited(overlap, due, before.finished_at)
    if why is None:
        return None
    return Step("waits", why, due, code="overlap", task=before.task, plan_time=before.plan_time)


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
        moved = self.moved(name)
        return f"planned at {self.at(self.row.decided_at)}" + (f", to run after {moved}" if moved else "")

    def moved(self, name: str) -> str | None:
        """What moves it away from its plan time."""
        if self.past is None or self.row.origin != "plan":
            return None
        return story.moved(name, self.past, self.row.plan_time, self.row.scope)

    def came_of(self, view: TaskView | None, attempts: Sequence[AttemptView], wait: Wait | None) -> list[str]:
        """What became of the task; `wait` is what it waits for."""
        if view is None:
            return [f"what came of its task {self.row.task_id} is not kept any longer"]
        task = f"task {view.id}"
        if not attempts and isinstance(view.result, dict) and "spread_ms" in view.result:
            return self.broadcast(view)
        match view.state:
            case "blocked" if self.past is not None and (other := self.past.version.policies.after) is not None:
                return [f"{task} waits for schedule {other}, whose plan time up to this one must succeed first"]
            case "blocked":
                return [f"{task} waits for its turn", story.waits(self.overlap, self.at(view.run_at))]
            case "pending" if not attempts and view.run_at > self.now:
                return [f"{task} is to run at {self.at(view.run_at)}"]
            case "pending" if not attempts and wait is not None:
                return [f"{task} waits since {self.at(view.run_at)}: {wait.reason}"]
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
        return [*said, f"its error: {first_line(view.error)}"] if view.error else said

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
            return [*ended, f"its error: {first_line(view.error)}"] if view.error else ended
        going = "it runs" if view.state == "running" else f"the next attempt is at {self.at(view.run_at)}"
        error = next((attempt.error for attempt in reversed(attempts) if attempt.error), None)
        last = [f"the last error: {first_line(error)}"] if error else []
        return [f"{going}, {count} so far", *last]
