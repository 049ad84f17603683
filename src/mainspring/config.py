"""Settings: the only reader of flags, environment and TOML. Flags override the environment, which overrides the file.

    MAINSPRING_DSN=postgresql://…      an external PostgreSQL; without it, the embedded one
    MAINSPRING_SLOTS=200               any setting, in capitals
    mainspring.toml                    in the working directory, or named by MAINSPRING_CONFIG

Next: compose/local.py
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.placement.define_placement import check_amounts, check_strategy, parse_amounts
from mainspring.model.placement.placement import DEFAULT_STRATEGY
from mainspring.model.tasks.addresses import Allowed
from mainspring.model.words.durations import seconds
from mainspring.model.words.locations import address, check_web
from mainspring.model.words.names import check_name, check_path_name, check_text
from mainspring.model.words.skew import DEFAULT_LIMIT

log = logging.getLogger("mainspring")

DEFAULT_LISTEN = "127.0.0.1:7070"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Durations are seconds; they may be written as text ("5s", "30d") wherever they are given."""

    dsn: str | None = None
    data_directory: str | None = None  # of the embedded PostgreSQL
    agent_name: str = ""  # of an agent; the name of the host, with a number from the second agent there on
    labels: dict[str, str] = {}  # of the agent, for jobs that require them; as text: gpu=a100,zone=b
    offers: dict[str, float] = {}  # amounts that jobs may need; as text: gpu=2,memory_gb=64
    slots: int = 100  # attempts that run at once
    threads: int = 32  # sync handlers that run at once
    http_allow: tuple[str, ...] = ()  # HTTP jobs may call these beside public addresses: 10.0.0.0/8,shop.example
    run_as: tuple[str, ...] = ()  # users that commands may run as; as text: alice,backup
    allow_commands: tuple[str, ...] = ()  # commands that may run: names or paths, with wildcards; empty: all
    allow_env: tuple[str, ...] = ()  # variables that jobs may set where allow_commands is set, with wildcards
    placement: str = DEFAULT_STRATEGY  # for jobs that name none, unless `mainspring agents strategy` has set one
    poll: float = 0.5
    lead: float = 5.0  # how long before its time a task is armed; more for an agent that is slow or busy
    lead_min: float = 1.0
    lead_max: float = 30.0
    lead_latency_factor: float = 4.0  # seconds of lead for each second until an agent acknowledges
    lead_load_factor: float = 1.0  # seconds of lead for an agent whose slots are all taken
    lease: float = 15.0
    block_limit: float = 300.0  # a process whose event loop is blocked for longer ends
    server_name: str = ""  # of a server, in `mainspring servers`; the name of the host
    listen: str = DEFAULT_LISTEN  # where a server accepts agents, and serves its API
    api: bool = True  # a server serves the HTTP API; on or off
    api_listen: str | None = None  # an address for the API alone; the agents' port then has none
    public_url: str | None = None  # how clients reach the API through a proxy, with the path if there is one
    allowed_hosts: tuple[str, ...] = ()  # names in the Host header beside the address, loopback and public_url
    cors_origins: tuple[str, ...] = ()  # sites whose pages may call the API with a token: https://intranet.example
    trusted_proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-* headers are believed: 10.0.0.0/8
    api_rate: float = 200.0  # requests a second of a session or a viewer; other tokens have a rate of their own
    api_failures: float = 10.0  # failed authentications of one address in a minute
    api_streams: int = 500  # that are open at once on a server
    api_streams_per_token: int = 20
    api_connections: int = 1000  # of HTTP, to a server
    environment: str | None = None  # shown as a coloured band on every page of the console: production
    degraded_after: float = 60.0  # a due task that waits for longer makes the cluster's health degraded
    tls_cert: str | None = None  # of a server, with tls_key
    tls_key: str | None = None
    tls_ca: str | None = None  # authorities that an agent trusts, in place of the system's
    server: str | None = None  # of an agent: wss://host:port, several with commas
    token: str | None = None  # of an agent
    token_file: str | None = None  # the file with it, in place of token; -: the standard input
    secret_keys: str | None = None  # that encrypt secrets: ID:KEY, several with commas; the first one encrypts
    secret_keys_file: str | None = None  # a file with more of them, one in a line, which only its owner can read
    clock_offset: float = 0.0  # added to this machine's clock, to try a wrong one
    skew_limit: float = DEFAULT_LIMIT  # how wrong the clock of an agent's machine may be without a warning
    stop_patience: float = 10.0  # for running attempts to end when the process stops
    exit_when_idle: float | None = None  # an agent ends once it has held no task for so long
    keep_succeeded: float = 7 * 86400.0
    keep_failed: float = 30 * 86400.0


