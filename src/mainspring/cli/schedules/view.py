"""`mainspring schedule list | show`

Next: operations/definitions/schedules.py
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, operation
from mainspring.cli.layout import Room
from mainspring.cli.parse import name_of
from mainspring.cli.render import age, fields, on_terminal, pick, print_if_json, table
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from mainspring.operations.planning.schedule_views import FireView, ScheduleDetail, ScheduleView, SkipView
    from mainspring.store.followed.slo import SloState

_NEXT = timedelta(microseconds=1)  # between an instant and the end of a range before it
_A_MOMENT = timedelta(seconds=1)
_DRIFT = Room(fold=("CODE", "IN FORCE"))
_DURATIONS = {
    "jitter",
    "delay",
    "window",
    "misfire_after",
    "expires",
    "restart_delay",
    "max_restart_delay",
    "stable",
    "ready",
}
_LABELS = {"fills": "args from the plan", "provider": "scopes told by", "excluded": "excluded days"}


@operation("list", "mainspring schedule list --job backup", "mainspring schedule list --json | jq '.[].next'")
@click.option("--job", type=name_of("job"), metavar="NAME", help="Only schedules of this job.")
async def list_schedules(client: Client, job: str | None) -> None:
    """Show all schedules, with their next plan times by their own clocks."""
    found = await client.every(operations.schedules.listing, job=[] if job is None else [job])
    if print_if_json(found):
        return
    table(
        ["NAME", "JOB", "WHEN", "STATE", "NEXT", "LAST", "APP", "REMARK"],
        [[v.name, v.job, _when(v), v.state, _next(v), _ended(v.last), v.app, _remark(v)] for v in found],
        empty="no schedules; make one with `mainspring schedule create nightly JOB --daily 03:00 --enable`",
        room=Room(cut=("NAME", "JOB", "APP"), fold=("WHEN", "REMARK"), drop=("APP", "JOB", "LAST", "REMARK")),
    )


def _when(view: ScheduleView) -> str:
    """Its words, with its timezone if that is not UTC."""
    return view.words if view.timezone == "UTC" or view.kind == "daemon" else f"{view.words}, {view.timezone}"


def _next(view: ScheduleView) -> str:
    """In the timezone itself: a view has the offset only, which does not tell whether a time comes twice."""
    from mainspring.model.words.zones import zone_or_utc

    return shown(None if view.next is None else view.next.astimezone(zone_or_utc(view.timezone)))


def shown(at: datetime | None) -> str:
    """A plan time, which already is in the schedule's own timezone; short for people."""
    if at is None:
        return ""
    if not on_terminal():
        return instant_text(at)
    clock = at.replace(tzinfo=None).isoformat(" ", "seconds" if at.second or at.microsecond else "minutes")
    comes_twice = at.replace(fold=0).utcoffset() != at.replace(fold=1).utcoffset()
    return f"{clock}{at.isoformat()[-6:]}" if comes_twice else clock


def _ended(last: FireView | None) -> str:
    """How the last run ended, and how long ago; for programs, when."""
    if last is None:
        return ""
    state = last.state or ("not kept" if last.reason is None else f"skipped ({last.reason})")
    if not on_terminal():
        return f"{state} {instant_text(last.finished_at or last.plan_time)}"
    due = "" if last.finished_at or last.state is None else "due "
    return f"{state} {due}{age(last.age)} ago"


def _remark(view: ScheduleView) -> str:
    drift = f"differs from its code in {', '.join(one.field for one in view.drift)}" if view.drift else None
    orphan = "gone from its code" if view.is_orphan else None
    return "; ".join(part for part in (view.problem, orphan, drift) if part)


@operation("show", "mainspring schedule show nightly", "mainspring schedule show nightly --json")
@click.argument("name", type=name_of("schedule"))
@click.option("--reveal", is_flag=True, help="Show secrets, in place of ***; that is audited.")
async def show(client: Client, name: str, reveal: bool) -> None:
    """Show one schedule: its policies, what comes next, what came last, and how it differs from its code."""
    found = await client.call(operations.schedules.show, name, reveal=reveal)
    if print_if_json(found):
        return
    fields(_schedule_fields(found))
    drift = found.schedule.drift
    if drift:
        click.echo()
        table(["FIELD", "CODE", "IN FORCE"], [[one.field, one.code, one.in_force] for one in drift], room=_DRIFT)


