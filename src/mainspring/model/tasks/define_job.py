"""Define job: a definition from the options of a job; every error names its option.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast, get_args

from mainspring.errors import ValidationError, shown
from mainspring.model.daemons.define_health import define_health
from mainspring.model.limits.limits import RatePer, define_limits
from mainspring.model.limits.process_limits import define_process_limits
from mainspring.model.placement.define_placement import check_labels, define_placement
from mainspring.model.secrets.references import Value, check_number, read_value
from mainspring.model.tasks.jobs import (
    DEFAULT_CHUNK_WAIT,
    DEFAULT_PRIORITY,
    PRIORITIES,
    Argument,
    Command,
    Definition,
    Delivery,
    Priority,
    Python,
    Run,
    kind_of,
)
from mainspring.model.tasks.retry import DEFAULT_RETRIES, MAX_DELAYS, MAX_RETRIES, Backoff, Retry
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.names import check_name, check_path_name, check_text, nearest
from mainspring.model.words.sizes import Size

MAX_ARGV = 1000
MAX_ARGV_BYTES = 128 * 1024  # of one argument: the limit of Linux
MAX_ENVIRONMENT_BYTES = 1024 * 1024
MAX_WARM = 100
MAX_CHUNK = 1000  # tasks: as many as one claim takes, or one frame reports on
MAX_CHUNK_WAIT = 60.0  # seconds
MAX_EXIT_CODE = 2**31
MOST_QUEUED = 10_000_000  # tasks of a job that wait

_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){0,9}", re.ASCII)
_OF_RETRIES = ("backoff", "retry_delay", "max_retry_delay", "retry_on")


class Options(TypedDict, total=False):
    """The policies of a job, as its author writes them."""

    retries: int
    backoff: Backoff | Sequence[Duration]
    retry_delay: Duration
    max_retry_delay: Duration
    retry_on: Sequence[type[BaseException] | str | int]
    abort_on: Sequence[type[BaseException] | str | int]
    timeout: Duration | None
    stalls_after: Duration | None
    grace: Duration
    delivery: Delivery
    priority: Priority
    requires: Mapping[str, str]
    health: Mapping[str, Any]
    broadcast: bool
    placement: str
    needs: Mapping[str, float]
    prefer: Mapping[str, str]
    sticky: str
    max_running: int
    concurrency_key: str
    concurrency_limit: int | None
    rate: str
    burst: int
    rate_per: RatePer
    max_queued: int
    expires: Duration | None
    keep_succeeded: Duration | None
    keep_failed: Duration | None
    description: str


def define(run: Run, options: Options, *, requires: Mapping[str, str] | None = None) -> Definition:
    """The definition of a job; ValidationError names the option that is wrong."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise _unknown_option(sorted(unknown)[0])
    delivery = options.get("delivery", "at_least_once")
    if not isinstance(delivery, str) or delivery not in get_args(Delivery):
        raise ValidationError(f"delivery: {shown(delivery)}; use {', '.join(get_args(Delivery))}", field="delivery")
    retry = _retry(kind_of(run), options)
    if delivery == "at_most_once" and "retries" in options and retry.retries:
        raise ValidationError("retries: an at_most_once job never runs again; leave retries out", field="retries")
    if delivery == "effectively_once" and not isinstance(run, Python):
        raise ValidationError(
            "delivery: effectively_once is for Python handlers, which commit through current_task().transaction()",
            field="delivery",
        )
    if isinstance(run, Python) and run.chunk is not None and options.get("broadcast", False) is True:
        raise ValidationError("chunk: a broadcast is one run on each agent, which no chunk can gather", field="chunk")
    timeout = options.get("timeout")
    labels = {
        **check_labels(requires or {}, field="requires"),
        **check_labels(options.get("requires", {}), field="requires"),
    }
    return Definition(
        run=run,
        retry=retry,
        retries_by_default="retries" not in options and not retry.delays,
        timeout=None if timeout is None else seconds(timeout, field="timeout", at_least=0.001),
        stalls_after=None
        if (stalls := options.get("stalls_after")) is None
        else _at_least_a_bit(stalls, "stalls_after"),
        grace=seconds(options.get("grace", 5.0), field="grace"),
        delivery=delivery,
        priority=priority_level(options.get("priority", DEFAULT_PRIORITY)),
        requires=labels,
        health=None if options.get("health") is None else define_health(options["health"]),
        placement=define_placement(options),
        gate=define_limits(options, broadcast=options.get("broadcast", False) is True),
        max_queued=check_max_queued(options.get("max_queued")),
        expires=None if (expires := options.get("expires")) is None else _at_least_a_bit(expires, "expires"),
        keep_succeeded=_keep(options.get("keep_succeeded"), "keep_succeeded"),
        keep_failed=_keep(options.get("keep_failed"), "keep_failed"),
        description=check_text(options.get("description", ""), field="description"),
    )