_DURATIONS = {
    *(
        "poll",
        "lead",
        "lead_min",
        "lead_max",
        "lease",
        "block_limit",
        "skew_limit",
        "stop_patience",
        "keep_succeeded",
        "keep_failed",
        "degraded_after",
        "exit_when_idle",
    ),
}
_LISTS = {
    *("http_allow", "run_as", "allow_commands", "allow_env"),
    *("allowed_hosts", "cors_origins", "trusted_proxies"),
}
_SWITCHES = {"api"}
# Variables of ours that are no settings: read where they are used, or set for the commands that an agent runs.
_OTHER_VARIABLES = {
    *("CONFIG", "DEBUG", "START_PIPE", "TEST_DSN", "URL", "WARM"),
    *("ARGS", "ATTEMPT", "FIRE_AT", "IDEMPOTENCY_KEY", "JOB", "PARENTS", "PLAN_TIME", "SCHEDULE", "SCOPE", "TASK_ID"),
}
# Kubernetes sets these in every container for a service named mainspring; our tests and benchmarks set the last.
_FOREIGN = re.compile(r"(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)|(TEST|TORTURE|BENCH)_.*")
_YEARS = 10 * 365 * 86400.0
# The least and the most of each number; durations are bounded where they are read, too.
_BOUNDS: dict[str, tuple[float, float]] = {
    "slots": (1, 100_000),
    "threads": (1, 1000),
    "poll": (0.01, 60.0),
    "lead": (0.0, 3600.0),
    "lead_min": (0.0, 3600.0),
    "lead_max": (0.0, 3600.0),
    "lead_latency_factor": (0.0, 1000.0),
    "lead_load_factor": (0.0, 1000.0),
    "lease": (1.0, 3600.0),
    "block_limit": (1.0, _YEARS),
    "clock_offset": (-_YEARS, _YEARS),
    "keep_succeeded": (60.0, _YEARS),
    "keep_failed": (60.0, _YEARS),
    "degraded_after": (1.0, 86400.0),
    "exit_when_idle": (1.0, _YEARS),
    "api_rate": (1.0, 1_000_000.0),
    "api_failures": (1.0, 1_000_000.0),
    "api_streams": (1, 100_000),
    "api_streams_per_token": (1, 100_000),
    "api_connections": (10, 100_000),
}


