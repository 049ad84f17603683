"""Job spec: a job as a manifest says it, by the options that people give, and back from its definition.

    {"command": ["./report.sh"], "timeout": "10m", "retries": 3}
    {"http": "POST https://shop.example/ping", "headers": {"X-Shop": "7"}}

What the options cannot say, such as the parameters of a handler, is said by `definition`, the form of the HTTP API.
Next: model/tasks/define_job.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mainspring.errors import ValidationError, shown
from mainspring.model.limits.limits import UNITS, Limits, RatePer
from mainspring.model.secrets.references import Value
from mainspring.model.tasks.define_http import http
from mainspring.model.tasks.define_job import Options, command, define, handler
from mainspring.model.tasks.jobs import (
    DEFAULT_CHUNK_WAIT,
    Command,
    Definition,
    Delivery,
    Health,
    Http,
    Placement,
    Python,
    Run,
    kind_of,
)
from mainspring.model.tasks.read_definition import read_definition
from mainspring.model.tasks.retry import DEFAULT_RETRIES, Retry
from mainspring.model.words.durations import compact, seconds
from mainspring.model.words.names import unknown

Text = str | UnsetType
Count = int | UnsetType
Flag = bool | UnsetType
Length = float | str | UnsetType  # seconds, or text such as "1h30m"
Texts = dict[str, str] | UnsetType
Values = dict[str, Value] | UnsetType  # texts, or references to secrets
Names = list[str] | UnsetType


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One of `command`, `http`, `handler` and `definition`; what belongs to it; and the policies of the job."""

    command: Names = UNSET  # the program and its arguments; with `shell` a line for /bin/sh, as a list of one
    shell: Flag = UNSET
    cwd: Text = UNSET
    env: Values = UNSET
    stdin: Text = UNSET
    user: Text = UNSET
    limits: dict[str, Any] | UnsetType = UNSET  # memory, cpu, files
    python: Flag = UNSET
    warm: Names = UNSET
    http: Text = UNSET  # METHOD URL
    headers: Values = UNSET
    body: Text = UNSET
    expect: list[str | int] | UnsetType = UNSET
    redirects: Count = UNSET
    handler: Text = UNSET  # of an application
    chunk: Count = UNSET
    chunk_wait: Length = UNSET
    retries: Count = UNSET
    backoff: str | list[float | str] | UnsetType = UNSET  # or a list of delays
    retry_delay: Length = UNSET
    max_retry_delay: Length = UNSET
    retry_on: list[str | int] | UnsetType = UNSET
    abort_on: list[str | int] | UnsetType = UNSET
    timeout: Length = UNSET
    stalls_after: Length = UNSET
    grace: Length = UNSET
    delivery: Delivery | UnsetType = UNSET
    priority: int | str | UnsetType = UNSET
    requires: Texts = UNSET  # labels that an agent must have
    health: dict[str, Any] | UnsetType = UNSET  # of a daemon: command or http, every, timeout, failures, start
    broadcast: Flag = UNSET
    placement: Text = UNSET
    needs: dict[str, float] | UnsetType = UNSET
    prefer: Texts = UNSET
    sticky: Text = UNSET
    max_running: Count = UNSET
    concurrency_key: Text = UNSET
    concurrency_limit: int | UnsetType | None = UNSET
    rate: Text = UNSET  # 100/minute
    burst: Count = UNSET
    rate_per: RatePer | UnsetType = UNSET
    max_queued: Count = UNSET
    expires: Length = UNSET
    keep_succeeded: Length = UNSET
    keep_failed: Length = UNSET
    description: Text = UNSET
    definition: Definition | UnsetType = UNSET  # all of it, in the form of PUT /jobs/NAME


RUNS = ("command", "http", "handler", "definition")
MEMBERS = JobSpec.__struct_fields__
_OF_RUN: dict[str, tuple[str, ...]] = {
    "command": ("shell", "cwd", "env", "stdin", "user", "limits", "python", "warm"),
    "http": ("headers", "body", "expect", "redirects"),
    "handler": ("chunk", "chunk_wait"),
}
_BELONGS = {member: run for run, members in _OF_RUN.items() for member in members}
_EXAMPLE = 'such as {"command": ["./report.sh"], "timeout": "10m"}'


# ── read ────────────────────────────────────────────────────────────────────────────────────────


def read_job(given: Any) -> Definition:
    """The definition; ValidationError names the member that is wrong."""
    if not isinstance(given, Mapping):
        raise ValidationError(f"{shown(given)} is not a job; give members {_EXAMPLE}")
    for name in given:
        if name not in MEMBERS:
            raise unknown(str(name), MEMBERS, "member of a job")
    said = [run for run in RUNS if run in given]
    if len(said) != 1:
        told = f"{' and '.join(said)} are given" if said else "nothing says what to run"
        raise ValidationError(f"{told}; give one of {', '.join(RUNS)}", field=said[1] if said else "command")
    if said == ["definition"]:
        return _whole(given)
    for name in given:
        if _BELONGS.get(name, said[0]) != said[0]:
            raise ValidationError(f"{name}: belongs to a job with `{_BELONGS[name]}`, not `{said[0]}`", field=name)
    of_run = {name: given[name] for name in _OF_RUN[said[0]] if name in given}
    options: Any = {name: value for name, value in given.items() if name in Options.__annotations__}
    return define(_run(said[0], given[said[0]], of_run), options)


