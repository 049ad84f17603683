"""Steps: what came of a plan time in one scope, step by step, for those who draw it.

Pure: the rows of the ledger, of the task and of its attempts come as arguments. The sentences of
store/schedules/explain.py say the same to those who read.
Next: model/schedules/story.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from mainspring.model.schedules import story
from mainspring.model.schedules.planning import GRACE, Reason
from mainspring.model.schedules.story import Origin, Past, Step, StepKind
from mainspring.model.tasks.waits import Wait

ATTEMPTS_SHOWN = 10  # the last ones that failed


class Fire(Protocol):
    """A row of the ledger."""

    @property
    def plan_time(self) -> datetime: ...
    @property
    def task_id(self) -> int | None: ...
    @property
    def reason(self) -> Reason | None: ...
    @property
    def origin(self) -> Origin: ...
    @property
    def decided_at(self) -> datetime: ...
    @property
    def skipped_by(self) -> str | None: ...


class Attempt(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def lateness_ms(self) -> float | None: ...
    @property
    def armed_ahead(self) -> float | None: ...
    @property
    def error_code(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...


class Task(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> str | None: ...


class Before(NamedTuple):
    """Another run of the same schedule and scope."""

    task: int
    plan_time: datetime
    finished_at: datetime | None


def skipped(row: Fire, past: Past | None, before: Before | None, instead: datetime | None) -> list[Step]:
    """Why there is no task. `before` is the run that was in the way, `instead` the plan time that ran in its place."""
    assert row.reason is not None
    steps = []
    due = row.plan_time + timedelta(seconds=0.0 if past is None else past.version.policies.delay)
    if row.reason in ("misfire", "coalesced") and row.decided_at - due > GRACE:
        late = story.span(row.decided_at - due)
        steps.append(Step("outage", f"nothing was planning then: it was decided {late} late", due, row.decided_at))
    why = story.why_skipped(row.reason, past, row.plan_time, row.decided_at, skipped_by=row.skipped_by)
    task = at = None
    if row.reason == "overlap" and before is not None:
        task, at = before.task, before.plan_time
        if past is not None:
            why = why.replace("the run before it", f"the run of {story.local(at, past.timing, on=row.plan_time)}")
    elif row.reason == "coalesced":
        at = instead
    return [*steps, Step("skipped", why, row.decided_at, code=row.reason, task=task, plan_time=at)]


def planned(row: Fire, moved: str | None) -> Step:
    words = {"manual": "run now, by hand", "backfill": "backfilled", "plan": "planned"}[row.origin]
    return Step("planned", f"{words}, to run after {moved}" if moved else words, row.decided_at, task=row.task_id)


def dropped(row: Fire) -> Step:
    return Step("gone", f"what came of its task {row.task_id} is not kept any longer", code="gone")


def came_of(
    view: Task, attempts: Sequence[Attempt], now: datetime, wait: Wait | None, waited: Step | None
) -> list[Step]:
    """What became of the task, up to now. `waited` says that the run before it was in its way."""
    steps = [] if waited is None else [waited]
    first = next((one for one in attempts if one.started_at is not None), None)
    if first is not None:
        steps += _fired(view, first)
        steps += [_tried(one) for one in attempts[:-1][-ATTEMPTS_SHOWN:]]
    elif view.started_at is not None:  # a broadcast
        steps.append(Step("fired", f"sent out to its agents{_within(view)}", view.started_at, task=view.id))
    return [*steps, _stands(view, attempts, now, wait)]


def _fired(view: Task, first: Attempt) -> list[Step]:
    assert first.started_at is not None
    agent, steps = first.agent or "an agent that is gone", []
    late = 0.0 if first.lateness_ms is None else first.lateness_ms
    if first.armed_ahead is not None:
        due = first.started_at - timedelta(milliseconds=late)
        distance = story.armed(first.armed_ahead).removeprefix("armed ")
        at = due - timedelta(seconds=first.armed_ahead)
        steps.append(Step("armed", f"armed on {agent}, {distance}", at, task=view.id, agent=first.agent))
    told = "fired" if first.lateness_ms is None else f"fired {story.lateness(first.lateness_ms)}"
    fired = Step("fired", f"{told}, on {agent}", first.started_at, task=view.id, agent=first.agent)
    return [*steps, fired]


def _tried(attempt: Attempt) -> Step:
    error = "" if attempt.error is None else f": {first_line(attempt.error)}"
    said = f"attempt {attempt.number} {attempt.state.replace('_', ' ')}{error}"
    return Step("tried", said, attempt.finished_at, code=attempt.error_code or attempt.state, agent=attempt.agent)


def _within(view: Task) -> str:
    if not isinstance(view.result, dict) or "spread_ms" not in view.result:
        return ""
    spread = story.span(timedelta(milliseconds=view.result["spread_ms"]))
    return f", which fired within {spread}"


def _stands(view: Task, attempts: Sequence[Attempt], now: datetime, wait: Wait | None) -> Step:
    """How it stands, or how it ended."""
    if view.finished_at is not None:
        return _ended(view, attempts)
    last = attempts[-1] if attempts else None
    if view.state == "running":
        count = f", attempt {len(attempts)}" if len(attempts) > 1 else ""
        agent = None if last is None else last.agent
        return Step("runs", f"it runs{'' if agent is None else f' on {agent}'}{count}", code="running", agent=agent)
    if view.state == "assigned" and last is not None:
        return Step("armed", f"armed on {last.agent}, to fire", view.run_at, code="assigned", agent=last.agent)
    if wait is not None:
        return Step("waits", f"it waits: {wait.reason}", view.run_at, code=wait.code, task=view.id)
    if view.state == "blocked":
        return Step("waits", "it waits for its turn", view.run_at, code="turn", task=view.id)
    kind: StepKind = "to_come" if view.run_at > now else "waits"
    said = "it is to run" if kind == "to_come" else "it waits for an agent"
    return Step(kind, said, view.run_at, code="pending", task=view.id)


def _ended(view: Task, attempts: Sequence[Attempt]) -> Step:
    words = [view.state.replace("_", " ")]
    started = next((one.started_at for one in reversed(attempts) if one.started_at is not None), view.started_at)
    if started is None:
        words.append("without having started")
    elif view.finished_at is not None:
        words.append(f"after {story.span(max(timedelta(0), view.finished_at - started))}")
    said = " ".join(words) + (f", {len(attempts)} attempts" if len(attempts) > 1 else "")
    if view.error:
        said += f": {first_line(view.error)}"
    return Step("ended", said, view.finished_at, code=view.state, task=view.id)


def first_line(text: str) -> str:
    return text.partition("\n")[0]