def load(overrides: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings in force. `overrides` come from flags; a None among them means: not given."""
    environment = os.environ if environment is None else environment
    variables = {name: environment.get(f"MAINSPRING_{name.upper()}") for name in Settings.__struct_fields__}
    given = _over(_from_file(environment), {name: value for name, value in variables.items() if value})
    _warn_of_unknown(environment)
    chosen = {name: value for name, value in (overrides or {}).items() if value is not None}
    if "data_directory" in chosen and "dsn" not in chosen:
        given.pop("dsn", None)  # a directory asks for the embedded PostgreSQL in it
    return _convert(_over(given, chosen))


def _over(given: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """`chosen` overrides `given`; a token in one of its two forms also overrides the other form."""
    forms = {"token", "token_file"}
    overridden = forms if forms & chosen.keys() else set()
    return {name: value for name, value in given.items() if name not in overridden} | chosen


_warned: set[str] = set()  # once per process


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Warn of variables that look like settings and are none. No error: other programs may use the prefix too."""
    settings = {name.upper() for name in Settings.__struct_fields__}
    given = {name.removeprefix("MAINSPRING_") for name in environment if name.startswith("MAINSPRING_")}
    for name in sorted(given - settings - _OTHER_VARIABLES - _warned):
        if not _FOREIGN.fullmatch(name):
            _warned.add(name)
            close = get_close_matches(name, settings, 1)
            meant = f"; did you mean MAINSPRING_{close[0]}?" if close else ""
            log.warning("MAINSPRING_%s is no setting and is ignored%s", name, meant)


def _from_file(environment: Mapping[str, str]) -> dict[str, Any]:
    named = environment.get("MAINSPRING_CONFIG")
    path = Path(named or "mainspring.toml")
    if not named and not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # among them what is no TOML, and no text
        raise ValidationError(f"config: {path} cannot be read: {error}", field="config") from None


def _convert(given: dict[str, Any]) -> Settings:
    unknown = sorted(given.keys() - set(Settings.__struct_fields__))
    if unknown:
        close = get_close_matches(unknown[0], Settings.__struct_fields__, 1)
        known = f"did you mean {close[0]}?" if close else f"there are {', '.join(Settings.__struct_fields__)}"
        raise ValidationError(f"{unknown[0]}: no such setting; {known}", field=unknown[0])
    for name in _DURATIONS & given.keys():
        given[name] = seconds(given[name], field=name)
    for name in _SWITCHES & given.keys():
        given[name] = _switch(given[name], name)
    if isinstance(given.get("labels"), str):
        given["labels"] = _pairs(given["labels"], "labels", "gpu=a100,zone=b")
    if not isinstance(given.get("labels", {}), Mapping):
        raise ValidationError(f"labels: {shown(given['labels'])}; write gpu=a100,zone=b", field="labels")
    for name in _LISTS & given.keys():
        if isinstance(given[name], str):
            given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
    if isinstance(given.get("offers"), str):
        given["offers"] = parse_amounts(_pairs(given["offers"], "offers", "gpu=2,memory_gb=64"), field="offers")
    elif "offers" in given:
        given["offers"] = check_amounts(given["offers"], field="offers")
    try:
        settings = msgspec.convert(given, Settings, strict=False)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.partition("`")[0].partition("[")[0]
        wanted = {"Expected `int`": "a whole number", "Expected `float`": "a number"}.get(reason.partition(",")[0])
        advice = f"give {wanted}" if wanted else f"it does not fit ({reason})"
        said = f"{name}: {shown(given.get(name))}" if name else "settings: cannot be read"  # they hold secrets
        raise ValidationError(f"{said}; {advice}", field=name or None) from None
    _check_texts(settings)
    if settings.dsn == "":
        raise ValidationError("dsn: is empty; write postgresql://user:password@host:5432/database", field="dsn")
    if settings.token is not None and settings.token_file is not None:
        raise ValidationError("token, token_file: give one of them", field="token_file")
    _check_names(settings)
    check_strategy(settings.placement, field="placement")
    Allowed(settings.http_allow)  # refuses what is neither a network nor a host
    if settings.api_listen is not None:
        address(settings.api_listen, "api_listen")
    check_web(settings.public_url, settings.allowed_hosts, settings.cors_origins, settings.trusted_proxies)
    for name, (least, most) in _BOUNDS.items():
        value = getattr(settings, name)
        if value is not None and not least <= value <= most:  # NaN is not
            unit = " s" if name in _DURATIONS else ""
            bound = f"at least {least:g}{unit}" if value < least else f"at most {most:g}{unit}"
            raise ValidationError(f"{name}: {shown(value)}{unit}; {bound}", field=name)
    return settings


def _check_texts(settings: Settings) -> None:
    """No text of a setting has a NUL or is no text at all: the system would refuse it where it is used."""
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                check_text(text, field=name)


def _check_names(settings: Settings) -> None:
    """A server would refuse an agent with bad names, and the agent would reconnect without end."""
    for field in ("agent_name", "server_name"):
        if name := getattr(settings, field):
            check_path_name(name, field=field)
    for label in (*settings.labels, *settings.labels.values()):
        check_name(label, field="labels")


def _switch(value: object, field: str) -> bool:
    if isinstance(value, bool):
        return value
    words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    found = words.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ValidationError(f"{field}: {shown(value)}; write on or off", field=field)
    return found


def _pairs(text: str, field: str, example: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(name and equals and value for name, equals, value in pairs):
        raise ValidationError(f"{field}: {shown(text)}; write {example}", field=field)
    return {name: value for name, _, value in pairs}
