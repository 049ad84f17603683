"""Schedules: the schedules and calendars that an application's code defines, written to the database when it opens.

Next: store/schedules/synchronise.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

from mainspring.errors import ValidationError, shown
from mainspring.model.daemons.daemons import chunks_of_a_daemon, limits_of_a_daemon
from mainspring.model.schedules.define_schedule import When, check_scopes, define_schedule, has_schedule
from mainspring.model.schedules.excluded_days import MAX_DAYS, check_excluded
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.define_job import Options
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.words.names import check_path_name


class Check(Protocol):
    """The arguments of a schedule as JSON has them; ValidationError if every run would fail."""

    def __call__(self, args: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]: ...


class JobOptions(Options, When, total=False):
    """What `@app.job`, `app.command` and `app.http` take: the policies of the job, and when it runs by itself."""

    args: Mapping[str, Any]  # of the runs that its schedule makes


class Planned(NamedTuple):
    """A schedule that is checked and not added yet."""

    schedule: Schedule
    provider: Callable[..., Any] | None


class Schedules:
    """The schedules, calendars and scope providers of one application. Calls `changed` after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.all: dict[str, Schedule] = {}
        self.calendars: dict[str, tuple[str, ...]] = {}
        self.providers: dict[str, Callable[..., Any]] = {}  # by schedule

    def take(self, name: str, options: JobOptions, check: Check) -> tuple[Options, Planned | None]:
        """The policies among the options of a job, and the schedule among them."""
        when = {
            option: value
            for option, value in options.items()
            if option in When.__annotations__ and option not in Options.__annotations__  # `expires` is the job's
        }
        others = {option: value for option, value in options.items() if option not in (*when, "args")}
        if has_schedule(when):
            return cast(Options, others), self.plan(name, name, cast(When, when), options.get("args", {}), check)
        if "args" in options:
            raise ValidationError("args: belong to a schedule; give cron, every or another time too", field="args")
        return cast(Options, others), None

    def plan(self, name: str, job: str, when: When, args: Mapping[str, Any], check: Check) -> Planned:
        """A schedule, checked."""
        if name in self.all:
            raise ValidationError(f"a schedule named {name!r} is defined already; give it another name", field="name")
        if not isinstance(args, Mapping):
            raise ValidationError(f"args: {shown(args)}; give a dict of named arguments", field="args")
        scopes = when.get("scopes", ())
        if not callable(scopes):
            scopes = check_scopes(scopes)
            when = {**when, "scopes": scopes} if "scopes" in when else when
        args = check(args, has_scopes=bool(scopes))
        if not callable(scopes):
            return Planned(define_schedule(name, job, when, args=args), None)
        provider = getattr(scopes, "__name__", "provider")  # only shown: the lookup is by the schedule's name
        return Planned(define_schedule(name, job, when, args=args, provider=provider), scopes)

    def check_limits(self, planned: Planned, definition: Definition) -> None:
        """A daemon runs as many tasks as it has replicas, each by itself: its job has neither limits nor chunks."""
        if planned.schedule.kind != "daemon":
            return
        if definition.gate is not None:
            raise limits_of_a_daemon(planned.schedule.job)
        if isinstance(definition.run, Python) and definition.run.chunk is not None:
            raise chunks_of_a_daemon(planned.schedule.job)

    def add(self, planned: Planned) -> None:
        schedule, provider = planned
        self.all[schedule.name] = schedule
        if provider is not None:
            self.providers[schedule.name] = provider
        self._changed()

    def calendar(self, name: str, days: Iterable[Any]) -> None:
        if isinstance(days, str) or not isinstance(days, Iterable):
            example = "['2026-12-25', 'sun']"
            raise ValidationError(f"days: {shown(days)}; give a list of days such as {example}", field="days")
        found = [_day(day) for day in islice(days, MAX_DAYS + 1)]  # may be endless
        if len(found) > MAX_DAYS:
            raise ValidationError(f"days: more than {MAX_DAYS:,}; name weekdays, or days of every year", field="days")
        self.calendars[check_path_name(name, field="name")] = tuple(found)
        self._changed()


def _day(given: object) -> str:
    """A day of a calendar: text, or a date."""
    if isinstance(given, date) and not isinstance(given, datetime):
        given = given.isoformat()
    return check_excluded(given, field="days")