def _schedule_fields(found: ScheduleDetail) -> dict[str, Any]:
    view = found.schedule
    return {
        **pick(view, "name", "job"),
        "when": view.words,
        "cron": view.expression if view.kind == "cron" else None,
        **pick(view, "timezone", "state", "problem"),
        "next": _lines(instant_text(at) for at in found.next),
        "skipped": _lines(_skip(skip) for skip in view.skips),
        "last": _lines(_last(fire) for fire in found.last),
        "runs": view.runs,
        **_policies(view),
        **({} if found.slo is None else _slo(found.slo)),
        "version": view.version,
        "made": instant_text(view.created_at, "seconds"),
        "changed": instant_text(view.updated_at, "seconds") if view.version > 1 else None,
        "app": view.app,
        "manifest": view.manifest,
        "remark": _remark_of_one(view),
    }


def _slo(state: SloState) -> dict[str, str]:
    if state.compliance is None or state.budget_left is None:
        return {"compliance": "no plan time was counted in the window yet"}
    bad = f"{state.bad} of {state.good + state.bad} plan times late or missed"
    rates = ", ".join(
        f"{rate.short_rate:g} and {rate.long_rate:g} × over {age(rate.short)} and {age(rate.long)}"
        f"{' (burning)' if rate.is_burning else ''}"
        for rate in state.burn_rates
    )
    return {
        "compliance": f"{state.compliance:.4%}, {bad}",
        "error budget": f"{state.budget_left:.1%} left",
        "burn rate": rates,
    }


def _remark_of_one(view: ScheduleView) -> str | None:
    if view.kind == "daemon":
        return f"its replicas: `mainspring daemon show {view.name}`"
    return "gone from the code of its application" if view.is_orphan else None


def _lines(values: Iterable[str]) -> str | None:
    """Several values: a line each for people, one line for programs."""
    return ("\n" if on_terminal() else ", ").join(values) or None


def _skip(skip: SkipView) -> str:
    when = instant_text(skip.start) if skip.start == skip.until else _skipped_range(skip)
    return f"{when} by {skip.by}" + (f": {skip.note}" if skip.note else "")


def _skipped_range(skip: SkipView) -> str:
    """Up to an instant; where a part was taken back, the range ends or begins next to that."""
    ends_before = skip.until.microsecond == 999_999
    end = skip.until + _NEXT if ends_before else skip.until
    to = f"{'before' if ends_before else 'until'} {instant_text(end)}"
    begins_later = skip.start - skip.made_at > _A_MOMENT
    return f"after {instant_text(skip.start - _NEXT)}, {to}" if begins_later else to


def _last(fire: FireView) -> str:
    at = instant_text(fire.plan_time, "milliseconds" if fire.plan_time.microsecond else "seconds")
    scope = f" [{fire.scope}]" if fire.scope else ""
    if fire.task_id is None:
        why = f"by {fire.skipped_by}" if fire.skipped_by else f"({fire.reason})"
        return f"{at}{scope} skipped {why}"
    by = {"manual": ", run by hand", "backfill": ", backfilled"}.get(fire.origin, "")
    return f"{at}{scope} task {fire.task_id} {fire.state or 'is not kept any longer'}{by}"


def _policies(view: ScheduleView) -> dict[str, Any]:
    """Those that differ from the default."""
    from msgspec.structs import asdict

    from mainspring.model.schedules.schedules import Policies

    default = Policies()
    chosen = {name: value for name, value in asdict(view.policies).items() if value != getattr(default, name)}
    if "calendars" in chosen:
        chosen.pop("excluded", None)  # they are the days of the calendars
    return {_LABELS.get(name, name): _policy(name, value, view) for name, value in chosen.items()}


def _policy(name: str, value: Any, view: ScheduleView) -> Any:
    from mainspring.model.schedules.story import span

    if name in _DURATIONS:
        return span(timedelta(seconds=value))
    if name == "slo":
        lateness, window = (span(timedelta(seconds=length)) for length in (value.lateness, value.window))
        return f"{value.target:.6g} of starts within {lateness}, over {window}"
    if isinstance(value, datetime):
        from mainspring.model.words.zones import zone_or_utc

        return instant_text(value.astimezone(zone_or_utc(view.timezone)))
    if name == "provider":
        return f"{value} of its application"
    return ", ".join(value) if isinstance(value, (list, tuple)) else value