def _whole(given: Mapping[str, Any]) -> Definition:
    beside = [name for name in given if name != "definition"]
    if beside:
        raise ValidationError(f"{beside[0]}: `definition` says all of the job; write it in there", field=beside[0])
    try:
        return read_definition(given["definition"])
    except ValidationError as error:
        raise ValidationError(f"definition.{error.message}", field=f"definition.{error.field}") from None


def _run(kind: str, said: Any, given: dict[str, Any]) -> Run:
    if kind == "command":
        if not isinstance(said, (list, tuple)):
            raise ValidationError(
                f"command: {shown(said)}; give a list such as [pg_dump, shop]; a line for the shell is a list of one,"
                " with shell: true",
                field="command",
            )
        return command(said, **given)
    if kind == "handler":
        return handler(said, chunk=given.get("chunk"), chunk_wait=given.get("chunk_wait"))
    if not isinstance(said, str) or not said.strip():
        raise ValidationError(f"http: {shown(said)}; write METHOD URL, such as POST https://shop.example", field="http")
    method, _, url = said.strip().rpartition(" ")
    return http(method.strip() or "GET", url, **given)


# ── write ───────────────────────────────────────────────────────────────────────────────────────


def job_spec_of(definition: Definition) -> dict[str, Any]:
    """What `read_job` makes this definition of, in as few words as it can."""
    spec = _of_run(definition.run) | _of_retry(definition) | _of_policies(definition) | _of_gate(definition.gate)
    try:
        if read_job(spec) == definition:
            return spec
    except ValidationError:  # such as a handler's parameters, or what SQL wrote
        pass
    return {"definition": msgspec.to_builtins(definition)}


def _of_run(run: Run) -> dict[str, Any]:
    match run:
        case Command():
            members = ("shell", "cwd", "env", "stdin", "user", "python", "warm")
            limits = _without_none(run.limits)
            return {"command": list(run.argv)} | _differing(run, members) | ({"limits": limits} if limits else {})
        case Http():
            return {"http": f"{run.method} {run.url}"} | _differing(run, ("headers", "body", "expect", "redirects"))
        case Python():
            wait = {} if run.chunk_wait == DEFAULT_CHUNK_WAIT else {"chunk_wait": length(run.chunk_wait)}
            return {"handler": run.handler} | ({} if run.chunk is None else {"chunk": run.chunk} | wait)


def _of_retry(definition: Definition) -> dict[str, Any]:
    retry, spec = definition.retry, dict[str, Any]()
    default = len(retry.delays) if retry.delays else DEFAULT_RETRIES[kind_of(definition.run)]
    if not definition.retries_by_default and (retry.retries != default or not retry.delays):
        spec["retries"] = retry.retries
    if definition.delivery == "at_most_once":
        spec.pop("retries", None)
    if retry.delays:
        spec["backoff"] = [length(delay) for delay in retry.delays]
    elif retry.backoff != Retry().backoff:
        spec["backoff"] = retry.backoff
    if retry.delay != Retry().delay:
        spec["retry_delay"] = length(retry.delay)
    if retry.max_delay != Retry().max_delay:
        spec["max_retry_delay"] = length(retry.max_delay)
    return spec | _differing(retry, ("retry_on", "abort_on"))


_LENGTHS = ("timeout", "stalls_after", "grace", "expires", "keep_succeeded", "keep_failed")


def _of_policies(definition: Definition) -> dict[str, Any]:
    spec: dict[str, Any] = {name: length(value) for name, value in _differing(definition, _LENGTHS).items()}
    spec |= _differing(definition, ("delivery", "priority", "requires", "max_queued", "description"))
    placement = _differing(definition.placement, Placement.__struct_fields__)
    if "strategy" in placement:
        placement["placement"] = placement.pop("strategy")
    spec |= placement
    if definition.health is not None:
        spec["health"] = _of_health(definition.health)
    return spec


def _of_health(health: Health) -> dict[str, Any]:
    said: dict[str, Any] = {"command": list(health.argv)} if health.argv else {"http": health.url}
    lengths = _differing(health, ("every", "timeout", "start"))
    return said | {name: length(value) for name, value in lengths.items()} | _differing(health, ("failures",))


def _of_gate(gate: Limits | None) -> dict[str, Any]:
    spec = dict[str, Any]()
    if gate is None:
        return spec
    if gate.max_running is not None:
        spec["max_running"] = gate.max_running
    if gate.key is not None:
        spec["concurrency_key"] = gate.key
        if gate.key_limit != 1:
            spec["concurrency_limit"] = gate.key_limit
    if (rate := gate.rate) is not None:
        spec |= {"rate": f"{rate.count}/{UNITS.get(rate.per, rate.per)}", "burst": rate.burst}
        spec |= {"rate_per": "key"} if rate.per_key else {}
    return spec


def _differing(struct: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    """The members that are not the default, as JSON has them."""
    defaults = {field.name: field for field in msgspec.structs.fields(type(struct))}
    found = {}
    for name in names:
        value, field = getattr(struct, name), defaults[name]
        if value not in (field.default, None) and value != () and value != {}:
            found[name] = msgspec.to_builtins(value)
    return found


def _without_none(struct: Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value is not None}


def length(value: float) -> str | float:
    """A duration as people write it, if that is exactly the same one."""
    text = compact(value)
    return text if seconds(text, field="length") == value else value
