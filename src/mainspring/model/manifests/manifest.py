"""Manifest: jobs, schedules and calendars that belong together, as a file or a request says them; checked in steps.

    mainspring: 1
    set: shop
    jobs: {report: {command: [./report.sh], timeout: 10m}}
    schedules: {report-daily: {job: report, daily: "09:00", tz: Europe/Paris, calendars: [holidays]}}
    calendars: {holidays: ["12-25", "01-01"]}

A schedule is what `PUT /schedules/NAME` takes, a calendar a list of days. Every mistake names its place.
Next: model/manifests/job_spec.py
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import UNSET, Struct

from mainspring.errors import MOST_FAULTS, ValidationError, shown, together
from mainspring.model.manifests.job_spec import JobSpec, read_job
from mainspring.model.schedules.excluded_days import check_days
from mainspring.model.schedules.schedule_spec import ScheduleSpec, defined, read_spec
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition
from mainspring.model.words.names import check_name, check_path_name, unknown

T = TypeVar("T")
Kind = Literal["job", "schedule", "calendar"]

VERSION: Literal[1] = 1
KINDS: tuple[Kind, ...] = ("job", "schedule", "calendar")
MOST_OBJECTS = 20_000
MOST_BYTES = 8 * 1024 * 1024  # of a manifest, as files or as JSON


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The objects of one set, by name. Without a set, nothing owns them: they are as if made by hand."""

    mainspring: Literal[1]  # the version of the format
    set: str | None = None  # what owns them; pruning deletes nothing else
    jobs: dict[str, JobSpec] = {}
    schedules: dict[str, ScheduleSpec] = {}
    calendars: dict[str, list[str]] = {}


SECTIONS = ("jobs", "schedules", "calendars")


def read_manifest(given: Any) -> Manifest:
    """The manifest in its JSON form; what its sections hold is as it was given until `wanted_in_steps` reads it."""
    if not isinstance(given, Mapping):
        raise ValidationError(
            f'{shown(given)} is not a manifest; it begins with "mainspring: {VERSION}"', field="manifest"
        )
    for name in given:
        if name not in Manifest.__struct_fields__:
            raise unknown(str(name), Manifest.__struct_fields__, "member of a manifest")
    version = given.get("mainspring")
    if type(version) is not int or version != VERSION:
        raise ValidationError(
            f'mainspring: {shown(version)}; the version of the format: write "mainspring: {VERSION}"',
            field="mainspring",
        )
    sections: dict[str, Any] = {name: {} if given.get(name) is None else given[name] for name in SECTIONS}
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            raise ValidationError(f"{name}: {shown(section)}; give them by name", field=name)
    if (count := sum(map(len, sections.values()))) > MOST_OBJECTS:
        raise ValidationError(
            f"manifest: {count:,} objects; at most {MOST_OBJECTS:,}: divide it into several sets", field="manifest"
        )
    owner = given.get("set")
    return Manifest(VERSION, None if owner is None else check_name(owner, field="set"), **sections)


class WantedSchedule(Struct, frozen=True, gc=False):
    schedule: Schedule
    enabled: bool | None  # None: as it is; a new one is enabled


class Wanted(NamedTuple):
    """What a manifest says, checked."""

    set: str | None
    jobs: dict[str, Definition]
    schedules: dict[str, WantedSchedule]
    calendars: dict[str, tuple[str, ...]]


def wanted_in_steps(manifest: Manifest) -> Generator[None, None, Wanted]:
    """What it says; ValidationError tells several mistakes at once. Yields between two objects."""
    faults: list[ValidationError] = []

    def read(kinds: str, given: Mapping[str, Any], one: Callable[[str, Any], T]) -> Generator[None, None, dict[str, T]]:
        found = {}
        for name, value in given.items():
            try:
                found[check_path_name(name, field="name")] = one(name, value)
            except ValidationError as error:
                faults.append(_placed(error, kinds, name))
                if len(faults) == MOST_FAULTS:
                    break
            yield
        return found

    jobs = yield from read("jobs", manifest.jobs, lambda _, given: read_job(given))
    schedules = yield from read("schedules", manifest.schedules, _schedule)
    calendars = yield from read("calendars", manifest.calendars, lambda _, given: check_days(given))
    if faults:
        raise together(faults)
    return Wanted(manifest.set, jobs, schedules, calendars)


def _schedule(name: str, given: Any) -> WantedSchedule:
    if not isinstance(given, Mapping):
        raise ValidationError(f'{shown(given)} is not a schedule; give members such as {{"job": "report", …}}')
    spec = read_spec(given)
    return WantedSchedule(defined(name, spec), None if spec.enabled is UNSET else spec.enabled)


def _placed(error: ValidationError, kinds: str, name: str) -> ValidationError:
    """The same mistake with the path to it."""
    path = f"{kinds}.{name[:100]}"
    field = error.field or ""
    message = error.message
    joined = f"{path}.{message}" if field and message.startswith(field) else f"{path}: {message}"
    return ValidationError(joined, field=f"{path}.{field}" if field else path)
