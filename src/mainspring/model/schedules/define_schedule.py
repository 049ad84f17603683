"""Define schedule: every option that people give, checked, with an error that names it.

Next: model/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypedDict, TypeVar, cast, get_args

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.expressions import phrases
from mainspring.model.schedules.schedules import (
    CatchUp,
    First,
    Fold,
    Gap,
    Kind,
    Overlap,
    Policies,
    Schedule,
    WhenFull,
)
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.define_http import check_url
from mainspring.model.tasks.payload import KEPT_BYTES, encode
from mainspring.model.watch.slo import Slo, SloSpec, read_slo
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.instants import check_instant, parse_instant
from mainspring.model.words.names import check_name, check_path_name, check_text
from mainspring.model.words.zones import check_zone

MAX_RUNS = 1_000_000_000
MAX_PER_TICK = 1000
MAX_REPLICAS = 1000
MAX_SCOPES = 10_000
MIN_RESTART = 0.1  # seconds before a daemon that fails at once is started again

T = TypeVar("T")


class When(TypedDict, total=False):
    """When a job runs, as its author writes it: one of the first seven, and the policies around it.

    Instants given as text without an offset are local times of `tz`.
    `daemon=True` and `replicas=3` are `daemon=1` and `daemon=3`; the last four are for daemons.
    """

    cron: str
    every: Duration
    once: datetime | str
    daily: str
    weekly: str
    monthly: str
    daemon: int | bool
    tz: str
    gap: Gap
    fold: Fold
    anchor: datetime | str
    start: datetime | str
    end: datetime | str
    max_runs: int
    jitter: Duration
    delay: Duration
    calendars: Sequence[str]
    scopes: Sequence[str] | Callable[..., Any]
    catch_up: CatchUp
    window: Duration
    max_per_tick: int
    misfire_after: Duration
    overlap: Overlap
    after: str
    first: First
    slo: SloSpec | Slo
    ping_url: str
    expires: Duration | None
    when_full: WhenFull
    replicas: int
    restart_delay: Duration
    max_restart_delay: Duration
    stable: Duration
    ready: Duration


KINDS = ("cron", "every", "once", "daily", "weekly", "monthly", "daemon")
OF_DAEMONS = ("restart_delay", "max_restart_delay", "stable", "ready")
NOT_OF_DAEMONS = (
    "anchor",
    "start",
    "end",
    "max_runs",
    "jitter",
    "delay",
    "calendars",
    "scopes",
    "overlap",
    "expires",
    "when_full",
    "after",
    "first",
    "slo",
    "ping_url",
)


def has_schedule(options: Mapping[str, Any]) -> bool:
    """Whether any option says when to run."""
    return any(name in options for name in When.__annotations__)


def define_schedule(
    name: str,
    job: str,
    options: When,
    *,
    args: Mapping[str, Any] | None = None,
    provider: str | None = None,
    description: str = "",
) -> Schedule:
    """The schedule; ValidationError names the option that is wrong and says what to write."""
    unknown = sorted(options.keys() - When.__annotations__.keys())
    if unknown:
        known = ", ".join(When.__annotations__)
        raise ValidationError(f"{unknown[0]}: no such option; there are {known}", field=unknown[0])
    options = with_replicas(options)
    kind, expression = _kind(options)
    _check_belongs(options, kind)
    if "anchor" in options and kind != "every":
        raise ValidationError("anchor: belongs to `every`; cron and once have fixed times", field="anchor")
    given = options.get("scopes", ())
    schedule = Schedule(
        check_path_name(name, field="name"),
        check_path_name(job, field="job"),
        kind,
        expression,
        check_zone(options.get("tz", "UTC")).key,
        Policies(
            gap=_choice(options, "gap", "shift", get_args(Gap)),
            fold=_choice(options, "fold", "first", get_args(Fold)),
            anchor=_instant(options, "anchor"),
            start=_instant(options, "start"),
            end=_instant(options, "end"),
            max_runs=_count(options, "max_runs", None, MAX_RUNS),
            jitter=seconds(options.get("jitter", 0.0), field="jitter"),
            delay=seconds(options.get("delay", 0.0), field="delay"),
            calendars=_names(options.get("calendars", ())),
            scopes=() if callable(given) else check_scopes(given),
            provider=provider,
            catch_up=_choice(options, "catch_up", "latest", get_args(CatchUp)),
            window=seconds(options.get("window", 86400.0), field="window"),
            max_per_tick=_count(options, "max_per_tick", 100, MAX_PER_TICK) or 100,
            misfire_after=_optional_seconds(options, "misfire_after"),
            overlap=_choice(options, "overlap", "allow", get_args(Overlap)),
            after=None if (other := options.get("after")) is None else check_path_name(other, field="after"),
            first=_choice(options, "first", "next", get_args(First)),
            slo=read_slo(options.get("slo")),
            ping_url=None if (url := options.get("ping_url")) is None else check_url(url, field="ping_url"),
            expires=_optional_seconds(options, "expires"),
            when_full=_choice(options, "when_full", "plan", get_args(WhenFull)),
            restart_delay=seconds(options.get("restart_delay", 1.0), field="restart_delay", at_least=MIN_RESTART),
            max_restart_delay=seconds(
                options.get("max_restart_delay", 60.0), field="max_restart_delay", at_least=MIN_RESTART
            ),
            stable=seconds(options.get("stable", 60.0), field="stable"),
            ready=seconds(options.get("ready", 1.0), field="ready"),
            args=_arguments(args or {}),
            description=check_text(description, field="description"),
        ),
    )
    return check_schedule(schedule)


def with_replicas(options: When) -> When:
    """The options with the number of replicas in `daemon`, however it was written."""
    daemon, replicas = options.get("daemon"), options.get("replicas")
    if "replicas" not in options and daemon is not True:
        return options
    others = {name: value for name, value in options.items() if name not in ("daemon", "replicas")}
    if "replicas" not in options:
        return cast(When, {**others, "daemon": 1})
    replicas = _count(options, "replicas", 1, MAX_REPLICAS)
    if daemon is not None and daemon is not True and (not isinstance(daemon, int) or daemon != replicas):
        raise ValidationError(
            f"replicas: {replicas}, and daemon says {shown(daemon)}; give one number", field="replicas"
        )
    return cast(When, {**others, "daemon": replicas})


def _check_belongs(options: When, kind: Kind) -> None:
    """Refuse plan times for a daemon, and restarts for any other kind."""
    for name in NOT_OF_DAEMONS if kind == "daemon" else OF_DAEMONS:
        if name in options:
            other = "a daemon, which has no plan times" if kind == "daemon" else f"`{kind}`; it is for daemons"
            raise ValidationError(f"{name}: means nothing for {other}", field=name)


def check_schedule(schedule: Schedule) -> Schedule:
    """Refuse parts that contradict each other."""
    policies = schedule.policies
    if policies.after is not None:
        _check_after(schedule.name, policies)
    if policies.first == "latest" and policies.provider is not None:
        raise ValidationError(
            "first: the scopes of this schedule are told by its code at plan time, so none can run when it is made;"
            " leave `latest` out, or list the scopes",
            field="first",
        )
    if policies.start is not None and policies.end is not None and policies.end <= policies.start:
        raise ValidationError(f"end: {policies.end} is not after the start, {policies.start}", field="end")
    timing(schedule, keep=False)  # raises if it cannot be made
    return schedule


def _check_after(name: str, policies: Policies) -> None:
    if policies.after == name:
        raise ValidationError("after: a schedule cannot wait for itself; `overlap` is for that", field="after")
    if policies.overlap != "allow":
        raise ValidationError(
            f"after: does not go with overlap={policies.overlap}: what waits for another schedule has no turn among its"
            " own; give the job max_running=1 in place of the overlap",
            field="after",
        )
    if policies.first == "latest":
        raise ValidationError("after: does not go with first=latest, which runs at once", field="after")


def check_fires(schedule: Schedule, now: datetime) -> None:
    """Refuse a schedule without a plan time to come."""
    if schedule.kind != "daemon" and timing(schedule).after(now) is None:
        field = "end" if schedule.policies.end is not None else schedule.kind
        raise ValidationError(
            f"{field}: no plan time would ever come: {timing(schedule).words}; look at it with"
            " `mainspring schedule preview`, and at its end and its calendars",
            field=field,
        )


def _kind(options: When) -> tuple[Kind, str]:
    given = [kind for kind in KINDS if kind in options]
    if len(given) != 1:
        said = f"{', '.join(given)} were given" if given else "nothing says when to run"
        raise ValidationError(f"{said}; give one of {', '.join(KINDS)}", field=given[0] if given else "cron")
    if options[given[0]] is None:  # type: ignore[literal-required]
        raise ValidationError(f"{given[0]}: None says nothing; leave it out, or say when", field=given[0])
    match given[0]:
        case "cron":
            if not isinstance(options["cron"], str):
                raise ValidationError(f'cron: {shown(options["cron"])}; write a text such as "0 9 * * *"', field="cron")
            _check_not_words(options["cron"])
            return "cron", options["cron"]
        case "daily" | "weekly" | "monthly" as phrase:
            return "cron", phrases.PHRASES[phrase](options[phrase])
        case "every":
            period = seconds(options["every"], field="every", at_least=phrases.MIN_PERIOD)
            return "every", phrases.period_text(period)
        case "once":
            return "once", cast(datetime, _instant(options, "once")).isoformat()
        case _:
            return "daemon", str(_count(options, "daemon", 1, MAX_REPLICAS))


def _check_not_words(given: str) -> None:
    """Refuse words that mean something, but are not cron, with the option for them."""
    if not given.strip()[:2].isalpha():
        return
    try:
        kind, expression = phrases.parse(given)
    except ValidationError:
        return  # the error of cron says more
    meant = f'write cron "{expression}"' if kind == "cron" else f"use {kind} for it"
    raise ValidationError(f"cron: {shown(given)} is in plain words; {meant}", field="cron")


def _choice(options: When, field: str, default: str, allowed: tuple[str, ...]) -> Any:
    value = options.get(field, default)
    if not isinstance(value, str) or value not in allowed:
        raise ValidationError(f"{field}: {shown(value)}; use {', '.join(allowed)}", field=field)
    return value


def _instant(options: When, field: str) -> datetime | None:
    value = options.get(field)
    if value is None:
        return None
    if isinstance(value, str):
        return parse_instant(value, field=field, zone=check_zone(options.get("tz", "UTC"))).astimezone(UTC)
    return check_instant(value, field=field).astimezone(UTC)  # type: ignore[arg-type]


def _count(options: When, field: str, default: int | None, most: int) -> int | None:
    value = options.get(field, default)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValidationError(f"{field}: {shown(value)}; give 1 to {most:,}", field=field)
    return value


def _optional_seconds(options: When, field: str) -> float | None:
    value = options.get(field)
    return None if value is None else seconds(cast(Duration, value), field=field, at_least=0.001)


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise ValidationError(f"calendars: {shown(given)}; give a list of names", field="calendars")
    return tuple(dict.fromkeys(check_path_name(name, field="calendars") for name in given))


def _arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the database returns them, so that a schedule equals its stored form."""
    kept: dict[str, Any] = msgspec.json.decode(encode(args, "args", KEPT_BYTES))
    return kept


def check_scopes(given: Any) -> tuple[str, ...]:
    """Scopes as they are stored: short visible texts, each once."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValidationError(f"scopes: {shown(given)}; give a list of texts such as ['eu', 'us']", field="scopes")
    scopes = [check_name(scope, field="scopes") for scope in islice(given, MAX_SCOPES + 1)]  # may be endless
    if len(scopes) > MAX_SCOPES:
        raise ValidationError(f"scopes: too many of them; at most {MAX_SCOPES}", field="scopes")
    return tuple(dict.fromkeys(scopes))
