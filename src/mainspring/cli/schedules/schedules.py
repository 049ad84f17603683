"""`mainspring schedule create | edit | enable | disable | delete | run-now`, and the group of all its commands

Next: operations/definitions/schedules.py
"""

from __future__ import annotations

import json
import re
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from mainspring import operations
from mainspring.cli.base import Client, Group, examples, shared, with_options
from mainspring.cli.parse import Whole, arguments, name_of, plain_words
from mainspring.cli.render import note, on_terminal, print_if_json
from mainspring.cli.schedules.backfill import backfill
from mainspring.cli.schedules.calendar import calendar
from mainspring.cli.schedules.forecast import forecast
from mainspring.cli.schedules.preview import preview
from mainspring.cli.schedules.skips import skip, unskip
from mainspring.cli.schedules.story import check, explain
from mainspring.cli.schedules.view import list_schedules, show
from mainspring.errors import ValidationError
from mainspring.model.words.instants import instant_text

if TYPE_CHECKING:
    from mainspring.model.schedules.edit_schedule import Edit
    from mainspring.operations.planning.schedule_views import ScheduleChange, ScheduleView
    from mainspring.store.schedules.revoke import Recalled

EDIT_TRIES = 5  # of an edit that others overtake
_PLURAL = {"calendar": "calendars", "scope": "scopes"}

_schedule_options = with_options(
    click.option("--cron", metavar="EXPR", help='Five fields, or six with seconds first: "0 9 * * MON-FRI", @daily.'),
    click.option("--every", metavar="DURATION", help='30s, 1h30m, "5 minutes"; counted from --anchor.'),
    click.option("--once", metavar="INSTANT", help="A single run: ISO 8601, in --tz."),
    click.option("--daily", metavar="TIMES", help='"09:00" or "09:00, 17:00".'),
    click.option("--weekly", metavar="DAYS TIMES", help='"mon, thu 09:00".'),
    click.option("--monthly", metavar="DAYS TIMES", help='"1, 15 09:00", "last 18:00", "first monday 09:00".'),
    click.option("--daemon", type=Whole(), metavar="N", help="Keep so many replicas running."),
    click.option(
        "--tz", metavar="ZONE", help="IANA timezone, such as Europe/Paris, of all times without an offset; UTC."
    ),
    click.option("--gap", metavar="HOW", help="A time that the clocks leave out: shift (default) or skip."),
    click.option("--fold", metavar="HOW", help="A time that comes twice: first (default), second or both."),
    click.option("--anchor", metavar="INSTANT", help="Any instant of --every; 1970 if none is given."),
    click.option("--start", metavar="INSTANT", help="No plan time before."),
    click.option("--end", metavar="INSTANT", help="No plan time after."),
    click.option("--max-runs", type=Whole(), metavar="N", help="So many plan times get a task."),
    click.option("--jitter", metavar="DURATION", help="Up to so much later, the same for a plan time each time."),
    click.option("--delay", metavar="DURATION", help="Run so long after the plan time."),
    click.option("--calendar", multiple=True, metavar="NAME", help="Days without plan times; repeatable."),
    click.option("--scope", multiple=True, metavar="SCOPE", help="One task per scope and plan time; repeatable."),
    click.option("--catch-up", metavar="HOW", help="After an outage: latest (default), skip or all."),
    click.option("--window", metavar="DURATION", help="How far back `all` goes; 1d. With 0 only the last runs."),
    click.option("--max-per-tick", type=Whole(), metavar="N", help="Late tasks in a second; 100."),
    click.option("--misfire-after", metavar="DURATION", help="Later than this is skipped."),
    click.option("--expires", metavar="DURATION", help="Skip a task that has not started so long after its time."),
    click.option("--when-full", metavar="HOW", help="While max_queued tasks of the job wait: plan (default) or skip."),
    click.option(
        "--overlap",
        metavar="HOW",
        help="allow (default), skip, queue, queue_all, cancel_running, terminate_running.",
    ),
    click.option("--after", metavar="NAME", help="Wait until that schedule's same or latest plan time has succeeded."),
    click.option("--first", metavar="WHICH", help="When it is made: wait for the next plan time, or run the latest."),
    click.option("--slo", metavar="SLO", help="lateness=2s,target=0.999,window=30d; the last two may be left out."),
    click.option(
        "--ping-url", metavar="URL", help="Fetched at each start (URL/start), success and failure (URL/fail)."
    ),
    click.option(
        "--restart-delay", metavar="DURATION", help="Of a daemon that ended; doubled while lives are short; 1s."
    ),
    click.option("--max-restart-delay", metavar="DURATION", help="The longest such wait; 1m."),
    click.option("--stable", metavar="DURATION", help="A life of a daemon of so long is not short; 1m."),
    click.option("--ready", metavar="DURATION", help="A daemon without a health check is up after so long; 1s."),
    click.option("--args", metavar="JSON", help="All arguments of its tasks, as one JSON object."),
    click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument: JSON, else text; repeatable."),
    click.option("--description", metavar="TEXT", help="What it is for."),
)


