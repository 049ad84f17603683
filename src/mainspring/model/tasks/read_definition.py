"""Read definition: the definition of a job from its JSON form, with every check that its options have.

The JSON form is the stored one: what is left out has the default of its struct. Only a job without any `retry` has the
retries of its kind: none for a command. Durations may also be text such as "10m". The parts are turned into the options
that people give, so `define`, `command` and `http` check them; an error names the part by its path, such as `run.argv`.
Next: model/tasks/define_job.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import ValidationError, shown
from mainspring.model.limits.limits import UNITS, Limits, Rate
from mainspring.model.schedules.schedules import FILLED
from mainspring.model.tasks.define_http import http
from mainspring.model.tasks.define_job import Options, command, define
from mainspring.model.tasks.define_job import handler as define_handler
from mainspring.model.tasks.jobs import Argument, Command, Definition, Health, Http, Placement, Python, Run, kind_of
from mainspring.model.tasks.retry import DEFAULT_RETRIES, Retry
from mainspring.model.words.names import check_name, nearest

T = TypeVar("T")

_RUNS: dict[str, type[Struct]] = {"command": Command, "http": Http, "python": Python}

# The paths of options that have another name, or another place, in the JSON form.
_PATHS = {
    "retries": "retry.retries",
    "backoff": "retry.backoff",
    "retry_delay": "retry.delay",
    "max_retry_delay": "retry.max_delay",
    "retry_on": "retry.retry_on",
    "abort_on": "retry.abort_on",
    "placement": "placement.strategy",
    "needs": "placement.needs",
    "prefer": "placement.prefer",
    "sticky": "placement.sticky",
    "broadcast": "placement.broadcast",
    "max_running": "gate.max_running",
    "concurrency_key": "gate.key",
    "concurrency_limit": "gate.key_limit",
    "rate": "gate.rate",
    "burst": "gate.rate.burst",
    "rate_per": "gate.rate.per_key",
    "chunk": "run.chunk",
}
_SAME = (  # options that are members
    *(
        "timeout",
        "stalls_after",
        "grace",
        "delivery",
        "priority",
        "requires",
        "max_queued",
        "expires",
        "keep_succeeded",
        "keep_failed",
    ),
    "description",
)


def read_definition(given: Mapping[str, Any]) -> Definition:
    """The definition; ValidationError names the member that is wrong by its path."""
    members = _members(given, Definition, "")
    if "run" not in members:
        raise ValidationError(
            'run: missing; say what to run, such as {"type": "command", "argv": ["pg_dump", "shop"]}', field="run"
        )
    run = _run(members["run"])
    options: dict[str, Any] = {name: members[name] for name in _SAME if name in members}
    placement = _part(members, "placement", Placement)
    options |= {name: placement[name] for name in ("needs", "prefer", "sticky", "broadcast") if name in placement}
    options |= {"placement": placement["strategy"]} if "strategy" in placement else {}
    if members.get("retry") is not None:
        options |= _retry(_part(members, "retry", Retry), kind_of(run), options.get("delivery"))
    if members.get("health") is not None:
        options["health"] = _health(_part(members, "health", Health))
    gate = _part(members, "gate", Limits)
    definition = _renamed(lambda: define(run, cast(Options, options | _limits(gate))), _path_of)
    if members.get("retries_by_default") is True:
        definition = replace(definition, retries_by_default=True)
    return _with_defaults(definition, gate.get("defaults"))


# ── what it runs ────────────────────────────────────────────────────────────────────────────────


def _run(given: Any) -> Run:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in _RUNS:
        wanted = ", ".join(_RUNS)
        raise ValidationError(f"run.type: {shown(kind)}; give one of {wanted}", field="run.type")
    struct = _RUNS[kind]
    members = _members({name: value for name, value in given.items() if name != "type"}, struct, "run.")
    for name in struct.__struct_fields__[: -len(struct.__struct_defaults__) or None]:
        if name not in members:
            raise ValidationError(f"run.{name}: missing; a {kind} has one", field=f"run.{name}")
    return _renamed(lambda: _MAKE[kind](**members), lambda field: f"run.{field}")


def _python(handler: Any, takes: Any = (), chunk: Any = None, chunk_wait: Any = None, arguments: Any = ()) -> Python:
    if not isinstance(takes, (list, tuple)) or any(name not in FILLED for name in takes):
        raise ValidationError(f"takes: {shown(takes)}; give a list of {', '.join(FILLED)}", field="takes")
    try:
        known = msgspec.convert(arguments, tuple[Argument, ...])
    except msgspec.ValidationError as error:
        message = f"arguments: {error}; give a list of {{name, type, required}}"
        raise ValidationError(message, field="arguments") from None
    return define_handler(handler, tuple(takes), chunk, chunk_wait, known)


_MAKE: dict[str, Callable[..., Run]] = {"command": command, "http": http, "python": _python}


# ── parts as options ────────────────────────────────────────────────────────────────────────────


def _retry(given: dict[str, Any], kind: str, delivery: object) -> dict[str, Any]:
    names = {"delay": "retry_delay", "max_delay": "max_retry_delay", "backoff": "backoff"}
    options = {option: given[name] for name, option in names.items() if name in given}
    options |= {name: given[name] for name in ("retry_on", "abort_on") if name in given}
    delays = given.get("delays") or ()
    if delays:
        if not isinstance(delays, (list, tuple)):
            raise ValidationError(f"retry.delays: {shown(delays)}; give a list of durations", field="retry.delays")
        if given.get("backoff", "fixed") != "fixed":
            raise ValidationError("retry.backoff: `delays` say how long to wait; leave it out", field="retry.backoff")
        options["backoff"] = delays
    retries = given.get("retries", Retry().retries)
    # An at_most_once job may have the retries that it has by itself: they are not used.
    by_itself = len(delays) if delays else DEFAULT_RETRIES[kind]
    if not (delivery == "at_most_once" and retries and retries == by_itself):
        options["retries"] = retries
    return options


def _health(given: dict[str, Any]) -> dict[str, Any]:
    names = {"argv": "command", "url": "http"}
    return {names.get(name, name): value for name, value in given.items() if value not in (None, [], ())}


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    names = {"max_running": "max_running", "key": "concurrency_key", "key_limit": "concurrency_limit"}
    options = {option: given[name] for name, option in names.items() if name in given}
    rate = _part(given, "rate", Rate, "gate.")
    if not rate:
        return options
    count, per = rate.get("count"), rate.get("per")
    if not isinstance(count, int) or isinstance(count, bool):
        raise ValidationError(f"gate.rate.count: {shown(count)}; give how many may start", field="gate.rate.count")
    if not isinstance(per, (int, float)) or per not in UNITS:
        seconds = ", ".join(f"{unit:g}" for unit in UNITS)
        raise ValidationError(f"gate.rate.per: {shown(per)}; give seconds: {seconds}", field="gate.rate.per")
    per_key = rate.get("per_key", False)
    if not isinstance(per_key, bool):
        raise ValidationError(f"gate.rate.per_key: {shown(per_key)}; give true or false", field="gate.rate.per_key")
    options |= {"rate": f"{count}/{UNITS[per]}", "burst": rate.get("burst", 1)}
    return options | ({"rate_per": "key"} if per_key else {})


def _with_defaults(definition: Definition, given: Any) -> Definition:
    """With the defaults of optional arguments in the concurrency key, which only code has."""
    if not given:
        return definition
    gate = definition.gate
    known = [] if gate is None else gate.arguments
    if not isinstance(given, Mapping) or any(name not in known for name in given):
        raise ValidationError(
            f"gate.defaults: {shown(given)}; give values for arguments in the key", field="gate.defaults"
        )
    for value in given.values():
        check_name(value, field="gate.defaults")
    return replace(definition, gate=replace(gate, defaults=dict(given)))  # type: ignore[type-var]


# ── members and paths ───────────────────────────────────────────────────────────────────────────


def _part(given: Mapping[str, Any], name: str, struct: type[Struct], prefix: str = "") -> dict[str, Any]:
    """The members of a part; none if it is left out or null."""
    value = given.get(name)
    return {} if value is None else _members(value, struct, f"{prefix}{name}.")


def _members(given: Any, struct: type[Struct], prefix: str) -> dict[str, Any]:
    """The members of an object, all of which the struct has."""
    if not isinstance(given, Mapping):
        field = prefix[:-1] or "definition"
        raise ValidationError(f"{field}: {shown(given)} is not an object", field=field)
    known = struct.__struct_fields__
    for name in given:
        if name not in known:
            close = nearest(str(name), known)
            meant = f", did you mean {prefix}{close}?" if close else ";"
            raise ValidationError(
                f"{prefix}{name}: no such member{meant} there are {', '.join(known)}", field=f"{prefix}{name}"
            )
    return dict(given)


def _path_of(field: str) -> str:
    return _PATHS.get(field, field)


def _renamed(make: Callable[[], T], path: Callable[[str], str]) -> T:
    """What `make` returns; an error of an option becomes one of the member that it came from."""
    try:
        return make()
    except ValidationError as error:
        if error.field is None:
            raise
        field = path(error.field)
        message = error.message
        if message.startswith(f"{error.field}:"):
            message = f"{field}{message[len(error.field) :]}"
        raise ValidationError(message, field=field, **error.details) from None