def _at_least_a_bit(given: Duration, field: str) -> float:
    return seconds(given, field=field, at_least=0.001)


def check_max_queued(given: object) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MOST_QUEUED):
        return given
    raise ValidationError(f"max_queued: {shown(given)}; give 1 to {MOST_QUEUED:,}", field="max_queued")


def _keep(given: Duration | None, field: str) -> float | None:
    """How long finished tasks are kept; 0: not at all."""
    return None if given is None else seconds(given, field=field)


def _unknown_option(name: str) -> ValidationError:
    """With a suggestion: an option of a job or, where a job is defined in code, of its schedule."""
    from mainspring.model.schedules.define_schedule import When  # only here: it is slow to import

    known = [*Options.__annotations__, *When.__annotations__]
    close = nearest(name, known)
    meant = f", did you mean {close}?" if close else ";"
    policies, when = ", ".join(Options.__annotations__), ", ".join(When.__annotations__)
    return ValidationError(f"{name}: no such option{meant} a job has {policies}; its schedule has {when}", field=name)


def _retry(kind: str, options: Options) -> Retry:
    retries = options.get("retries", DEFAULT_RETRIES[kind])
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= MAX_RETRIES:
        raise ValidationError(f"retries: {shown(retries)}; give 0 to {MAX_RETRIES}", field="retries")
    backoff = options.get("backoff", "jitter")
    delays: tuple[float, ...] = ()
    if isinstance(backoff, (list, tuple)):
        delays = tuple(seconds(delay, field="backoff") for delay in backoff)
        if not 1 <= len(delays) <= MAX_DELAYS:
            raise ValidationError(f"backoff: {len(delays)} delays; give 1 to {MAX_DELAYS}", field="backoff")
        backoff = "fixed"
        retries = options.get("retries", len(delays))
    elif "retries" not in options and retries == 0 and (idle := [name for name in _OF_RETRIES if name in options]):
        raise ValidationError(f"{idle[0]}: a {kind} is not retried by itself; give retries too", field=idle[0])
    elif not isinstance(backoff, str) or backoff not in get_args(Backoff):
        raise ValidationError(
            f"backoff: {shown(backoff)}; use {', '.join(get_args(Backoff))}, or a list of delays", field="backoff"
        )
    return Retry(
        retries=retries,
        backoff=cast(Backoff, backoff),
        delay=seconds(options.get("retry_delay", 1.0), field="retry_delay"),
        max_delay=seconds(options.get("max_retry_delay", 3600.0), field="max_retry_delay"),
        delays=delays,
        retry_on=_labels(options.get("retry_on", ()), "retry_on"),
        abort_on=_labels(options.get("abort_on", ()), "abort_on"),
    )


def _labels(given: Sequence[type[BaseException] | str | int], field: str) -> tuple[str, ...]:
    """Failures by exception class, by its name, by exit code, or by error code."""
    if not isinstance(given, (list, tuple, set, frozenset)):
        given = (given,)  # type: ignore[assignment]
    labels = []
    for item in given:
        if isinstance(item, type) and issubclass(item, BaseException):
            labels.append(f"{item.__module__}.{item.__qualname__}")
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) < MAX_EXIT_CODE:
            labels.append(str(item))
        else:
            labels.append(check_name(item, field=field))
    return tuple(labels)


def priority_level(priority: str | int) -> int:
    """low, normal, high, critical, or 0 to 9; higher ones run first."""
    if isinstance(priority, str) and priority in PRIORITIES:
        return PRIORITIES[priority]
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= 9:
        return priority
    if isinstance(priority, str) and len(priority) == 1 and priority in "0123456789":
        return int(priority)
    raise ValidationError(f"priority: {shown(priority)}; use {', '.join(PRIORITIES)}, or 0 to 9", field="priority")


def handler(
    name: object,
    takes: tuple[str, ...] = (),
    chunk: object = None,
    chunk_wait: Duration | None = None,
    arguments: tuple[Argument, ...] = (),
) -> Python:
    """A handler of an application; with `chunk` one call of it takes the arguments of up to so many tasks."""
    name = check_path_name(name, field="handler")
    if chunk is None:
        if chunk_wait is not None:
            raise ValidationError("chunk_wait: belongs to a chunk; give chunk=100 too", field="chunk_wait")
        return Python(name, takes, arguments=arguments)
    if not isinstance(chunk, int) or isinstance(chunk, bool) or not 1 <= chunk <= MAX_CHUNK:
        raise ValidationError(f"chunk: {shown(chunk)}; give how many tasks, 1 to {MAX_CHUNK}", field="chunk")
    wait = seconds(DEFAULT_CHUNK_WAIT if chunk_wait is None else chunk_wait, field="chunk_wait")
    if wait > MAX_CHUNK_WAIT:
        raise ValidationError(f"chunk_wait: {wait:g} s; at most {MAX_CHUNK_WAIT:g} s", field="chunk_wait")
    return Python(name, takes, chunk, wait, arguments)