@click.group(cls=Group)
def schedule() -> None:
    """Say when jobs run, and see the outcome of each plan time."""


for command in (list_schedules, show, preview, forecast, explain, check, skip, unskip, backfill, calendar):
    schedule.add_command(command)


def _given(options: dict[str, Any]) -> Any:
    """The options that were given, as `define_schedule` takes them."""
    given = {_PLURAL.get(name, name): value for name, value in options.items() if value not in (None, ())}
    if "slo" in given:
        from mainspring.model.watch.slo import from_text

        given["slo"] = from_text(given["slo"])
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _with_words(words: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The options, with when it runs taken from plain words if there are any."""
    from mainspring.model.schedules.define_schedule import KINDS
    from mainspring.model.words.zones import check_zone

    if not words:
        return options
    kind, expression = plain_words(words, check_zone(options["tz"] or "UTC"))
    if also := [f"--{name}" for name in KINDS if options[name] is not None]:
        raise ValidationError(f"EXPR, {', '.join(also)}: give one of them, not both", field="expression")
    if kind == "once":  # as it was written: one without an offset is in the schedule's timezone
        expression = re.sub(r"(?i)^once\s+", "", " ".join(words).strip())
    return options | {kind: expression}


@schedule.operation(
    "create",
    "mainspring schedule create morning report every weekday at 9 --tz Europe/Paris --enable",
    "mainspring schedule create nightly backup --daily 03:00 --tz Europe/Paris --enable",
    "mainspring schedule create tick probe --every 30s --overlap skip",
    "mainspring schedule create invoices bill --monthly 'last 18:00' --scope eu --scope us --arg dry=true",
    "mainspring schedule create office report --cron '0 9 * * MON-FRI' --calendar holidays",
)
@click.argument("name")
@click.argument("job")
@click.argument("expression", nargs=-1, metavar="[EXPR...]")
@_schedule_options
@click.option("--enable", is_flag=True, help="Let it run at once; else it waits for `schedule enable`.")
async def create(
    client: Client,
    /,
    name: str,
    job: str,
    expression: tuple[str, ...],
    enable: bool,
    args: str | None,
    arg: tuple[str, ...],
    description: str | None,
    **options: Any,
) -> None:
    """Make a schedule NAME for JOB.

    When it runs is EXPR, as `preview` takes it (every 30s, every weekday at 9, monthly on the last day at 18:00), or
    one of --cron, --every, --once, --daily, --weekly, --monthly, --daemon.
    """
    from mainspring.model.schedules.define_schedule import KINDS
    from mainspring.model.schedules.schedule_spec import ScheduleSpec, defined

    if not expression and all(options[kind] is None for kind in KINDS):
        raise ValidationError(
            "nothing says when to run; write it in plain words behind JOB, such as every weekday at 9, or give one of "
            + ", ".join(f"--{kind}" for kind in KINDS),
            field="expression",
        )
    given = {"args": json.loads(arguments(args, arg)), "description": description or "", "enabled": enable}
    spec = ScheduleSpec(job=job, **_given(_with_words(expression, options)), **given)
    defined(name, spec)  # refuse what is wrong before connecting
    view = (await client.call(operations.schedules.put, name, spec, replace=False)).schedule
    if print_if_json(view):
        return
    note(f"created: {_words(view)}")
    if enable:
        _note_next(view)
    else:
        note(f"it is disabled; let it run with `mainspring schedule enable {name}`")


def _other_command(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        raise click.UsageError(
            "an edit does not start or stop a schedule; use `mainspring schedule enable NAME` or `disable NAME`",
            context,
        )


@schedule.operation(
    "edit",
    "mainspring schedule edit nightly daily at 04:00",
    "mainspring schedule edit nightly --overlap skip --clear end --clear calendars",
)
@click.argument("name", type=name_of("schedule"))
@click.argument("expression", nargs=-1, metavar="[EXPR...]")
@_schedule_options
@click.option("--job", metavar="JOB", help="Run another job.")
@click.option("--clear", multiple=True, metavar="OPTION", help="Back to its default: end, max_runs, …; repeatable.")
@click.option("--enable", "--disable", is_flag=True, hidden=True, expose_value=False, callback=_other_command)
async def edit(
    client: Client,
    /,
    name: str,
    expression: tuple[str, ...],
    clear: tuple[str, ...],
    job: str | None,
    args: str | None,
    arg: tuple[str, ...],
    description: str | None,
    **options: Any,
) -> None:
    """Change a schedule from now on; what is not given stays. --arg sets one argument, --args all of them.

    EXPR says in plain words when it runs: daily at 04:00.
    """
    from mainspring.model.schedules.edit_schedule import Edit, edited
    from mainspring.model.schedules.schedules import Schedule

    given = json.loads(arguments(args, arg))
    change = Edit(
        options=_given(_with_words(expression, options)),
        clear=tuple(_PLURAL.get(option, option) for option in (text.replace("-", "_") for text in clear)),
        job=job,
        set_args=given if args is None else None,
        all_args=given if args is not None else None,
        description=description,
    )
    if not (change.options or clear or job or given or args is not None or description is not None):
        raise click.UsageError("nothing to change; give an option", click.get_current_context())
    edited(Schedule(name, "job", "every", "60"), change)  # refuse what is wrong by itself before connecting
    changed = await _edit(client, name, change)
    _report_change(changed, done="changed")
    if expression and not shared().json:
        note(f"it runs: {_words(changed.schedule)}")


async def _edit(client: Client, name: str, edit: Edit) -> ScheduleChange:
    """Read the schedule, change it here, and write it if it is still the same: an argument may be null or an object.

    Neither can be said in a merge patch.
    """
    from msgspec.structs import replace

    from mainspring.errors import StaleVersion
    from mainspring.model.schedules.edit_schedule import edited
    from mainspring.model.schedules.schedule_spec import defined, spec_of

    for tries_left in range(EDIT_TRIES, 0, -1):
        view = (await client.call(operations.schedules.show, name)).schedule
        schedule = edited(defined(name, view.spec, provider=view.policies.provider), edit)
        spec = spec_of(schedule)
        if "scopes" in edit.clear:
            spec = replace(spec, scopes=[])  # without any, those that code tells would stay
        try:
            return await client.call(operations.schedules.put, name, spec, version=view.version)
        except StaleVersion:
            if tries_left == 1:
                raise
    raise AssertionError("the last try returns or raises")


def _report_change(change: ScheduleChange, *, done: str) -> None:
    view, recalled = change.schedule, change.recalled
    if print_if_json({"schedule": view, "changed": change.changed, "recalled": recalled}):
        return
    if recalled is None:
        note(f"unchanged: it is {done} already" if done.endswith("abled") else "unchanged")
        return
    note(done + tell_recalled(recalled))
    if view.enabled:
        _note_next(view)
    if view.drift:
        note(f"it belongs to the code of {view.app!r}: the change holds until that says something new")


def tell_recalled(recalled: Recalled) -> str:
    """What became of planned tasks, to follow the word that says what was done."""
    parts = []
    if recalled.taken_back:
        parts.append(f"took back {_runs(recalled.taken_back, 'planned')}")
    if recalled.asked_back:
        verb = "is" if recalled.asked_back == 1 else "are"
        parts.append(f"{_runs(recalled.asked_back, 'armed')} {verb} asked back")
    if recalled.running:
        parts.append(f"{recalled.running} {'runs' if recalled.running == 1 else 'run'} on")
    return f": {'; '.join(parts)}" if parts else ""


def _runs(count: int, kind: str) -> str:
    return f"{count} {kind} run{'' if count == 1 else 's'}"


def _words(view: ScheduleView) -> str:
    return view.words if view.kind == "daemon" else f"{view.words}, in {view.timezone}"


def _note_next(view: ScheduleView) -> None:
    if view.next is not None:
        note(f"next: {instant_text(view.next)}")


@schedule.operation("enable", "mainspring schedule enable nightly")
@click.argument("name", type=name_of("schedule"))
async def enable(client: Client, name: str) -> None:
    """Let a schedule run, from its next plan time on."""
    _report_change(await client.call(operations.schedules.enable, name), done="enabled")


@schedule.operation("disable", "mainspring schedule disable nightly")
@click.argument("name", type=name_of("schedule"))
async def disable(client: Client, name: str) -> None:
    """Pause a schedule: tasks that have not started are taken back, running ones continue. A daemon stops."""
    _report_change(await client.call(operations.schedules.disable, name), done="disabled")


for alias, original in (("resume", enable), ("pause", disable)):  # what others call it
    hidden = copy(original)
    hidden.name, hidden.hidden, hidden.epilog = alias, True, examples(f"mainspring schedule {alias} nightly")
    schedule.add_command(hidden)


@schedule.operation("delete", "mainspring schedule delete nightly")
@click.argument("name", type=name_of("schedule"))
async def delete(client: Client, name: str) -> None:
    """Remove a schedule. The record of its plan times is kept until retention drops it."""
    change = await client.call(operations.schedules.delete, name)
    view, recalled = change.schedule, change.recalled
    assert recalled is not None  # a deletion always changes something
    if print_if_json({"name": name, "deleted": True, "recalled": recalled}):
        return
    note("deleted" + tell_recalled(recalled))
    if view.app is not None and not view.is_orphan:
        note(f"the code of {view.app!r} defines it: it comes back when that starts, unless it is removed there")


@schedule.operation("run-now", "mainspring schedule run-now nightly", "mainspring schedule run-now invoices --scope eu")
@click.argument("name", type=name_of("schedule"))
@click.option("--scope", type=name_of("scope"), multiple=True, metavar="SCOPE", help="Only this scope; repeatable.")
async def run_now(client: Client, name: str, scope: tuple[str, ...]) -> None:
    """Run a schedule's job once, at once, beside its plan; prints the task of each scope."""
    ids = (await client.call(operations.schedules.run, name, scopes=scope)).tasks
    if print_if_json({"name": name, "tasks": ids}):
        return
    for id in ids:
        click.echo(id)
    if on_terminal():
        note(f"see it with `mainspring task show {ids[0]}`")
