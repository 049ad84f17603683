"""Story: was a plan time expected, what was decided about it, and what happened then, in sentences for people.

Pure: what the database knows comes as arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from msgspec import Struct

from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.planning import GRACE, INSTANT, LOOK_BEFORE, Decided, Reason, Version, run_at
from mainspring.model.schedules.schedules import Overlap
from mainspring.model.schedules.timing import Timing
from mainspring.model.words.instants import instant_text
from mainspring.model.words.zones import Change

Origin = Literal["plan", "backfill", "manual"]
Status = Literal["decided", "undecided", "overdue", "not_expected"]

StepKind = Literal[
    "expected", "disabled", "not_expected", "clock", "to_come", "overdue", "outage", "skipped", "planned", "waits",
    "armed", "fired", "tried", "runs", "ended", "gone",
]  # fmt: skip

_CLOSEST = timedelta(milliseconds=50)  # plan times of one schedule are further apart
_FARTHEST = timedelta(days=366 * 50)


class Step(Struct, frozen=True):
    """One step of a story, in the order in which they came; the last says how it stands, or why it stopped there."""

    kind: StepKind
    said: str  # without its time
    at: datetime | None = None
    until: datetime | None = None  # of an outage: when the plan time was decided after all
    code: str | None = None  # the reason in the ledger, the code of a wait, the state that a task ended in
    task: int | None = None  # that it is about
    plan_time: datetime | None = None  # another one of the same schedule that it is about
    schedule: str | None = None  # another one that it is about
    agent: str | None = None
    version: int | None = None  # of the schedule, that was in force

    @property
    def sentence(self) -> str:
        return f"{_BEGINNING.get(self.kind, '')}{self.said}"


_BEGINNING = {"expected": "expected: ", "not_expected": "not expected: ", "disabled": "a time of the schedule: "}


class FireStory(Struct, frozen=True):
    """The outcome of a plan time in one scope."""

    scope: str
    origin: Origin
    decided_at: datetime
    reason: Reason | None  # why there is no task
    task_id: int | None
    state: str | None  # of the task; None as well when retention dropped it
    agent: str | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None  # of the first attempt
    armed_ahead: float | None  # seconds before its instant that its agent had the first attempt; negative: after it
    attempts: int
    said: list[str]  # one fact each
    steps: list[Step]  # the same as it went, from its decision on


class Story(Struct, frozen=True):
    plan_time: datetime
    expected: bool
    status: Status
    said: list[str]
    fires: list[FireStory]
    more_fires: int  # of further scopes
    before: datetime | None  # the plan times around it
    after: datetime | None
    sentence: str  # all of it in one
    steps: list[Step]  # up to its decision; those of each scope are in `fires`
    asked: str | None = None  # the local time that was asked for, where clock changes skip or repeat it


class Past(NamedTuple):
    """A version of a schedule, with its timing."""

    version: Version
    timing: Timing

    def has(self, at: datetime) -> bool:
        return self.timing.after(at - INSTANT) == at


def last_before(timing: Timing, at: datetime) -> datetime | None:
    """The last plan time before an instant, by bisection: a timing only finds the next one."""
    window = timedelta(seconds=1)
    found = None
    while found is None and window < _FARTHEST:
        try:
            found = timing.after(at - window)
        except OverflowError:  # before the calendar begins
            return None
        found = found if found is not None and found < at else None
        window *= 2
    if found is None:
        return None
    late = at
    while late - found > _CLOSEST:
        middle = found + (late - found) / 2
        later = timing.after(middle)
        if later is not None and later < at:
            found = later
        else:
            late = middle
    return found


def why_not(past: Past, at: datetime) -> Step:
    """Why an instant is no plan time of the version in force then."""
    policies, timing = past.version.policies, past.timing
    if timing.rule.after(at - INSTANT) != at:
        other = _other_pass(timing, at)
        if other is not None:
            clock = _clock(at.astimezone(timing.zone))
            taken = f"and fold={policies.fold} takes the {policies.fold}, {local(other, timing, on=at)}"
            return Step("not_expected", f"{clock} comes twice that day, {taken}", code="fold", plan_time=other)
        return Step("not_expected", f"it is no time of the schedule ({timing.words})")
    if policies.start is not None and at < policies.start:
        return Step("not_expected", f"it is before the schedule's start, {local(policies.start, timing)}")
    if policies.end is not None and at > policies.end:
        return Step("not_expected", f"it is after the schedule's end, {local(policies.end, timing)}")
    day = at.astimezone(timing.zone).date()
    calendars = f" by {', '.join(policies.calendars)}" if policies.calendars else ""
    return Step("not_expected", f"{day:%A} {day} is excluded{calendars}", code="excluded")


def _other_pass(timing: Timing, at: datetime) -> datetime | None:
    """The instant with the same local time, where clocks are set back, if that is a plan time."""
    shown = at.astimezone(timing.zone)
    other = shown.replace(fold=1 - shown.fold).astimezone(UTC)
    return other if other != at and timing.after(other - INSTANT) == other else None


def why_no_such_time(past: Past, asked: datetime, change: Change) -> Step:
    """Why a local time that clocks skip is no plan time, or which one stands for it."""
    timing = past.timing
    day = f"{asked:%d %B %Y}".lstrip("0")
    gap = (
        f"{day} has no {_clock(asked)} in {timing.zone}: the clocks go from {change.start:%H:%M} to {change.end:%H:%M}"
    )
    if isinstance(timing.rule, Cron) and timing.rule.has_local(asked):
        if timing.after(change.at - INSTANT) == change.at:
            moved = f"{gap}; it is moved to {_clock(change.end)} (gap=shift)"
            return Step("clock", moved, code="gap", plan_time=change.at)
        return Step("not_expected", f"{gap}, and gap=skip leaves it out", code="gap")
    return Step("not_expected", f"{gap}; nor is it a time of the schedule ({timing.words})", code="gap")


def _clock(shown: datetime) -> str:
    return f"{shown:%H:%M:%S}" if shown.second else f"{shown:%H:%M}"


def why_no_task(
    reason: Reason, past: Past | None, at: datetime, decided_at: datetime, *, skipped_by: str | None = None
) -> str:
    """The reason in the ledger as a sentence, with the policy, or the person, that led to it."""
    why = why_skipped(reason, past, at, decided_at, skipped_by=skipped_by)
    return why if reason == "skipped" else f"skipped ({reason}): {why}"


def why_skipped(
    reason: Reason, past: Past | None, at: datetime, decided_at: datetime, *, skipped_by: str | None = None
) -> str:
    """The same without its name."""
    policies = None if past is None else past.version.policies
    due = at + timedelta(seconds=0.0 if policies is None else policies.delay)
    late = f"it was decided {span(decided_at - due)} late"
    match reason:
        case "paused":
            if past is not None and past.version.enabled:
                return "its job was held, or the schedule was changed or paused after it was planned"
            return "the schedule was disabled at that time"
        case "coalesced":
            return f"{late}, and catch_up=latest runs only the last of what was missed"
        case "misfire":
            return f"{late}, {_misfire(past, decided_at - due)}"
        case "no_scopes":
            told = f"{policies.provider} told" if policies is not None and policies.provider else "there were"
            return f"{told} no scopes, and each task is for one"
        case "queue_full":
            return "as many tasks of its job waited as may, and when_full=skip plans none then"
        case "skipped":
            return f"skipped by {skipped_by or 'hand'}"
        case "overlap":
            overlap = "skip" if policies is None else policies.overlap
            return f"{_OVERLAP.get(overlap, _OVERLAP['skip'])} (overlap={overlap})"


_OVERLAP = {
    "skip": "the run before it had not ended at its instant",
    "queue": "the run before it had not ended, and another one waited already: one may wait",
    "cancel_running": "a later plan time came before it could start, and took its place",
    "terminate_running": "a later plan time came before it could start, and took its place",
}


def _misfire(past: Past | None, late: timedelta) -> str:
    if past is None:
        return "too late for its policies"
    policies = past.version.policies
    if policies.misfire_after is not None and late > timedelta(seconds=policies.misfire_after):
        return f"and misfire_after allows {span(timedelta(seconds=policies.misfire_after))}"
    if policies.catch_up == "all":
        return f"and catch_up=all goes back {span(timedelta(seconds=policies.window))} (window)"
    return f"and catch_up={policies.catch_up} leaves out what was missed while nothing was planning"


def why_used_up(max_runs: int) -> str:
    return f"its {'1 run was' if max_runs == 1 else f'{max_runs:,} runs were'} used up before (max_runs)"


def undecided(
    past: Past, at: datetime, now: datetime, *, cursor: datetime | None, enabled: bool, problem: str | None
) -> tuple[Status, str]:
    """Why an expected plan time has no row in the ledger: those from `cursor` on are undecided."""
    due = at + timedelta(seconds=past.version.policies.delay)
    is_open = cursor is not None and cursor <= at
    if not enabled and (not past.version.enabled or due > now):
        return "undecided", "the schedule is disabled: nothing is planned; `mainspring schedule enable` goes on"
    if due > now:
        look_at = local(due - LOOK_BEFORE, past.timing)
        return "undecided", f"not decided yet: it lies in the future, and will be planned by {look_at}"
    if now - due <= GRACE:
        return "undecided", "not decided yet: its time has just come"
    if problem is not None:
        return "overdue", f"overdue by {span(now - due)}: it cannot be planned: {problem}"
    if not is_open:
        return "overdue", "missing: the ledger has no row of it, though later plan times were decided; or it is too old"
    if not enabled:
        return "overdue", "not decided: nothing was planning then, and now the schedule is disabled"
    advice = "is a server running? `mainspring up` starts one"
    return "overdue", f"overdue by {span(now - due)}: no server plans it; {advice}"


def moved(name: str, past: Past, at: datetime, scope: str) -> str | None:
    """What moves a task away from its plan time."""
    policies = past.version.policies
    due = at + timedelta(seconds=policies.delay)
    parts = [f"a delay of {span(due - at)}"] if policies.delay else []
    if policies.jitter:
        parts.append(f"a jitter of {span(run_at(name, Decided(at, due, None), scope, policies.jitter) - due)}")
    return " and ".join(parts) or None


def waited(overlap: Overlap, run_at: datetime, before_ended: datetime | None) -> str | None:
    """Why a task ran late, if the previous run had not ended at its instant."""
    if overlap == "allow" or (before_ended is not None and before_ended <= run_at):
        return None
    stopped = {"cancel_running": ", which it cancelled", "terminate_running": ", which it ended"}.get(overlap, "")
    return f"it waited for the run before it{stopped} (overlap={overlap})"


def waits(overlap: Overlap, by: str) -> str:
    """What an unreleased task waits for; `by` is its instant."""
    if overlap == "skip":
        return f"it will be skipped if the run before it has not ended by {by} (overlap=skip)"
    return f"the run before it has not ended (overlap={overlap})"


def in_one(steps: Sequence[Step], fires: Sequence[FireStory], more: int) -> str:
    """A whole story in one sentence: how it ended, or why it stopped."""
    if not fires:
        return _capital(steps[-1].sentence)
    if len(fires) == 1:
        return _capital(_came_of(fires[0].steps))
    counts = Counter(fire.reason or fire.state or "dropped" for fire in fires)
    told = ", ".join(f"{count} {_word(outcome)}" for outcome, count in counts.most_common())
    return f"{len(fires) + more} scopes: {told}" + (f", and {more} more" if more else "")


def _word(outcome: str) -> str:
    return f"skipped ({outcome})" if outcome in get_args(Reason) else outcome.replace("_", " ")


def _came_of(steps: Sequence[Step]) -> str:
    last = steps[-1]
    if last.kind == "skipped":
        return last.said if last.code == "skipped" else f"skipped, {last.code}: {last.said}"
    fired = next((step.said for step in steps if step.kind == "fired"), None)
    return last.said if fired is None else f"{fired}; {last.said}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def as_lines(name: str, story: Story, zone: ZoneInfo) -> list[str]:
    """A story in lines, one fact each."""
    lines = [f"{name} at {in_zone(story.plan_time, zone)}", *(f"  {sentence}" for sentence in story.said)]
    for fire in story.fires:
        first, *others = fire.said
        lines.append(f"  [{fire.scope}] {first}" if fire.scope else f"  {first}")
        lines += [f"    {fact}" if fire.scope else f"  {fact}" for fact in others]
    if story.more_fires:
        lines.append(f"  and {story.more_fires} more scope{'' if story.more_fires == 1 else 's'}")
    around = {"before": story.before, "after": story.after}
    return lines + [
        f"  the one {way}: {in_zone(at, zone, on=story.plan_time)}" for way, at in around.items() if at is not None
    ]


def local(at: datetime, timing: Timing, *, on: datetime | None = None) -> str:
    """An instant in the schedule's timezone; without its date if that is the day of `on`."""
    return in_zone(at, timing.zone, on=on)


def in_zone(at: datetime, zone: ZoneInfo, *, on: datetime | None = None) -> str:
    """The same in any timezone."""
    shown = at.astimezone(zone)
    precision = "milliseconds" if shown.microsecond else "seconds"
    if on is not None:
        day = on.astimezone(zone)
        if (shown.date(), shown.utcoffset()) == (day.date(), day.utcoffset()):
            return shown.time().isoformat(precision)
    return instant_text(shown, precision)


def lateness(milliseconds: float) -> str:
    """How late a task fired."""
    if milliseconds < 1000:
        return f"{milliseconds:.3f} ms late"
    if milliseconds < 120_000:
        return f"{milliseconds / 1000:.1f} s late"
    return f"{span(timedelta(milliseconds=milliseconds))} late"


def armed(seconds: float) -> str:
    """When an attempt reached its agent."""
    distance = span(timedelta(seconds=round(abs(seconds), 3)))
    return f"armed {distance} ahead" if seconds >= 0 else f"armed {distance} after its instant"


def span(length: timedelta) -> str:
    """A duration: 2 d 6 h, 13.25 s."""
    total = length.total_seconds()
    if total < 120:
        return f"{total:.3f}".rstrip("0").rstrip(".") + " s"
    days, rest = divmod(round(total), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