def command(
    argv: Sequence[str] | str,
    *,
    shell: bool = False,
    cwd: str | None = None,
    env: Mapping[str, Value] | None = None,
    stdin: str | None = None,
    user: str | None = None,
    limits: Mapping[str, Size | Duration] | None = None,
    python: bool = False,
    warm: Sequence[str] = (),
) -> Command:
    """A command: a list of arguments, with `shell` one line for /bin/sh, with `python` a script and its arguments."""
    if isinstance(argv, str):
        if shell is False:
            raise ValidationError(
                "argv: give a list such as ['pg_dump', 'shop']; a line for the shell needs shell=True",
                field="argv",
            )
        argv = [argv]
    for name, value in (("shell", shell), ("python", python)):
        if not isinstance(value, bool):
            raise ValidationError(f"{name}: {shown(value)}; give True or False", field=name)
    if not isinstance(argv, (list, tuple)):
        raise ValidationError(f"argv: {shown(argv)}; give a list such as ['pg_dump', 'shop']", field="argv")
    arguments = tuple(check_text(item, field="argv", limit=MAX_ARGV_BYTES) for item in argv)
    if any(len(item.encode()) >= MAX_ARGV_BYTES for item in arguments):
        raise ValidationError("argv: an argument of 128 kB or more; the system would refuse it", field="argv")
    if not 1 <= len(arguments) <= MAX_ARGV or not arguments[0]:
        raise ValidationError(f"argv: give 1 to {MAX_ARGV} arguments, the program first", field="argv")
    return Command(
        argv=arguments,
        shell=shell,
        cwd=None if cwd is None else check_text(cwd, field="cwd", limit=4096),
        env=_environment(env),
        stdin=None if stdin is None else check_text(stdin, field="stdin", limit=1024 * 1024),
        user=None if user is None else check_name(user, field="user"),
        limits=define_process_limits(limits),
        python=python,
        warm=_modules(arguments, shell=shell, python=python, warm=warm),
    )


def _environment(env: Mapping[str, Value] | None) -> dict[str, Value]:
    if env is not None and not isinstance(env, Mapping):
        raise ValidationError(f"env: {shown(env)}; give variables such as {{'LANG': 'C.UTF-8'}}", field="env")
    environment = {name: read_value(value, field="env", limit=MAX_ARGV_BYTES) for name, value in (env or {}).items()}
    for name in environment:
        if not check_text(name, field="env", limit=1000) or "=" in name:
            raise ValidationError(f"env: {shown(name)} is not the name of a variable", field="env")
        if name.startswith("MAINSPRING_"):
            raise ValidationError(f"env: {name} is reserved; names that begin with MAINSPRING_ are ours", field="env")
    check_number(environment, field="env")
    texts = [(name, value) for name, value in environment.items() if isinstance(value, str)]
    if sum(len(name.encode()) + len(value.encode()) + 2 for name, value in texts) > MAX_ENVIRONMENT_BYTES:
        raise ValidationError("env: over 1 MB; the system would refuse to start the command", field="env")
    return environment


def _modules(argv: tuple[str, ...], *, shell: bool, python: bool, warm: Sequence[str]) -> tuple[str, ...]:
    """The modules to import before the instant."""
    if not isinstance(warm, (list, tuple)):
        raise ValidationError(f"warm: {shown(warm)}; give names of modules such as ['pandas']", field="warm")
    if not python:
        if warm:
            raise ValidationError("warm: only a Python script imports modules; it needs python", field="warm")
        return ()
    if shell:
        raise ValidationError("python: a script for Python is none for the shell; give one of them", field="python")
    if argv[0].startswith("-") and (argv[0] != "-m" or len(argv) < 2):
        raise ValidationError("argv: with python, give a script and its arguments, or -m and a module", field="argv")
    if not all(isinstance(name, str) and _MODULE.fullmatch(name) for name in warm):
        raise ValidationError(f"warm: {shown(warm)}; give names of modules such as ['pandas']", field="warm")
    if len(warm) > MAX_WARM:
        raise ValidationError(f"warm: {len(warm)} modules; at most {MAX_WARM}", field="warm")
    return tuple(warm)
