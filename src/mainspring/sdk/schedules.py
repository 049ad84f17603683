"""The schedules and calendars that an application's code defines, brought into the database when it starts.

Next: store/schedules/synchronise.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from mainspring.errors import ValidationError
from mainspring.model.schedules.define_schedule import When, define_schedule, has_schedule
from mainspring.model.schedules.excluded_days import check_excluded
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.define_job import Options
from mainspring.model.words.names import check_name


class Check(Protocol):
    """The arguments of a schedule as JSON has them; ValidationError if every run would fail."""

    def __call__(self, args: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]: ...


class JobOptions(Options, When, total=False):
    """What `@app.job`, `app.command` and `app.http` take: the policies of the job, and when it runs by itself."""

    args: Mapping[str, Any]  # of the runs that its schedule makes


class Schedules:
    """What one application's code says about time."""

    def __init__(self) -> None:
        self.all: dict[str, Schedule] = {}
        self.calendars: dict[str, tuple[str, ...]] = {}
        self.providers: dict[str, Callable[..., Any]] = {}  # by schedule

    def take(self, name: str, options: JobOptions, check: Check) -> Options:
        """Keep the schedule among the options of a job; returns the others."""
        when = {option: value for option, value in options.items() if option in When.__annotations__}
        others = {option: value for option, value in options.items() if option not in (*when, "args")}
        if has_schedule(when):
            self.add(name, name, cast(When, when), options.get("args", {}), check)
        elif "args" in options:
            raise ValidationError("args: belong to a schedule; give cron, every or another time too", field="args")
        return cast(Options, others)

    def add(self, name: str, job: str, when: When, args: Mapping[str, Any], check: Check) -> None:
        if name in self.all:
            raise ValidationError(f"a schedule named {name!r} is defined already; give it another name", field="name")
        if not isinstance(args, Mapping):
            raise ValidationError(f"args: {args!r}; give a dict of named arguments", field="args")
        scopes = when.get("scopes")
        provider = None
        if callable(scopes):
            provider = getattr(scopes, "__name__", "provider")  # for people: it is found by the schedule's name
            self.providers[name] = scopes
        self.all[name] = define_schedule(name, job, when, args=check(args, has_scopes=bool(scopes)), provider=provider)

    def is_daemon(self, name: str) -> bool:
        return name in self.all and self.all[name].kind == "daemon"

    def calendar(self, name: str, days: Iterable[Any]) -> None:
        if isinstance(days, str) or not isinstance(days, Iterable):
            raise ValidationError(f"days: {days!r}; give a list of days such as ['2026-12-25', 'sun']", field="days")
        self.calendars[check_name(name, field="name")] = tuple(check_excluded(str(day), field="days") for day in days)
